#include "link/sim_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

namespace softhca::link {
namespace {

const wire::Gid kA = wire::Gid::of_ipv4({192, 0, 2, 1});
const wire::Gid kB = wire::Gid::of_ipv4({192, 0, 2, 2});

// A frame whose bytes are a number.
struct Numbered {
  explicit Numbered(std::uint32_t number, const wire::Gid& to = kB) {
    store_be(bytes, 0, number);
    frame = {.datagram = {.source = kA, .destination = to}, .bytes = bytes};
  }
  Numbered(const Numbered&) = delete;
  std::array<std::byte, 4> bytes{};
  Frame frame;
};

struct Delivery {
  Time at;
  std::uint32_t number;
  friend bool operator==(const Delivery&, const Delivery&) = default;
};

// Sends `count` numbered frames, one each microsecond, and runs until nothing is under way.
std::vector<Delivery> run(std::uint64_t seed, const SimCosts& costs, std::uint32_t count,
                          SimStatistics* statistics = nullptr) {
  SimNetwork network(seed, costs);
  Link& a = network.attach({&kA, 1});
  Link& b = network.attach({&kB, 1});
  std::vector<Delivery> deliveries;
  std::array<Frame, 8> out;
  const auto drain = [&](Time now) {
    while (const std::size_t n = b.receive(out, now))
      for (std::size_t i = 0; i < n; ++i)
        deliveries.push_back({now, load_be<std::uint32_t>(out[i].bytes)});
  };
  Time now{};
  for (std::uint32_t i = 0; i < count; ++i, now = now + microseconds(1)) {
    while (network.next_arrival() <= now) drain(network.next_arrival());
    const Numbered one(i);
    EXPECT_EQ(a.send({&one.frame, 1}, now), 1u);
  }
  while (network.next_arrival() < Time::never()) drain(network.next_arrival());
  if (statistics != nullptr) *statistics = network.statistics();
  return deliveries;
}

TEST(SimNetwork, DeliversCopiesWithTheirDatagram) {
  SimNetwork network(1, {});
  Link& a = network.attach({&kA, 1});
  Link& b = network.attach({&kB, 1});
  {
    Numbered one(7);
    one.frame.datagram.source_port = 0xc001;
    ASSERT_EQ(a.send({&one.frame, 1}, Time{}), 1u);
    store_be(one.bytes, 0, 8u);
  }
  std::array<Frame, 2> out;
  ASSERT_EQ(b.receive(out, Time{}), 1u);
  EXPECT_EQ(load_be<std::uint32_t>(out[0].bytes), 7u);
  EXPECT_EQ(out[0].datagram.source_port, 0xc001);
  EXPECT_EQ(out[0].datagram.destination, kB);
  EXPECT_EQ(b.receive(out, Time{}), 0u);
}

TEST(SimNetwork, HoldsAFrameForItsDelay) {
  SimNetwork network(1, {.delay = microseconds(3)});
  Link& a = network.attach({&kA, 1});
  Link& b = network.attach({&kB, 1});
  EXPECT_EQ(b.next_arrival(), Time::never());
  const Numbered one(1);
  ASSERT_EQ(a.send({&one.frame, 1}, Time{} + microseconds(1)), 1u);
  EXPECT_EQ(b.next_arrival(), Time{} + microseconds(4));
  EXPECT_EQ(network.next_arrival(), Time{} + microseconds(4));
  std::array<Frame, 1> out;
  EXPECT_EQ(b.receive(out, Time{} + nanoseconds(3999)), 0u);
  EXPECT_EQ(b.receive(out, Time{} + microseconds(4)), 1u);
}

TEST(SimNetwork, MakesFramesQueueForTheWire) {
  SimNetwork network(1, {.ps_per_byte = 80});  // 100 Gb/s
  Link& a = network.attach({&kA, 1});
  Link& b = network.attach({&kB, 1});
  const Numbered one(1);
  const Numbered two(2);
  const std::array<Frame, 2> both{one.frame, two.frame};
  ASSERT_EQ(a.send(both, Time{}), 2u);
  // 4 bytes, UDP 8, IPv4 20, Ethernet 38.
  constexpr std::int64_t kFramePs = 70 * 80;
  std::array<Frame, 2> out;
  EXPECT_EQ(b.receive(out, Time{kFramePs}), 1u);
  EXPECT_EQ(b.next_arrival(), Time{2 * kFramePs});
}

TEST(SimNetwork, KeepsOrderWhateverTheDelays) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto deliveries =
        run(seed, {.delay = microseconds(2), .delay_spread = microseconds(50)}, 200);
    ASSERT_EQ(deliveries.size(), 200u);
    for (std::uint32_t i = 0; i < 200; ++i) ASSERT_EQ(deliveries[i].number, i) << seed;
  }
}

TEST(SimNetwork, GivesTheSameRunForTheSameSeed) {
  const SimCosts costs{.delay = microseconds(2),
                       .delay_spread = microseconds(9),
                       .ps_per_byte = 7,
                       .loss = 100,
                       .duplication = 100,
                       .reordering = 100,
                       .corruption = 100};
  const auto first = run(11, costs, 500);
  EXPECT_EQ(first, run(11, costs, 500));
  EXPECT_NE(first, run(12, costs, 500));
}

TEST(SimNetwork, LosesDuplicatesReordersAndCorruptsAboutAsOftenAsAsked) {
  SimStatistics s;
  const auto deliveries = run(5,
                              {.delay = microseconds(20),
                               .loss = 100,
                               .duplication = 50,
                               .reordering = 200,
                               .corruption = 30},
                              10'000, &s);
  EXPECT_EQ(s.sent, 10'000u);
  EXPECT_NEAR(static_cast<double>(s.lost), 1000, 150);
  EXPECT_NEAR(static_cast<double>(s.duplicated), 450, 100);
  EXPECT_NEAR(static_cast<double>(s.reordered), 1890, 200);
  EXPECT_NEAR(static_cast<double>(s.corrupted), 270, 80);
  EXPECT_EQ(s.delivered, s.sent - s.lost + s.duplicated);
  EXPECT_EQ(s.delivered, deliveries.size());
  const auto by_number = [](const Delivery& a, const Delivery& b) { return a.number < b.number; };
  EXPECT_FALSE(std::is_sorted(deliveries.begin(), deliveries.end(), by_number));
}

TEST(SimNetwork, LosesFramesForAddressesThatNobodyHas) {
  SimNetwork network(1, {});
  Link& a = network.attach({&kA, 1});
  const Numbered one(1);
  EXPECT_EQ(a.send({&one.frame, 1}, Time{}), 1u);
  EXPECT_EQ(network.statistics().lost, 1u);
  EXPECT_EQ(network.next_arrival(), Time::never());
}

TEST(SimNetwork, CutsAHostOffUntilItIsConnectedAgain) {
  SimNetwork network(1, {.delay = microseconds(1)});
  Link& a = network.attach({&kA, 1});
  Link& b = network.attach({&kB, 1});
  const Numbered one(1);
  std::array<Frame, 1> out;
  ASSERT_EQ(a.send({&one.frame, 1}, Time{}), 1u);
  network.set_connected(b, false);
  EXPECT_EQ(b.receive(out, Time{} + microseconds(1)), 0u);
  network.set_connected(b, true);
  network.set_connected(a, false);
  ASSERT_EQ(a.send({&one.frame, 1}, Time{}), 1u);
  EXPECT_EQ(network.next_arrival(), Time::never());
  EXPECT_EQ(network.statistics().lost, 2u);
  network.set_connected(a, true);
  ASSERT_EQ(a.send({&one.frame, 1}, Time{}), 1u);
  EXPECT_EQ(b.receive(out, Time{} + microseconds(1)), 1u);
}

// A frame of a Numbered has 70 bytes on the wire.
constexpr std::int64_t kNumberedBytes = 14 + 4 + 8 + 12 + 20 + 8 + 4;

// `count` frames at once through the port towards B; the traffic class of each that came.
std::vector<std::uint8_t> through_port(const SwitchPort& port, std::uint8_t traffic_class,
                                       std::uint32_t count, SimStatistics& statistics) {
  SimNetwork network(1, {.port = port});
  Link& a = network.attach({&kA, 1});
  Link& b = network.attach({&kB, 1});
  for (std::uint32_t i = 0; i < count; ++i) {
    Numbered one(i);
    one.frame.datagram.traffic_class = traffic_class;
    a.send({&one.frame, 1}, Time{0});
  }
  std::vector<std::uint8_t> classes;
  std::array<Frame, 1> out;
  while (network.next_arrival() < Time::never()) {
    const Time now = network.next_arrival();
    while (b.receive(out, now) != 0) classes.push_back(out[0].datagram.traffic_class);
  }
  EXPECT_EQ(network.queued_bytes(kB, Time{1'000'000'000}), 0);
  statistics = network.statistics();
  return classes;
}

TEST(SimNetwork, APortPassesFramesAtItsRateInOneQueue) {
  SimNetwork network(1, {.port = {.ps_per_byte = 1000}});
  Link& a = network.attach({&kA, 1});
  Link& b = network.attach({&kB, 1});
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Numbered one(i);
    a.send({&one.frame, 1}, Time{0});
  }
  std::array<Frame, 8> out;
  EXPECT_EQ(b.receive(out, Time{0}), 0u);
  EXPECT_EQ(network.queued_bytes(kB, Time{0}), 3 * kNumberedBytes);
  for (std::int64_t i = 1; i <= 3; ++i) {
    EXPECT_EQ(network.next_arrival(), Time{i * 1000 * kNumberedBytes});
    ASSERT_EQ(b.receive(out, network.next_arrival()), 1u);
    EXPECT_EQ(load_be<std::uint32_t>(out[0].bytes), i - 1);
  }
}

// RFC 3168, 5: ECT(0) and ECT(1) become CE, what is not capable stays as it is.
TEST(SimNetwork, ALongQueueMarksWhatMayBeMarked) {
  const SwitchPort port{
      .ps_per_byte = 1000, .marks_from = kNumberedBytes, .marks_all_at = 2 * kNumberedBytes};
  SimStatistics seen;
  EXPECT_EQ(through_port(port, 0x6a, 4, seen), (std::vector<std::uint8_t>{0x6a, 0x6a, 0x6b, 0x6b}));
  EXPECT_EQ(seen.marked, 2u);
  EXPECT_EQ(through_port(port, 0x69, 3, seen), (std::vector<std::uint8_t>{0x69, 0x69, 0x6b}));
  EXPECT_EQ(through_port(port, 0x68, 3, seen), (std::vector<std::uint8_t>{0x68, 0x68, 0x68}));
  EXPECT_EQ(seen.marked, 0u);
}

TEST(SimNetwork, BetweenTheThresholdsMarksComeByChance) {
  const SwitchPort port{.ps_per_byte = 1000,
                        .marks_from = 1,
                        .marks_all_at = 10'000 * kNumberedBytes,
                        .marks_at_most = 500};
  SimStatistics seen;
  through_port(port, 2, 5'000, seen);  // the last one meets half of the range: a quarter is marked
  EXPECT_GT(seen.marked, 500u);
  EXPECT_LT(seen.marked, 750u);
}

TEST(SimNetwork, AFullQueueLoses) {
  SimStatistics seen;
  const SwitchPort port{.ps_per_byte = 1000, .queue_bytes = 3 * kNumberedBytes};
  EXPECT_EQ(through_port(port, 2, 5, seen).size(), 3u);
  EXPECT_EQ(seen.overflowed, 2u);
  EXPECT_EQ(seen.marked, 0u);
}

}  // namespace
}  // namespace softhca::link
