#include "faults/injector.h"

#include <gtest/gtest.h>

#include <array>

#include "wire/opcode.h"

namespace softhca::faults {
namespace {

using trace::Counter;
using trace::ReasonId;

constexpr wire::Gid kPeer = wire::Gid::of_ipv4({10, 0, 0, 1});
constexpr wire::Gid kOther = wire::Gid::of_ipv4({10, 0, 0, 2});
constexpr std::uint8_t kWriteMiddle = 0x07;
constexpr std::uint8_t kSendOnly = 0x04;

struct Fixture {
  explicit Fixture(std::vector<Fault> faults)
      : injector({.name = "plan.toml", .faults = std::move(faults)}, tracer) {
    injector.note_queue_pair({0x77});
    injector.note_queue_pair({0x55});
    injector.note_peer({0x77}, {0x1077});
    injector.note_peer({0x55}, {0x1055});
  }

  std::vector<std::uint64_t> cells = std::vector<std::uint64_t>(trace::kCounterCount);
  trace::Journal journal{100};
  trace::Tracer tracer{trace::Counters(cells), &journal};
  Injector injector;

  Injector::PacketFate send(std::uint32_t psn, std::uint8_t opcode = kSendOnly,
                            const wire::Gid& to = kPeer, Time now = {}) {
    return on(Side::Out, psn, opcode, to, now);
  }
  Injector::PacketFate on(Side side, std::uint32_t psn, std::uint8_t opcode, const wire::Gid& peer,
                          Time now = {}) {
    std::array<std::byte, 100> packet{};
    packet[0] = std::byte{opcode};
    store_be(Bytes(packet), 4, std::uint32_t{side == Side::In ? 0x55u : 0x1055u});
    store_be(Bytes(packet), 8, 0x8000'0000u | psn);
    return injector.on_packet(side, peer, packet, now);
  }
  // Which of the packets numbered 1 to `count` are lost.
  std::vector<std::uint32_t> lost(std::uint32_t count) {
    std::vector<std::uint32_t> psns;
    for (std::uint32_t psn = 1; psn <= count; ++psn)
      if (send(psn).is_lost) psns.push_back(psn);
    return psns;
  }
  std::uint64_t counted(Counter counter) { return tracer.counters().get(counter); }
};

using Psns = std::vector<std::uint32_t>;

TEST(Injector, HitsEverythingThatFitsUnlessItIsToldWhichTurn) {
  EXPECT_EQ(Fixture({{.what = What::Drop}}).lost(3), (Psns{1, 2, 3}));
  EXPECT_EQ(Fixture({{.what = What::Drop, .nth = 3}}).lost(5), (Psns{3, 4, 5}));
  EXPECT_EQ(Fixture({{.what = What::Drop, .nth = 3, .count = 1}}).lost(5), (Psns{3}));
  EXPECT_EQ(Fixture({{.what = What::Drop, .nth = 2, .every = 3, .count = 2}}).lost(20),
            (Psns{2, 5}));
}

TEST(Injector, CountsOnlyWhatFits) {
  EXPECT_EQ(Fixture({{.what = What::Drop, .qpn = wire::Qpn{0x56}}}).lost(3), Psns{});
  EXPECT_EQ(Fixture({{.what = What::Drop, .qpn = wire::Qpn{0x55}, .nth = 3}}).lost(3), Psns{3});
  EXPECT_EQ(Fixture({{.what = What::Drop, .side = Side::In}}).lost(3), Psns{});
  Fixture by_opcode(
      {{.what = What::Drop, .opcodes = std::bitset<256>().set(kWriteMiddle), .nth = 2}});
  EXPECT_FALSE(by_opcode.send(1, kWriteMiddle).is_lost);
  EXPECT_FALSE(by_opcode.send(2, kSendOnly).is_lost);
  EXPECT_TRUE(by_opcode.send(3, kWriteMiddle).is_lost);
}

// By number or by age, and always the device's own, whichever end the packet names.
TEST(Injector, AQueuePairIsTheDevicesOwn) {
  for (const Side side : {Side::In, Side::Out}) {
    Fixture f({{.what = What::Drop, .nth_qp = 2}});
    EXPECT_TRUE(f.on(side, 1, kSendOnly, kPeer).is_lost);
    EXPECT_FALSE(Fixture({{.what = What::Drop, .nth_qp = 1}}).on(side, 1, 4, kPeer).is_lost);
    f.injector.forget_queue_pair({0x55});
    EXPECT_FALSE(f.on(side, 2, kSendOnly, kPeer).is_lost);
    EXPECT_FALSE(
        Fixture({{.what = What::Drop, .qpn = wire::Qpn{0x1055}}}).on(side, 1, 4, kPeer).is_lost);
  }
  // A datagram says who sends it.
  std::array<std::byte, 60> datagram{};
  datagram[0] = std::byte{0x64};
  store_be(Bytes(datagram), 16, std::uint32_t{0x77});
  Fixture first({{.what = What::Drop, .nth_qp = 1}});
  EXPECT_TRUE(first.injector.on_packet(Side::Out, kPeer, datagram, {}).is_lost);
}

TEST(Injector, ARangeOfPsnsMayPassZero) {
  Fixture f({{.what = What::Drop, .psn = PsnRange{{0xff'fffe}, {1}}}});
  EXPECT_FALSE(f.send(0xff'fffd).is_lost);
  EXPECT_TRUE(f.send(0xff'fffe).is_lost);
  EXPECT_TRUE(f.send(0).is_lost);
  EXPECT_TRUE(f.send(1).is_lost);
  EXPECT_FALSE(f.send(2).is_lost);
}

TEST(Injector, DrawsByItsOwnSeedWhateverElseIsInThePlan) {
  const Fault chance{.what = What::Drop, .seed = 5, .chance = 1u << 29};  // one in eight
  const Psns alone = Fixture({chance}).lost(1000);
  EXPECT_NEAR(static_cast<double>(alone.size()), 125, 40);
  const Fault other{.what = What::Corrupt, .seed = 6, .chance = 1u << 31};
  EXPECT_EQ(Fixture({other, chance}).lost(1000), alone);
  Fault another_seed = chance;
  another_seed.seed = 7;
  EXPECT_NE(Fixture({another_seed}).lost(1000), alone);
}

TEST(Injector, SaysWhatBecomesOfAPacket) {
  Fixture f({{.what = What::Duplicate},
             {.what = What::Delay, .time = microseconds(5)},
             {.what = What::Reorder, .passed_by = 2},
             {.what = What::Corrupt},
             {.what = What::Truncate, .bytes = 20}});
  const auto fate = f.send(1);
  EXPECT_FALSE(fate.is_lost);
  EXPECT_TRUE(fate.is_doubled);
  EXPECT_EQ(fate.late, microseconds(5));
  EXPECT_EQ(fate.passed_by, 2u);
  ASSERT_TRUE(fate.flipped);
  EXPECT_GE(*fate.flipped, wire::kBthBytes * 8);
  EXPECT_LT(*fate.flipped, 800u);
  EXPECT_EQ(fate.kept, 20u);
  EXPECT_EQ(Fixture({{.what = What::Truncate}}).send(1).kept, 50u);
  EXPECT_EQ(Fixture({{.what = What::Truncate, .bytes = 4096}}).send(1).kept, 99u);
}

TEST(Injector, APeerThatIsSeveredIsSilentInBothDirectionsUntilItIsBack) {
  Fixture f({{.what = What::Sever, .side = Side::Out, .nth = 2, .count = 1, .time = seconds(1)}});
  EXPECT_FALSE(f.send(1).is_lost);
  EXPECT_TRUE(f.send(2).is_lost);
  EXPECT_TRUE(f.on(Side::In, 3, kSendOnly, kPeer).is_lost);
  EXPECT_FALSE(f.send(4, kSendOnly, kOther).is_lost);
  EXPECT_FALSE(f.send(5, kSendOnly, kPeer, Time{} + seconds(1)).is_lost);
  EXPECT_EQ(f.counted(Counter::PacketsFaulted), 2u);
  Fixture two({{.what = What::Sever, .count = 2}});  // peers, not packets
  EXPECT_TRUE(two.send(1).is_lost);
  EXPECT_TRUE(two.send(2).is_lost);
  EXPECT_TRUE(two.send(3, kSendOnly, kOther).is_lost);
  Fixture for_ever({{.what = What::Sever}});
  EXPECT_TRUE(for_ever.send(1).is_lost);
  EXPECT_TRUE(for_ever.send(2, kSendOnly, kPeer, Time{} + seconds(100'000)).is_lost);
}

TEST(Injector, WorkFailsWithTheStatusAndAReasonThatNamesTheFault) {
  Fixture f({{.what = What::Drop},
             {.what = What::FailWork,
              .line = 9,
              .opcodes = std::bitset<256>().set(2),
              .wr_id = 7,
              .status = 12}});
  EXPECT_FALSE(f.injector.on_work({1}, 2, 8, {}).reason);
  EXPECT_FALSE(f.injector.on_work({1}, 0, 7, {}).reason);
  const auto fate = f.injector.on_work({1}, 2, 7, {});
  EXPECT_EQ(fate.status, 12);
  EXPECT_EQ(fate.reason.id, ReasonId::InjectedFault);
  EXPECT_EQ(fate.reason.object, 2u);
  EXPECT_EQ(f.injector.origin_text(2), " Injected by fault 2 of plan.toml, line 9.");
  EXPECT_EQ(f.injector.so_far_text(), " Faults of plan.toml injected until now: 1.");
}

TEST(Injector, AResponderIsStalledForAWhileOrForEver) {
  const wire::Bth bth{.opcode = kSendOnly};
  Fixture f({{.what = What::StallResponder, .nth = 2, .count = 1, .time = milliseconds(3)}});
  const Time now = Time{} + seconds(1);
  EXPECT_EQ(f.injector.on_request({1}, bth, now), Time{});
  EXPECT_EQ(f.injector.on_request({1}, bth, now), now + milliseconds(3));
  EXPECT_EQ(f.injector.on_request({1}, bth, now), Time{});
  EXPECT_EQ(Fixture({{.what = What::StallResponder}}).injector.on_request({1}, bth, now),
            Time::never());
}

TEST(Injector, AReceiveIsDeniedAsOftenAsThePlanSays) {
  const wire::Bth bth{.opcode = kSendOnly};
  Fixture f({{.what = What::ForceRnr, .count = 2}});
  EXPECT_TRUE(f.injector.denies_receive({1}, bth, {}));
  EXPECT_TRUE(f.injector.denies_receive({1}, bth, {}));
  EXPECT_FALSE(f.injector.denies_receive({1}, bth, {}));
  EXPECT_EQ(f.counted(Counter::RequestsFaulted), 2u);
}

TEST(Injector, AccessesAreSlowOrRefusedByRegion) {
  Fixture f({{.what = What::SlowDma, .time = microseconds(2)},
             {.what = What::FailTranslation, .side = Side::Out, .region = 2}});
  f.injector.note_region({0x100}, {{0x1000}, 0x1000});
  f.injector.note_region({0x200}, {{0x5000}, 0x1000});
  const auto elsewhere = f.injector.on_access(Side::Out, {{0x1800}, 8}, {});
  EXPECT_FALSE(elsewhere.reason);
  EXPECT_EQ(elsewhere.late, microseconds(2));
  EXPECT_FALSE(f.injector.on_access(Side::In, {{0x5800}, 8}, {}).reason);
  EXPECT_EQ(f.injector.on_access(Side::Out, {{0x5800}, 8}, {}).reason.object, 2u);
  f.injector.note_region({0x200}, {{0x9000}, 0x1000});  // re-registered elsewhere
  EXPECT_FALSE(f.injector.on_access(Side::Out, {{0x5800}, 8}, {}).reason);
  EXPECT_TRUE(f.injector.on_access(Side::Out, {{0x9000}, 8}, {}).reason);
  f.injector.forget_region({0x200});
  EXPECT_FALSE(f.injector.on_access(Side::Out, {{0x9000}, 8}, {}).reason);
}

TEST(Injector, EveryHitIsAnEventThatNamesFaultAndLine) {
  Fixture f({{.what = What::Drop, .line = 3}, {.what = What::Delay, .line = 7, .nth = 2}});
  f.send(41);
  f.send(42, kWriteMiddle);
  const auto events = f.journal.events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2].kind, trace::EventKind::FaultInjected);
  EXPECT_EQ(events[2].object, 2u);
  EXPECT_EQ(events[2].fields, (std::array<std::uint64_t, 5>{
                                  7, static_cast<std::uint64_t>(What::Delay), 0x55, 42, 7}));
  EXPECT_EQ(f.counted(Counter::PacketsFaulted), 3u);
}

// What is no packet is left alone: link tests and raw sockets may send such.
TEST(Injector, LeavesAloneWhatIsShorterThanABth) {
  Fixture f({{.what = What::Drop}});
  EXPECT_FALSE(f.injector.on_packet(Side::Out, kPeer, std::array<std::byte, 11>{}, {}).is_lost);
}

}  // namespace
}  // namespace softhca::faults
