#include "link/ring_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "os/peer_memory.h"
#include "trace/counters.h"

namespace softhca::link {
namespace {

using trace::Counter;
using trace::ReasonId;

const wire::Gid kHere = wire::Gid::of_ipv4({127, 0, 0, 1});
const wire::Gid kElsewhere = wire::Gid::of_ipv4({192, 0, 2, 1});
constexpr std::uint32_t kBlock = 7;
constexpr wire::Qpn kQpn{kBlock << local::kQpnBlockShift | 5};

// Keeps what is sent, and brings what a test puts there.
class Inner final : public Link {
 public:
  std::size_t send(std::span<const Frame> frames, Time) override {
    sent.insert(sent.end(), frames.begin(), frames.end());
    return frames.size();
  }
  std::size_t receive(std::span<Frame> out, Time) override {
    ++looks;
    if (!arrives) return 0;
    out[0] = {};
    return 1;
  }
  Time next_arrival() const override { return Time::never(); }

  std::vector<Frame> sent;
  int looks = 0;
  bool arrives = false;
};

// A device whose only peer on this host is itself.
struct Own {
  Inner inner;
  os::PeerTable memory = std::move(*os::PeerTable::create("softhca-test", local::kRingTableBytes));
  local::RingTable rings{memory.bytes()};
  std::array<std::uint64_t, trace::kCounterCount> cells{};
  trace::Tracer tracer{trace::Counters(cells), nullptr};
  bool is_there = true;
  bool has_peer = true;
  int searches = 0;
  int wakes = 0;
  RingLink link{{.inner = inner,
                 .rings = rings,
                 .tracer = tracer,
                 .is_own_address = [](const wire::Gid& address) { return address == kHere; },
                 .find = [this](std::uint32_t) { return find(); },
                 .wake = [this](std::uint32_t) { ++wakes; }}};

  RingLink::Found find() {
    ++searches;
    if (!has_peer) return {.peer = {}, .why_not = ReasonId::DirectOtherUser};
    auto sender = local::RingSender::open(memory.bytes(), 3);
    return {.peer = RingLink::Peer{*sender, [this](Time) { return is_there; }}, .why_not = {}};
  }
  Way way(const wire::Gid& to, Time now = {}) {
    wire::Datagram path;
    path.destination = to;
    return link.way_to(path, kQpn, now);
  }
  std::size_t room(std::size_t wanted, Time now) {
    wire::Datagram path;
    path.destination = kHere;
    return link.room_for(path, kQpn, wanted, now);
  }
  std::uint64_t count(Counter counter) const { return tracer.counters().get(counter); }
  std::vector<Frame> drain(Time now = {}) {
    std::array<Frame, 64> out;
    const std::size_t count = link.receive(out, now);
    return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count)};
  }
};

struct Packet {
  std::vector<std::byte> bytes;
  explicit Packet(std::size_t size = 24) : bytes(size) { store_be(bytes, 4, kQpn.value); }
  Frame frame(bool has_icrc = false) const {
    Frame frame{.datagram = {.source = kHere, .destination = kHere, .source_port = 50'000},
                .bytes = bytes};
    frame.has_icrc = has_icrc;
    return frame;
  }
};

TEST(RingLink, TakesFramesForThisHostThroughMemory) {
  Own own;
  EXPECT_TRUE(own.way(kHere).is_memory);
  const Packet packet;
  const std::array<Frame, 2> frames = {packet.frame(), packet.frame()};
  EXPECT_EQ(own.link.send(frames, {}), 2u);
  EXPECT_TRUE(own.inner.sent.empty());
  const auto arrived = own.drain();
  ASSERT_EQ(arrived.size(), 2u);
  EXPECT_EQ(arrived[0].datagram.source, kHere);
  EXPECT_EQ(arrived[0].datagram.source_port, 50'000);
  EXPECT_FALSE(arrived[0].has_icrc);
  EXPECT_TRUE(std::ranges::equal(arrived[1].bytes, packet.bytes));
  EXPECT_EQ(own.count(Counter::RingPacketsSent), 2u);
  EXPECT_EQ(own.count(Counter::RingPacketsReceived), 2u);
}

TEST(RingLink, LeavesEverythingElseToTheLinkInside) {
  Own own;
  EXPECT_EQ(own.way(kElsewhere), Way{});
  EXPECT_EQ(own.searches, 0);
  const Packet packet;
  const std::array<Frame, 1> frames = {packet.frame(true)};
  EXPECT_EQ(own.link.send(frames, {}), 1u);
  EXPECT_EQ(own.inner.sent.size(), 1u);
}

TEST(RingLink, SaysWhyAPeerHasNoRingAndLooksAgainLater) {
  Own own;
  own.has_peer = false;
  EXPECT_EQ(own.way(kHere), (Way{.is_memory = false, .why_not = ReasonId::DirectOtherUser}));
  own.has_peer = true;
  EXPECT_FALSE(own.way(kHere, Time{} + milliseconds(10)).is_memory);
  EXPECT_EQ(own.searches, 1);
  EXPECT_TRUE(own.way(kHere, Time{} + seconds(2)).is_memory);
}

TEST(RingLink, LooksForSomebodyElseOnceAPeerHasGone) {
  Own own;
  EXPECT_TRUE(own.way(kHere).is_memory);
  own.is_there = own.has_peer = false;
  EXPECT_FALSE(own.way(kHere).is_memory);
  const Packet packet;
  const std::array<Frame, 1> frames = {packet.frame()};
  EXPECT_EQ(own.link.send(frames, {}), 1u);  // it was made before
  EXPECT_EQ(own.count(Counter::SendErrors), 1u);
}

TEST(RingLink, WaitsForAReaderAndLosesFramesOfOneThatStopped) {
  Own own;
  EXPECT_TRUE(own.way(kHere).is_memory);
  const Packet packet(4000);
  const std::array<Frame, 1> frames = {packet.frame()};
  while (own.link.send(frames, {}) == 1) {
  }
  EXPECT_EQ(own.room(4, {}), 0u);
  EXPECT_EQ(own.count(Counter::SendErrors), 0u);
  EXPECT_EQ(own.room(4, Time{} + seconds(1)), 4u);
  EXPECT_EQ(own.link.send(frames, Time{} + seconds(1)), 1u);
  EXPECT_EQ(own.count(Counter::SendErrors), 1u);
  EXPECT_FALSE(own.drain().empty());
  own.link.release();
  EXPECT_EQ(own.room(4, Time{} + seconds(1)), 4u);
  EXPECT_EQ(own.link.send(frames, Time{} + seconds(1)), 1u);
  EXPECT_EQ(own.count(Counter::SendErrors), 1u);
}

TEST(RingLink, WakesWhoSleeps) {
  Own own;
  EXPECT_TRUE(own.way(kHere).is_memory);
  const Packet packet;
  const std::array<Frame, 1> frames = {packet.frame()};
  own.link.send(frames, {});
  EXPECT_EQ(own.wakes, 0);
  EXPECT_TRUE(own.rings.sleep());
  own.link.send(frames, {});
  own.link.send(frames, {});
  EXPECT_EQ(own.wakes, 1);
}

TEST(RingLink, LooksAtTheLinkInsideNowAndThenWhileOnlyRingsAreActive) {
  Own own;
  for (int i = 0; i < 10; ++i) own.drain();
  EXPECT_EQ(own.inner.looks, 10);
  EXPECT_TRUE(own.way(kHere).is_memory);
  const Packet packet;
  const std::array<Frame, 1> frames = {packet.frame()};
  own.link.send(frames, {});
  EXPECT_EQ(own.drain().size(), 1u);
  const int before = own.inner.looks;
  for (int i = 0; i < 320; ++i) own.drain();
  EXPECT_EQ(own.inner.looks - before, 10);
  own.link.expect();
  own.drain();
  EXPECT_EQ(own.inner.looks - before, 11);
  own.inner.arrives = true;
  own.link.expect();
  own.drain();
  own.inner.arrives = false;
  const int then = own.inner.looks;
  for (int i = 0; i < 20; ++i) own.drain();
  EXPECT_EQ(own.inner.looks - then, 20);
}

TEST(RingLink, LooksAtTheLinkInsideThoughRingsFillEveryCall) {
  Own own;
  EXPECT_TRUE(own.way(kHere).is_memory);
  own.inner.arrives = true;
  const Packet packet;
  const std::vector<Frame> frames(100, packet.frame());
  std::size_t from_inside = 0;
  for (int i = 0; i < 100; ++i) {
    own.link.send(frames, {});
    const auto arrived = own.drain();
    EXPECT_EQ(arrived.size(), 64u);
    from_inside += static_cast<std::size_t>(std::ranges::count(arrived, true, &Frame::has_icrc));
  }
  EXPECT_GT(from_inside, 50u);
}

}  // namespace
}  // namespace softhca::link
