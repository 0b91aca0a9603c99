#include "rsocket/stream.h"

#include <gtest/gtest.h>

#include <vector>

namespace softhca::rsocket {
namespace {

constexpr std::uint32_t kHalf = 4096;

StreamShape small() {
  return {
      .sends = 16, .receives = 16, .send_bytes = 8192, .receive_bytes = 2 * kHalf, .mappings = 2};
}

// An end whose peer is the test.
struct End {
  explicit End(StreamShape shape = small()) : list(list_bytes(shape)), stream(shape, memory()) {}

  StreamMemory memory() {
    return {.ring_address = 0x10000,
            .ring_key = 1,
            .list = list,
            .list_address = 0x20000,
            .list_key = 2};
  }
  void begin(std::uint16_t credits = 16) {
    stream.begin({.maps = true,
                  .credits = credits,
                  .mappings = 3,
                  .list = {0x90000, 9, 2},
                  .first = {0x80000, 8, kHalf}});
  }
  // What a peer does to list a buffer.
  void list_buffer(std::uint32_t entry, std::uint16_t credits) {
    store_buffer(Bytes(list).subspan(entry * kBufferBytes), {0x80000 + entry * kHalf, 8, kHalf},
                 false);
    stream.on_message(immediate_of({Kind::Credits, credits}));
  }
  void hear(Kind kind, std::uint32_t value) { stream.on_message(immediate_of({kind, value})); }
  // All notices that are due, completed.
  std::vector<Request> notices() {
    std::vector<Request> all;
    while (const auto request = stream.poll_notice()) all.push_back(*request);
    for (const Request& request : all) stream.on_sent(request.tag);
    return all;
  }
  // Writes and completes as much as goes.
  std::uint32_t write_all(std::size_t bytes) {
    std::uint32_t written = 0;
    while (written < bytes && stream.can_send()) {
      const Request request = stream.take_write(bytes - written);
      written += request.ring_bytes();
      stream.on_sent(request.tag);
    }
    return written;
  }

  alignas(8) std::vector<std::byte> list;
  Stream stream;
};

Message message(const Request& request) { return message_of(request.immediate.value()); }

TEST(Stream, ShapesAreMadePossible) {
  const StreamShape shape = possible_shape(
      {.sends = 1, .receives = 100'000, .send_bytes = 0, .receive_bytes = 5001, .mappings = 300});
  EXPECT_EQ(shape, (StreamShape{16, 0xfffe, 4096, 5000, 256}));
  EXPECT_EQ(possible_shape(shape), shape);
  EXPECT_EQ(possible_shape({}), StreamShape{});
}

TEST(Stream, PaceDoublesUpToALimit) {
  Pace pace;
  EXPECT_EQ(pace.next(10), 10u);
  EXPECT_EQ(pace.next(1u << 20), 2048u);
  EXPECT_EQ(pace.next(1u << 20), 4096u);
  for (int i = 0; i < 8; ++i) (void)pace.next(1u << 20);
  EXPECT_EQ(pace.next(1u << 20), 65536u);
}

TEST(Stream, GreetsWithTheFirstHalfOfItsRing) {
  const Greeting greeting = End().stream.greeting();
  EXPECT_EQ(greeting.first, (Buffer{0x10000, 1, kHalf}));
  EXPECT_EQ(greeting.list, (Buffer{0x20000, 2, 2}));
  EXPECT_EQ(greeting.credits, 16u);
  EXPECT_EQ(greeting.mappings, 2u);
}

TEST(Stream, NothingIsSentBeforeThePeerHasGreeted) {
  End end;
  EXPECT_FALSE(end.stream.can_send());
  EXPECT_FALSE(end.stream.poll_notice());
  end.begin();
  EXPECT_TRUE(end.stream.can_send());
}

TEST(Stream, ListsTheSecondHalfFirst) {
  End end;
  end.begin();
  const auto notices = end.notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(message(notices[0]), (Message{Kind::Credits, 16}));
  EXPECT_EQ(notices[0].address, 0x90000u + kBufferBytes);
  EXPECT_EQ(notices[0].key, 9u);
  ASSERT_EQ(notices[0].text_bytes, kBufferBytes);
  EXPECT_EQ(load_le<std::uint64_t>(notices[0].text), 0x10000u + kHalf);
  EXPECT_EQ(load_le<std::uint32_t>(notices[0].text, 12), kHalf);
}

TEST(Stream, WritesFillOneListedBufferAfterTheOther) {
  End end;
  end.begin();
  const Request first = end.stream.take_write(kHalf - 1);
  EXPECT_EQ(first.address, 0x80000u);
  EXPECT_EQ(first.key, 8u);
  EXPECT_EQ(message(first), (Message{Kind::Bytes, kHalf - 1}));
  const Request second = end.stream.take_write(100);
  EXPECT_EQ(second.address, 0x80000u + kHalf - 1);
  EXPECT_EQ(second.ring_bytes(), 1u);
  EXPECT_FALSE(end.stream.can_send());  // no buffer
  end.stream.on_sent(first.tag);
  end.stream.on_sent(second.tag);
  end.list_buffer(1, 16);
  ASSERT_TRUE(end.stream.can_send());
  EXPECT_EQ(end.stream.take_write(100).address, 0x80000u + kHalf);
}

TEST(Stream, ABufferThatIsListedEarlyWaitsForItsTurn) {
  End end;
  end.begin();
  end.list_buffer(1, 16);
  EXPECT_EQ(end.write_all(3 * kHalf), 2 * kHalf);
  end.list_buffer(0, 16);
  EXPECT_EQ(end.stream.take_write(1).address, 0x80000u);
}

TEST(Stream, ASliceEndsWhereTheRingDoes) {
  End end;
  end.begin();
  end.list_buffer(1, 16);
  EXPECT_EQ(end.write_all(6000), 6000u);
  end.list_buffer(0, 16);
  const Request request = end.stream.take_write(2192);
  EXPECT_EQ(request.slices, (Slices{{{6000, 2192}, {0, 0}}}));
  EXPECT_EQ(end.stream.take_write(3000).slices[0], (Slice{0, 3000}));
}

TEST(Stream, NeedsRoomInTheRing) {
  End end;
  end.begin();
  end.list_buffer(1, 16);
  const Request request = end.stream.take_write(kHalf);
  (void)end.stream.take_write(kHalf - 2047);
  EXPECT_FALSE(end.stream.can_send());
  end.stream.on_sent(request.tag);
  EXPECT_TRUE(end.stream.can_send());
}

TEST(Stream, StopsWithoutCredits) {
  End end;
  end.begin(2);
  EXPECT_EQ(end.write_all(1), 1u);
  EXPECT_EQ(end.write_all(1), 1u);
  EXPECT_FALSE(end.stream.can_send());
  end.hear(Kind::Credits, 3);
  EXPECT_EQ(end.write_all(1), 1u);
  EXPECT_FALSE(end.stream.can_send());
}

TEST(Stream, KeepsRequestsForNotices) {
  End end;
  end.begin(100);
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(end.stream.can_send()) << i;
    (void)end.stream.take_write(1);
  }
  EXPECT_FALSE(end.stream.can_send());
  EXPECT_TRUE(end.stream.poll_notice());
}

TEST(Stream, GrantsCreditsWhenHalfAreUsed) {
  End end;
  end.begin();
  (void)end.notices();
  for (int i = 0; i < 7; ++i) end.hear(Kind::Bytes, 1);
  EXPECT_TRUE(end.notices().empty());
  end.hear(Kind::Mapped, 0);  // takes a credit as well
  const auto notices = end.notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(message(notices[0]), (Message{Kind::Credits, 24}));
  EXPECT_EQ(notices[0].text_bytes, 0u);
}

TEST(Stream, ListsAHalfThatWasRead) {
  End end;
  end.begin();
  (void)end.notices();
  end.hear(Kind::Bytes, kHalf);
  end.stream.take_bytes(kHalf - 1);
  EXPECT_TRUE(end.notices().empty());
  end.stream.take_bytes(1);
  const auto notices = end.notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(load_le<std::uint64_t>(notices[0].text), 0x10000u);
  EXPECT_EQ(notices[0].address, 0x90000u);
}

TEST(Stream, ReadsAcrossTheEndOfTheRing) {
  End end;
  end.begin();
  (void)end.notices();
  end.hear(Kind::Bytes, kHalf);
  end.stream.take_bytes(kHalf);
  (void)end.notices();
  end.hear(Kind::Bytes, kHalf);
  end.hear(Kind::Bytes, 100);
  EXPECT_EQ(end.stream.readable_bytes(), kHalf + 100);
  EXPECT_EQ(end.stream.readable(10'000), (Slices{{{kHalf, kHalf}, {0, 100}}}));
  EXPECT_EQ(end.stream.readable(10, kHalf + 50), (Slices{{{50, 10}, {0, 0}}}));
}

TEST(Stream, APeerThatWritesTooMuchFailsTheConnection) {
  End end;
  end.begin();
  end.hear(Kind::Bytes, kHalf + 1);  // the second half was not listed
  EXPECT_TRUE(end.stream.has_failed());
  EXPECT_FALSE(end.stream.may_receive());
}

TEST(Stream, WhatShutsSendingStillReceives) {
  End end;
  end.begin();
  (void)end.notices();
  end.stream.shut_sending();
  EXPECT_FALSE(end.stream.can_send());
  const auto notices = end.notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(message(notices[0]), (Message{Kind::Control, 2}));
  EXPECT_TRUE(end.stream.may_receive());
  end.hear(Kind::Control, 2);
  EXPECT_FALSE(end.stream.is_open());
  EXPECT_FALSE(end.stream.has_failed());
}

TEST(Stream, DisconnectsWhenBothWaysAreShut) {
  End end;
  end.begin();
  (void)end.notices();
  end.hear(Kind::Control, 2);
  EXPECT_FALSE(end.stream.may_receive());
  EXPECT_TRUE(end.stream.can_send());
  end.stream.shut_sending();
  EXPECT_FALSE(end.stream.is_quiet());
  const auto notices = end.notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(message(notices[0]), (Message{Kind::Control, 0}));
  EXPECT_FALSE(end.stream.is_open());
  EXPECT_TRUE(end.stream.is_quiet());
}

TEST(Stream, TellsAPeerThatShutAtTheSameTime) {
  End end;
  end.begin();
  (void)end.notices();
  end.stream.shut_sending();
  end.hear(Kind::Control, 2);
  EXPECT_TRUE(end.stream.is_open());
  const auto notices = end.notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(message(notices[0]), (Message{Kind::Control, 0}));
  EXPECT_FALSE(end.stream.is_open());
}

TEST(Stream, BytesBeforeTheEndCanBeRead) {
  End end;
  end.begin();
  end.hear(Kind::Bytes, 10);
  end.hear(Kind::Control, 0);
  EXPECT_FALSE(end.stream.is_open());
  EXPECT_EQ(end.stream.readable_bytes(), 10u);
}

TEST(Stream, KeepaliveIsAWriteOfNothing) {
  End end;
  end.begin();
  (void)end.notices();
  end.stream.keep_alive();
  const auto notices = end.notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_FALSE(notices[0].immediate);
  EXPECT_EQ(notices[0].ring_bytes() + notices[0].text_bytes, 0u);
  EXPECT_TRUE(end.notices().empty());
}

TEST(Stream, TellsThePeerOfMappings) {
  End end;
  end.begin();
  end.stream.map(1, {.offset = 5, .buffer = {0x7000, 7, 64}});
  ASSERT_TRUE(end.stream.has_mapping());
  const Request request = end.stream.take_mapping();
  EXPECT_FALSE(end.stream.has_mapping());
  EXPECT_EQ(request.address, 0x90000u + 2 * kBufferBytes + kMappingBytes);
  EXPECT_EQ(message(request), (Message{Kind::Mapped, 1}));
  EXPECT_EQ(load_mapping(request.text), (Mapping{5, {0x7000, 7, 64}}));
}

TEST(Stream, PlacesBytesWhereThePeerHasMapped) {
  End end;
  end.begin();
  EXPECT_FALSE(end.stream.take_placement(100, 1));
  store_mapping(Bytes(end.list).subspan(2 * kBufferBytes + kMappingBytes),
                {.offset = 100, .buffer = {0x7000, 7, 64}}, false);
  const auto request = end.stream.take_placement(130, 1000);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->address, 0x7000u + 30);
  EXPECT_EQ(request->ring_bytes(), 34u);
  EXPECT_FALSE(request->immediate);
  EXPECT_FALSE(end.stream.take_placement(164, 1));
  EXPECT_FALSE(end.stream.take_placement(99, 1));
}

TEST(Stream, ListsForABigEndianPeerInItsOrder) {
  End end;
  end.stream.begin({.big_endian = true, .credits = 1, .list = {0x90000, 9, 2}});
  const auto notices = end.notices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(load_be<std::uint64_t>(notices[0].text), 0x10000u + kHalf);
}

TEST(Stream, CreditsWrapAt16Bits) {
  End end;
  end.begin();
  std::uint16_t granted = 16;
  for (std::uint32_t sent = 0; sent < 70'000; ++sent) {
    if (!end.stream.can_send()) {
      granted = static_cast<std::uint16_t>(granted + 16);
      end.list_buffer(1, granted);
      end.list_buffer(0, granted);
    }
    ASSERT_EQ(end.write_all(1), 1u) << sent;
  }
  std::uint32_t told = 0;
  for (std::uint32_t got = 0; got < 70'000; ++got) {
    end.hear(Kind::Bytes, 1);
    end.stream.take_bytes(1);
    for (const Request& notice : end.notices()) told = message(notice).value;
  }
  EXPECT_EQ(static_cast<std::uint16_t>(70'000 + 16 - told) < 8, true) << told;
}

}  // namespace
}  // namespace softhca::rsocket
