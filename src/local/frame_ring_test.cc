#include "local/frame_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/prng.h"

namespace softhca::local {
namespace {

struct Ring {
  RingControl control;
  std::vector<std::byte> memory = std::vector<std::byte>(kRingBytes);
  RingWriter writer = *RingWriter::open(control, memory);
  RingReader reader{control, memory};

  bool send(ConstBytes frame) {
    MailHead head;
    head.source_port = 7;
    return writer.put(head, frame);
  }
};

std::vector<std::byte> frame_of(std::size_t bytes, std::uint8_t mark) {
  return std::vector<std::byte>(bytes, std::byte{mark});
}

bool is_frame(const RingFrame& frame, std::size_t bytes, std::uint8_t mark) {
  return frame.head.source_port == 7 && frame.bytes.size() == bytes &&
         std::ranges::all_of(frame.bytes, [&](std::byte b) { return b == std::byte{mark}; });
}

TEST(FrameRing, HandsOutWhatWasPutInItsOrder) {
  Ring ring;
  ASSERT_TRUE(ring.send(frame_of(100, 1)));
  ASSERT_TRUE(ring.send(frame_of(0, 2)));
  std::array<RingFrame, 4> out;
  EXPECT_EQ(ring.reader.read(out), 0u);  // nothing is published
  EXPECT_TRUE(ring.writer.publish());
  EXPECT_FALSE(ring.writer.publish());
  ASSERT_EQ(ring.reader.read(out), 2u);
  EXPECT_TRUE(is_frame(out[0], 100, 1));
  EXPECT_TRUE(is_frame(out[1], 0, 2));
  EXPECT_FALSE(ring.reader.has_more());
}

TEST(FrameRing, TakesNoMoreThanItHasRoomFor) {
  Ring ring;
  std::size_t sent = 0;
  while (ring.send(frame_of(4096, 3))) ++sent;
  EXPECT_GT(sent, kRingBytes / 4096 * 9 / 10);
  ring.writer.publish();
  std::vector<RingFrame> out(sent + 1);
  EXPECT_EQ(ring.reader.read(out), sent);
  EXPECT_FALSE(ring.send(frame_of(4096, 3)));  // until what was read is released
  ring.reader.release();
  EXPECT_TRUE(ring.send(frame_of(4096, 4)));
}

TEST(FrameRing, SaysHowManyItSurelyTakes) {
  Prng random(3);
  Ring ring;
  std::array<RingFrame, 8> out;
  for (int i = 0; i < 5000; ++i) {
    const std::size_t bytes = random.below(i % 100 < 50 ? 200 : kMostFrameBytes + 1);
    const std::size_t room = ring.writer.room_for(bytes, 1 + random.below(20));
    ASSERT_LE(room, 20u);
    for (std::size_t k = 0; k < room; ++k) ASSERT_TRUE(ring.send(frame_of(bytes, 1))) << i;
    ring.writer.publish();
    if (random.below(8) == 0) continue;
    while (ring.reader.read(out) == out.size()) ring.reader.release();
    ring.reader.release();
  }
  EXPECT_LT(ring.writer.room_for(kMostFrameBytes, 1000), 1000u);
}

TEST(FrameRing, StaysInItsFirstPagesWhereEveryFrameIsAnswered) {
  Ring ring;
  std::array<RingFrame, 4> out;
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(ring.send(frame_of(64, 5)));
    ring.writer.publish();
    ASSERT_EQ(ring.reader.read(out), 1u);
    ring.reader.release();
  }
  EXPECT_TRUE(std::all_of(ring.memory.begin() + 32'768, ring.memory.end(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(FrameRing, KeepsItsOrderWhateverTheSizes) {
  Ring ring;
  Prng random(1);
  std::vector<std::size_t> under_way;
  std::uint8_t next_in = 0, next_out = 0;
  for (int i = 0; i < 30'000; ++i) {
    const std::size_t bytes = random.below(kMostFrameBytes + 1);
    if (ring.send(frame_of(bytes, next_in))) {
      under_way.push_back(bytes);
      ++next_in;
    }
    if (random.below(3) != 0) ring.writer.publish();
    std::array<RingFrame, 8> out;
    const std::size_t count = ring.reader.read(std::span(out).first(1 + random.below(8)));
    ASSERT_LE(count, under_way.size());
    for (std::size_t k = 0; k < count; ++k)
      ASSERT_TRUE(is_frame(out[k], under_way[k], next_out++)) << i;
    under_way.erase(under_way.begin(), under_way.begin() + static_cast<std::ptrdiff_t>(count));
    if (random.below(4) != 0) ring.reader.release();
  }
}

TEST(FrameRing, ANewWriterGoesOnWhereTheLastOneWas) {
  Ring ring;
  ASSERT_TRUE(ring.send(frame_of(50, 1)));
  ring.writer.publish();
  ASSERT_TRUE(ring.send(frame_of(60, 2)));  // never published: its writer dies
  ring.writer = *RingWriter::open(ring.control, ring.memory);
  ASSERT_TRUE(ring.send(frame_of(70, 3)));
  ring.writer.publish();
  std::array<RingFrame, 4> out;
  ASSERT_EQ(ring.reader.read(out), 2u);
  EXPECT_TRUE(is_frame(out[0], 50, 1));
  EXPECT_TRUE(is_frame(out[1], 70, 3));
}

TEST(FrameRing, IsClosedByPositionsThatMakeNoSense) {
  for (const std::uint64_t written :
       {std::uint64_t{1}, std::uint64_t{kRingBytes + 64}, ~std::uint64_t{63}}) {
    Ring ring;
    ring.control.written = written;
    std::array<RingFrame, 4> out;
    EXPECT_EQ(ring.reader.read(out), 0u);
    EXPECT_TRUE(ring.reader.is_closed());
    EXPECT_TRUE(ring.writer.is_closed());
    EXPECT_FALSE(RingWriter::open(ring.control, ring.memory));
  }
}

TEST(FrameRing, IsClosedByARecordThatLeadsOutOfIt) {
  Ring ring;
  ASSERT_TRUE(ring.send(frame_of(8, 1)));
  ring.writer.publish();
  store_le<std::uint32_t>(ring.memory, 4, 4096);  // more than was written
  std::array<RingFrame, 4> out;
  EXPECT_EQ(ring.reader.read(out), 0u);
  EXPECT_TRUE(ring.reader.is_closed());
}

TEST(FrameRing, ARiverOfNonsenseOnlyClosesIt) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Prng random(seed);
    Ring ring;
    while (ring.send(frame_of(random.below(3000), 9))) {
    }
    ring.writer.publish();
    // Some words of what was sent, or all of it, are anything.
    for (std::uint64_t i = random.below(200); i > 0; --i)
      store_le(ring.memory, random.below(kRingBytes / 4) * 4,
               static_cast<std::uint32_t>(random.next()));
    if (random.below(4) == 0) ring.control.written = random.next();
    std::vector<RingFrame> out(1 + random.below(64));
    std::size_t all = 0;
    for (std::size_t count = 1; count != 0; ring.reader.release()) {
      count = ring.reader.read(out);
      for (std::size_t k = 0; k < count; ++k) {
        ASSERT_GE(out[k].bytes.data(), ring.memory.data());
        ASSERT_LE(out[k].bytes.data() + out[k].bytes.size(), ring.memory.data() + kRingBytes);
      }
      all += count;
      ASSERT_LE(all, kRingBytes / 64);
    }
  }
}

TEST(FrameRing, AReaderThatLiesGetsNoMoreRoom) {
  Ring ring;
  while (ring.send(frame_of(4096, 1))) {
  }
  for (const std::uint64_t taken : {std::uint64_t{3}, std::uint64_t{kRingBytes * 5}}) {
    ring.control.taken = taken;
    EXPECT_FALSE(ring.send(frame_of(4096, 1)));
  }
}

TEST(FrameRing, CarriesAStreamBetweenThreads) {
  Ring ring;
  constexpr std::uint32_t kFrames = 20'000;
  std::thread sender([&] {
    for (std::uint32_t i = 0; i < kFrames;) {
      std::array<std::byte, 600> frame{};
      store_le(frame, 0, i);
      if (ring.send(Bytes(frame).first(4 + i % 597)))
        ++i;
      else
        std::this_thread::yield();
      ring.writer.publish();
    }
  });
  std::array<RingFrame, 16> out;
  std::uint32_t expected = 0;
  while (expected < kFrames) {
    const std::size_t count = ring.reader.read(out);
    for (std::size_t k = 0; k < count; ++k, ++expected) {
      EXPECT_EQ(load_le<std::uint32_t>(out[k].bytes), expected);
      EXPECT_EQ(out[k].bytes.size(), 4 + expected % 597);
    }
    ring.reader.release();
    if (count == 0) std::this_thread::yield();
  }
  sender.join();
}

}  // namespace
}  // namespace softhca::local
