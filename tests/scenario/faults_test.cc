// Plans of faults: what each kind comes to at both ends, with the statuses, states and reasons.
#include "pair.h"

namespace softhca::sim {
namespace {

using faults::Fault;
using faults::Plan;
using faults::What;
using trace::Counter;
using trace::ReasonId;
using transport::QpState;
using transport::Status;
using transport::WorkOpcode;

constexpr std::uint32_t kOneInTen = 429'496'730;
constexpr std::uint8_t kSendOnly = 0x04;
constexpr std::uint8_t kWriteOnly = 0x0a;

std::bitset<256> only(std::uint8_t opcode) { return std::bitset<256>().set(opcode); }

// Two hosts, the first of which has a plan, or both.
struct Faulty {
  explicit Faulty(const std::vector<Fault>& first, const std::vector<Fault>& second = {},
                  ConnectionSettings connection = {}, bool record = false)
      : pair(connection, settings(first, second, record)) {}

  static WorldSettings settings(const std::vector<Fault>& first, const std::vector<Fault>& second,
                                bool record) {
    WorldSettings s;
    s.network.delay = microseconds(1);
    s.plans = {{"plan.toml", first}, {"plan.toml", second}};
    s.record = record;
    return s;
  }

  void write(std::uint64_t wr_id, std::uint32_t bytes = 64) {
    std::array sges{pair.a.sge(0, bytes)};
    auto request = remote_request(WorkOpcode::Write, sges, pair.b.start.value, pair.b.key);
    request.wr_id = wr_id;
    pair.post(pair.connection.a, request);
  }
  void send(std::uint64_t wr_id, std::uint32_t bytes = 64) {
    std::array sges{pair.a.sge(0, bytes)};
    auto request = remote_request(WorkOpcode::Send, sges, 0, {});
    request.wr_id = wr_id;
    pair.post(pair.connection.a, request);
  }
  void receive(std::uint64_t wr_id, std::uint32_t bytes = 64) {
    std::array sges{pair.b.sge(0, bytes)};
    pair.post_receive(pair.connection.b, wr_id, sges);
  }
  std::vector<driver::Completion> done_a() { return pair.completions(pair.connection.a); }
  std::vector<driver::Completion> done_b() { return pair.completions(pair.connection.b); }
  QpState state_a() { return pair.connection.a.qp->state(); }
  QpState state_b() { return pair.connection.b.qp->state(); }
  std::uint64_t count_a(Counter counter) { return pair.world.host(0).counter(counter); }
  std::uint64_t count_b(Counter counter) { return pair.world.host(1).counter(counter); }

  Pair pair;
};

// What is lost, twice there, late, out of order, damaged or cut short is repaired by the transport.
TEST(Faults, EveryPacketFaultIsRecoveredFrom) {
  for (const What what :
       {What::Drop, What::Duplicate, What::Delay, What::Reorder, What::Corrupt, What::Truncate}) {
    const Fault fault{.what = what, .seed = 3, .chance = kOneInTen, .time = microseconds(30)};
    Faulty f({fault}, {fault});
    const auto pattern = f.pair.world.host(0).load(f.pair.a.start, 8000);
    f.pair.world.host(1).fill(f.pair.b.start, 8000, std::byte{});
    for (std::uint64_t i = 0; i < 20; ++i) f.write(i, 8000);
    f.pair.settle();
    const auto done = f.done_a();
    ASSERT_EQ(done.size(), 20u) << faults::what_name(what);
    for (const driver::Completion& one : done) EXPECT_EQ(one.status, Status::Success);
    EXPECT_EQ(f.pair.world.host(1).load(f.pair.b.start, 8000), pattern);
    EXPECT_GT(f.count_a(Counter::PacketsFaulted), 0u) << faults::what_name(what);
    EXPECT_GT(f.count_b(Counter::PacketsFaulted), 0u) << faults::what_name(what);
    f.pair.expect_surroundings_untouched();
  }
}

TEST(Faults, OneLostPacketIsSentAgain) {
  Faulty f({{.what = What::Drop, .nth_qp = 1, .opcodes = only(kWriteOnly), .nth = 2, .count = 1}});
  for (std::uint64_t i = 1; i <= 3; ++i) f.write(i);
  f.pair.settle();
  EXPECT_EQ(f.done_a().size(), 3u);
  EXPECT_EQ(f.count_a(Counter::PacketsFaulted), 1u);
  EXPECT_EQ(f.count_b(Counter::OutOfOrder), 1u);
  EXPECT_GE(f.count_a(Counter::Retransmits), 1u);
}

TEST(Faults, WhatIsDamagedOrShortNeverPassesAsAPacket) {
  Faulty corrupt({{.what = What::Corrupt, .side = faults::Side::Out, .count = 1}});
  corrupt.write(1);
  corrupt.pair.settle();
  EXPECT_EQ(corrupt.count_b(Counter::IcrcErrors) + corrupt.count_b(Counter::PacketsMalformed), 1u);
  EXPECT_EQ(corrupt.done_a().at(0).status, Status::Success);
  Faulty shorter({{.what = What::Truncate, .side = faults::Side::Out, .count = 1, .bytes = 10}});
  shorter.write(1);
  shorter.pair.settle();
  EXPECT_EQ(shorter.count_b(Counter::PacketsMalformed), 1u);
  EXPECT_EQ(shorter.done_a().at(0).status, Status::Success);
}

TEST(Faults, ASeveredPeerEndsTheConnectionByItsRetries) {
  ConnectionSettings connection;
  connection.retry_count = 2;
  Faulty f({{.what = What::Sever, .opcodes = only(kWriteOnly), .nth = 2, .count = 1}}, {},
           connection);
  f.write(1);
  f.pair.settle(milliseconds(1));
  f.write(2);
  f.write(3);
  f.pair.settle();
  const auto done = f.done_a();
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].status, Status::Success);
  EXPECT_EQ(done[1].status, Status::RetriesExceeded);
  EXPECT_EQ(done[1].reason, ReasonId::RetriesSpent);
  EXPECT_EQ(done[2].status, Status::Flushed);
  EXPECT_EQ(f.state_a(), QpState::Error);
  EXPECT_EQ(f.state_b(), QpState::Rts);
}

TEST(Faults, APeerThatIsSeveredForAMomentIsMetAgain) {
  Faulty f({{.what = What::Sever, .count = 1, .time = milliseconds(6)}});
  f.write(1);
  f.pair.settle();
  EXPECT_EQ(f.done_a().at(0).status, Status::Success);
  EXPECT_GE(f.count_a(Counter::Timeouts), 1u);
}

// What was posted before completes, what is behind is flushed, the queue pair is in ERR, and the
// reason says who did it.
TEST(Faults, WorkFailsByPlanAsItWouldBySelf) {
  for (const int number : {1, 2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 19, 20, 21}) {
    const auto status = static_cast<std::uint8_t>(number);
    Faulty f({{.what = What::FailWork, .line = 3, .nth = 2, .count = 1, .status = status}});
    std::vector<std::string> told;
    f.pair.world.host(0).engine().set_reason_listener([&](trace::Telling, std::string_view,
                                                          const trace::Reason& reason,
                                                          std::string_view particulars) {
      told.push_back(trace::reason_text(reason, particulars));
    });
    for (std::uint64_t i = 1; i <= 3; ++i) f.write(i);
    f.pair.settle();
    const auto done = f.done_a();
    ASSERT_EQ(done.size(), 3u);
    EXPECT_EQ(done[0].status, Status::Success);
    EXPECT_EQ(done[1].status, static_cast<Status>(status));
    EXPECT_EQ(done[1].reason, ReasonId::InjectedFault);
    EXPECT_EQ(done[1].wr_id, 2u);
    EXPECT_EQ(done[2].status, Status::Flushed);
    EXPECT_EQ(f.state_a(), QpState::Error);
    EXPECT_EQ(f.count_a(Counter::WorkFaulted), 1u);
    ASSERT_EQ(told.size(), 1u);
    EXPECT_NE(told[0].find("Injected by fault 1 of plan.toml, line 3."), std::string::npos);
  }
}

TEST(Faults, WorkIsChosenByOperationAndWrId) {
  Faulty f({{.what = What::FailWork, .opcodes = only(2), .wr_id = 9, .status = 12}});
  f.receive(1);
  f.write(9);
  f.send(8);
  f.send(9);
  f.pair.settle();
  const auto done = f.done_a();
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].status, Status::Success);
  EXPECT_EQ(done[1].status, Status::Success);
  EXPECT_EQ(done[2].status, Status::RetriesExceeded);
}

TEST(Faults, FlushedWorkTakesNoTurn) {
  Faulty f({{.what = What::FailWork, .nth = 3, .count = 1, .status = 21}});
  f.write(1);
  f.write(2);
  transport::QpAttributes attributes;
  attributes.state = QpState::Error;
  ASSERT_TRUE(f.pair.world.host(0).engine().modify_qp(
      *f.pair.connection.a.qp, attributes,
      transport::QpAttributeMask(transport::QpAttribute::State), f.pair.world.now()));
  f.write(3);
  f.pair.settle();
  for (const driver::Completion& one : f.done_a()) EXPECT_EQ(one.status, Status::Flushed);
  EXPECT_EQ(f.count_a(Counter::WorkFaulted), 0u);

  // Nor what was rung for together with the request that fails.
  Faulty together({{.what = What::FailWork, .status = 21}});
  std::array sges{together.pair.a.sge(0, 64)};
  const auto request =
      remote_request(WorkOpcode::Write, sges, together.pair.b.start.value, together.pair.b.key);
  driver::Engine& engine = together.pair.world.host(0).engine();
  for (const bool more : {true, true, false})
    ASSERT_TRUE(engine.post_send(*together.pair.connection.a.qp, request, more, {}));
  together.pair.settle();
  EXPECT_EQ(together.done_a().size(), 3u);
  EXPECT_EQ(together.count_a(Counter::WorkFaulted), 1u);
}

// Datagrams and unreliable connections stop the sending half alone, as for a failure of their own.
TEST(Faults, OfAnUnreliableConnectionOnlyTheSendingHalfFails) {
  ConnectionSettings connection;
  connection.type = transport::QpType::Uc;
  Faulty f({{.what = What::FailWork, .nth = 2, .count = 1, .status = 4}}, {}, connection);
  f.write(1);
  f.write(2);
  f.pair.settle();
  const auto done = f.done_a();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::Success);
  EXPECT_EQ(done[1].status, Status::LocalProtection);
  EXPECT_EQ(done[1].reason, ReasonId::InjectedFault);
  EXPECT_EQ(f.state_a(), QpState::Sqe);
}

TEST(Faults, AResponderThatStallsIsSentToAgainAndAnswersLate) {
  Faulty f({}, {{.what = What::StallResponder, .count = 1, .time = milliseconds(6)}});
  f.pair.world.host(0).fill(f.pair.a.start, 64, std::byte{0x77});
  f.write(1);
  f.pair.settle(milliseconds(5));
  EXPECT_TRUE(f.done_a().empty());
  EXPECT_TRUE(f.pair.is_filled(f.pair.b, 0, 64, std::byte{0x77}));  // it was done, and not said
  f.pair.settle();
  const auto done = f.done_a();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::Success);
  EXPECT_GE(f.count_b(Counter::Duplicates), 1u);
  EXPECT_EQ(f.count_b(Counter::RequestsFaulted), 1u);
}

TEST(Faults, AResponderThatStallsForEverIsGivenUp) {
  ConnectionSettings connection;
  connection.retry_count = 1;
  Faulty f({}, {{.what = What::StallResponder, .nth = 2, .count = 1}}, connection);
  f.write(1);
  f.write(2);
  f.pair.settle();
  const auto done = f.done_a();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::RetriesExceeded);
  EXPECT_EQ(done[1].status, Status::Flushed);
  EXPECT_EQ(f.state_a(), QpState::Error);
  EXPECT_EQ(f.state_b(), QpState::Rts);
  EXPECT_EQ(f.count_b(Counter::AcksSent), 0u);
}

TEST(Faults, AReceiverIsNotReadyAsOftenAsPlanned) {
  ConnectionSettings connection;
  connection.rnr_retry = 3;
  Faulty f({}, {{.what = What::ForceRnr, .opcodes = only(kSendOnly), .count = 3}}, connection);
  f.receive(1);
  f.send(2);
  f.pair.settle();
  EXPECT_EQ(f.done_a().at(0).status, Status::Success);
  EXPECT_EQ(f.done_b().at(0).wr_id, 1u);
  EXPECT_EQ(f.count_b(Counter::RnrNaksSent), 3u);
}

TEST(Faults, AReceiverThatIsNeverReadyIsGivenUp) {
  ConnectionSettings connection;
  connection.rnr_retry = 1;
  Faulty f({}, {{.what = What::ForceRnr}}, connection);
  f.receive(1);
  f.send(2);
  f.pair.settle();
  const auto done = f.done_a();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::RnrRetriesExceeded);
  EXPECT_EQ(done[0].reason, ReasonId::RnrRetriesSpent);
  EXPECT_TRUE(f.done_b().empty());  // the receive is still there
}

// How long a WRITE of 4000 bytes takes to complete.
Duration write_time(const std::vector<Fault>& first) {
  Faulty f(first);
  const Time start = f.pair.world.now();
  f.write(1, 4000);
  std::vector<driver::Completion> done(1);
  EXPECT_TRUE(
      f.pair.world.run_until([&] { return f.pair.connection.a.cq->poll(done) == 1; }, seconds(1)));
  EXPECT_EQ(done[0].status, Status::Success);
  return f.pair.world.now() - start;
}

// The payload of the first region registered is read late, so its packets leave late.
TEST(Faults, SlowMemoryDelaysWhatDependsOnIt) {
  const Fault slow{.what = What::SlowDma, .region = 1, .time = microseconds(100)};
  const Duration usual = write_time({});
  EXPECT_LT(usual, microseconds(50));
  EXPECT_GE(write_time({slow}), usual + microseconds(100));
  Fault another = slow;
  another.region = 2;
  EXPECT_EQ(write_time({another}), usual);
  Fault writes = slow;
  writes.side = faults::Side::Out;
  EXPECT_EQ(write_time({writes}), usual);
}

TEST(Faults, ATranslationThatFailsLocallyFailsTheRequest) {
  Faulty f({{.what = What::FailTranslation, .line = 5, .region = 1}});
  f.write(1);
  f.write(2);
  f.pair.settle();
  const auto done = f.done_a();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::LocalQpOperation);
  EXPECT_EQ(done[0].reason, ReasonId::InjectedFault);
  EXPECT_EQ(done[1].status, Status::Flushed);
  EXPECT_EQ(f.state_a(), QpState::Error);
  EXPECT_EQ(f.count_a(Counter::IommuFaults), 1u);
  EXPECT_EQ(f.count_a(Counter::AccessesFaulted), 1u);
}

TEST(Faults, ATranslationThatFailsAtTheTargetIsARemoteError) {
  Faulty f({}, {{.what = What::FailTranslation, .side = faults::Side::Out, .region = 1}});
  f.write(1);
  f.pair.settle();
  EXPECT_EQ(f.done_a().at(0).status, Status::RemoteOperation);
  EXPECT_EQ(f.state_a(), QpState::Error);
  EXPECT_EQ(f.state_b(), QpState::Error);
  ASSERT_EQ(f.pair.events_b.async.size(), 1u);
  EXPECT_EQ(f.pair.events_b.async[0].reason, ReasonId::InjectedFault);
  EXPECT_TRUE(f.pair.is_filled(f.pair.b, 0, kBufferBytes, std::byte{0x11}));
}

std::uint64_t hash_of_run(std::uint64_t fault_seed) {
  const std::vector<Fault> faults{
      {.what = What::Drop, .seed = fault_seed, .chance = kOneInTen},
      {.what = What::Delay, .seed = fault_seed + 1, .chance = kOneInTen, .time = microseconds(30)},
      {.what = What::Corrupt, .seed = fault_seed + 2, .chance = kOneInTen}};
  Faulty f(faults, faults, {}, true);
  for (std::uint64_t i = 0; i < 20; ++i) f.write(i, 8000);
  f.pair.settle();
  EXPECT_EQ(f.done_a().size(), 20u);
  return f.pair.world.journal_hash();
}

TEST(Faults, TheSamePlanAndSeedAreTheSameRun) {
  const std::uint64_t once = hash_of_run(1);
  EXPECT_EQ(hash_of_run(1), once);
  EXPECT_NE(hash_of_run(10), once);
}

}  // namespace
}  // namespace softhca::sim
