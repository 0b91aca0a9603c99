#include "driver/live/peer_receives.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <vector>

#include "base/prng.h"
#include "driver/test_tables.h"
#include "nic/ring_format.h"

namespace softhca::driver {
namespace {

using nic::Delivered;

constexpr std::uint64_t kReceiveRingBus = 0x8000'0000'0000;
constexpr std::uint64_t kReceiveBus = 0x9000'0000'0000;
constexpr std::uint64_t kReceiveBuffer = 0x7f00'1234'5000;  // in the peer's process
constexpr std::uint64_t kReceiveBytes = 0x8000;
constexpr std::uint32_t kReceiveSlots = 8, kReceiveStride = 64;
constexpr std::uint32_t kLife = 1;  // of its queue pair

// A peer whose ring of receives lies in this process, so that it can be read.
struct Receiver : FilledTables {
  Receiver() {
    owner.header().iommu_root = iommu.root();
    const auto both = host::BusRights(host::BusRight::Read) | host::BusRight::Write;
    const auto place = reinterpret_cast<std::uintptr_t>(ring().data());
    EXPECT_TRUE(iommu.map({kReceiveRingBus}, {place}, kPage4K, both, {}));
    EXPECT_TRUE(iommu.map({kReceiveBus}, {kReceiveBuffer}, kReceiveBytes, both, {}));
    key = *keys.insert({.pd = 2,
                        .access = 1,
                        .start = kReceiveBuffer,
                        .bytes = kReceiveBytes,
                        .bus = {kReceiveBus},
                        .pages = {}});
    seen.emplace(as_peer());
  }
  // A page of its own.
  Bytes ring() {
    const auto start = reinterpret_cast<std::uintptr_t>(room.data());
    return Bytes(room).subspan((kPage4K - start % kPage4K) % kPage4K, kPage4K);
  }
  void post(std::vector<nic::Segment> segments) {
    const Bytes slot =
        ring().subspan((receives.posted % kReceiveSlots) * kReceiveStride, kReceiveStride);
    store_le(slot, 0,
             nic::ReceiveWqe{.cookie = 1,
                             .index = receives.posted,
                             .segments = static_cast<std::uint32_t>(segments.size())});
    for (std::size_t i = 0; i < segments.size(); ++i)
      store_le(slot, sizeof(nic::ReceiveWqe) + i * sizeof(nic::Segment), segments[i]);
    ++receives.posted;
  }
  nic::Segment piece(std::uint64_t offset, std::uint32_t bytes) const {
    return {kReceiveBuffer + offset, bytes, key.value};
  }
  Delivered locate(const nic::Delivery& part, std::uint64_t bytes) {
    spans.clear();
    return locate_message(*seen, static_cast<std::uint32_t>(getpid()), receives, {5}, part, bytes,
                          known, spans);
  }

  std::vector<std::byte> room = std::vector<std::byte>(2 * kPage4K);
  wire::Key key;
  std::optional<PeerTables> seen;
  PeerTables::Receives receives{.pd = 2,
                                .may_write = false,
                                .generation = kLife,
                                .posted = 0,
                                .ring = {kReceiveRingBus},
                                .slots = kReceiveSlots,
                                .stride = kReceiveStride};
  nic::PostedReceives known;
  pcie::SpanList spans;
};

TEST(PeerReceives, TellWhereAMessageGoesPieceByPiece) {
  Receiver receiver;
  receiver.post({receiver.piece(0, 100), receiver.piece(0x1000, 50), receiver.piece(0x2000, 1000)});
  EXPECT_EQ(receiver.locate({.receive = {0, kLife}, .message_bytes = 200}, 200), Delivered::Yes);
  ASSERT_EQ(receiver.spans.all().size(), 3u);
  EXPECT_EQ(receiver.spans.all()[1], (pcie::Span{{kReceiveBuffer + 0x1000}, 50}));
  EXPECT_EQ(receiver.spans.all()[2], (pcie::Span{{kReceiveBuffer + 0x2000}, 50}));
  EXPECT_EQ(receiver.locate({.receive = {0, kLife}, .message_bytes = 300, .offset = 120}, 180),
            Delivered::Yes);
  ASSERT_EQ(receiver.spans.all().size(), 2u);
  EXPECT_EQ(receiver.spans.all()[0], (pcie::Span{{kReceiveBuffer + 0x1014}, 30}));
  EXPECT_EQ(receiver.locate({.receive = {0, kLife}, .message_bytes = 0}, 0), Delivered::Yes);
}

// Those that are known are not read again, also where the ring begins anew.
TEST(PeerReceives, KnowTheNextOnes) {
  Receiver receiver;
  for (std::uint32_t i = 0; i < 3 * kReceiveSlots; ++i) {
    if (i % 4 == 0)
      for (std::uint32_t k = 0; k < 4; ++k) receiver.post({receiver.piece((i + k) * 64, 64)});
    ASSERT_EQ(receiver.locate({.receive = {i, kLife}, .message_bytes = 64}, 64), Delivered::Yes)
        << i;
    EXPECT_EQ(receiver.spans.all()[0].start.value, kReceiveBuffer + i * 64);
    if (i % 4 == 0)
      store_le(receiver.ring(), (i % kReceiveSlots + 1) * kReceiveStride, nic::ReceiveWqe{});
  }
  EXPECT_EQ(receiver.locate({.receive = {3 * kReceiveSlots, kLife}, .message_bytes = 64}, 64),
            Delivered::NoReceive);
}

TEST(PeerReceives, OfAnotherQueuePairAreReadAnew) {
  Receiver receiver;
  receiver.post({receiver.piece(0, 64)});
  EXPECT_EQ(receiver.locate({.receive = {0, kLife}, .message_bytes = 64}, 64), Delivered::Yes);
  receiver.receives.posted = 0;
  receiver.receives.generation = kLife + 1;
  receiver.post({receiver.piece(640, 64)});
  EXPECT_EQ(receiver.locate({.receive = {0, kLife}, .message_bytes = 64}, 64), Delivered::No)
      << "what is known is of a life before";
  EXPECT_EQ(receiver.locate({.receive = {0, kLife + 1}, .message_bytes = 64}, 64), Delivered::Yes);
  EXPECT_EQ(receiver.spans.all()[0].start.value, kReceiveBuffer + 640);
}

TEST(PeerReceives, SayNoToWhatTheResponderWouldRefuse) {
  Receiver receiver;
  nic::Segment wrong = receiver.piece(0, 64);
  wrong.lkey ^= 1;
  receiver.post({wrong});
  receiver.post({receiver.piece(kReceiveBytes - 32, 64)});
  receiver.post({receiver.piece(0, 64)});
  EXPECT_EQ(receiver.locate({.receive = {0, kLife}, .message_bytes = 8}, 8), Delivered::No)
      << "key";
  EXPECT_EQ(receiver.locate({.receive = {1, kLife}, .message_bytes = 64}, 64), Delivered::No)
      << "bounds";
  EXPECT_EQ(receiver.locate({.receive = {2, kLife}, .message_bytes = 65}, 64), Delivered::No)
      << "too long";
  EXPECT_EQ(receiver.locate({.receive = {2, kLife}, .message_bytes = 64}, 64), Delivered::Yes);
  store_le(receiver.ring(), 2 * kReceiveStride,
           nic::ReceiveWqe{.cookie = 0, .index = 9, .segments = 1});
  receiver.known = {};
  EXPECT_EQ(receiver.locate({.receive = {2, kLife}, .message_bytes = 64}, 64), Delivered::No)
      << "stale slot";
  receiver.receives.slots = 0;
  EXPECT_EQ(receiver.locate({.receive = {2, kLife}, .message_bytes = 64}, 64), Delivered::Never);
}

// Of those the receive only counts.
TEST(PeerReceives, OfWritesWithImmediatesSayWhereTheKeyIs) {
  Receiver receiver;
  const wire::Key key = *receiver.keys.insert({.pd = 2,
                                               .access = 3,
                                               .start = kReceiveBuffer,
                                               .bytes = kReceiveBytes,
                                               .bus = {kReceiveBus},
                                               .pages = {}});
  nic::Delivery part{.receive = {0, kLife},
                     .message_bytes = 100,
                     .offset = 60,
                     .is_inline = false,
                     .is_write = true,
                     .rkey = key,
                     .address = kReceiveBuffer + 0x100};
  receiver.receives.may_write = true;
  EXPECT_EQ(receiver.locate(part, 40), Delivered::NoReceive);
  receiver.post({});
  EXPECT_EQ(receiver.locate(part, 40), Delivered::Yes);
  ASSERT_EQ(receiver.spans.all().size(), 1u);
  EXPECT_EQ(receiver.spans.all()[0], (pcie::Span{{kReceiveBuffer + 0x13c}, 40}));
  receiver.receives.may_write = false;
  EXPECT_EQ(receiver.locate(part, 40), Delivered::No) << "no right of the queue pair";
  receiver.receives.may_write = true;
  part.rkey = receiver.key;
  EXPECT_EQ(receiver.locate(part, 40), Delivered::No) << "no right of the key";
}

// Whatever a process writes into its own ring and tables, nobody reads beyond them.
TEST(PeerReceives, BelieveNoNumber) {
  Receiver receiver;
  Prng random(3);
  const auto any = [&] { return random.next() >> random.below(64); };
  for (int round = 0; round < 20'000; ++round) {
    for (std::byte& byte : receiver.ring().first(kReceiveStride))
      byte = static_cast<std::byte>(any());
    store_le(receiver.ring(), 8, std::uint32_t{0});  // its index
    receiver.receives.posted = static_cast<std::uint32_t>(any());
    receiver.receives.slots = 1u << random.below(32);
    receiver.receives.stride = static_cast<std::uint32_t>(16 + random.below(kPage4K - 15));
    receiver.known = {};
    receiver.locate({.receive = {0, kLife}, .message_bytes = any(), .offset = any()}, any());
  }
}

}  // namespace
}  // namespace softhca::driver
