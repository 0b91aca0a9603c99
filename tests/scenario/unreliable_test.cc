// Unreliable connections between simulated hosts: whole messages, or nothing.
#include <set>

#include "pair.h"

namespace softhca::sim {
namespace {

using driver::CompletionOpcode;
using trace::Counter;
using trace::ReasonId;
using transport::QpState;
using transport::Status;
using transport::WorkOpcode;

ConnectionSettings unreliable() {
  ConnectionSettings settings;
  settings.type = transport::QpType::Uc;
  return settings;
}

driver::SendRequest message(WorkOpcode opcode, std::span<const driver::Sge> sges,
                            const Buffer& target, std::uint64_t wr_id = 1) {
  driver::SendRequest request = remote_request(opcode, sges, target.start.value, target.key);
  request.wr_id = wr_id;
  request.immediate = 0x1234'5678;
  return request;
}

TEST(Unreliable, MovesMessagesOfEveryKind) {
  Pair pair(unreliable());
  pair.a.host->fill(pair.a.start, 3000, std::byte{0x77});
  std::array from{pair.a.sge(0, 3000)};
  std::array into{pair.b.sge(4096, 3000)};
  pair.post_receive(pair.connection.b, 10, into);
  pair.post_receive(pair.connection.b, 11, {});
  pair.post(pair.connection.a, message(WorkOpcode::SendImm, from, pair.b));
  pair.post(pair.connection.a, message(WorkOpcode::Write, from, pair.b));
  pair.post(pair.connection.a, message(WorkOpcode::WriteImm, {}, pair.b));
  pair.settle();
  for (const driver::Completion& done : pair.completions(pair.connection.a))
    EXPECT_EQ(done.status, Status::Success);
  const auto received = pair.completions(pair.connection.b);
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(received[0].opcode, CompletionOpcode::Receive);
  EXPECT_EQ(received[0].byte_count, 3000u);
  EXPECT_EQ(received[0].immediate, 0x1234'5678u);
  EXPECT_EQ(received[1].opcode, CompletionOpcode::ReceiveRdmaWithImmediate);
  EXPECT_TRUE(pair.is_filled(pair.b, 0, 3000, std::byte{0x77}));
  EXPECT_TRUE(pair.is_filled(pair.b, 4096, 3000, std::byte{0x77}));
  EXPECT_EQ(pair.world.host(1).counter(Counter::AcksSent), 0u);
  pair.expect_surroundings_untouched();
}

// Loss, duplication and reordering: what arrives is whole, whatever is missing; each sender is
// done.
TEST(Unreliable, DeliversWholeMessagesOnly) {
  WorldSettings settings;
  settings.seed = 3;
  settings.network.loss = 100;
  settings.network.reordering = 50;
  settings.network.duplication = 20;
  settings.network.delay_spread = microseconds(5);
  Pair pair(unreliable(), settings);
  constexpr std::uint32_t kMessages = 300;
  constexpr std::uint32_t kBytes = 2500;  // three packets
  std::size_t sent = 0, received = 0, posted = 0;
  std::set<std::uint8_t> seen;
  std::array into{pair.b.sge(0, kBytes)};
  for (int i = 0; i < 4; ++i) pair.post_receive(pair.connection.b, 1, into);
  pair.world.run_until(
      [&] {
        sent += pair.completions(pair.connection.a).size();
        for (const driver::Completion& done : pair.completions(pair.connection.b)) {
          EXPECT_EQ(done.status, Status::Success);
          EXPECT_EQ(done.byte_count, kBytes);
          ++received;
          pair.post_receive(pair.connection.b, 1, into);
        }
        if (posted < kMessages && sent == posted) {
          std::array from{pair.a.sge(0, kBytes)};
          pair.post(pair.connection.a, message(WorkOpcode::Send, from, pair.b));
          ++posted;
        }
        return posted == kMessages && sent == posted;
      },
      seconds(10));
  pair.settle();
  received += pair.completions(pair.connection.b).size();
  EXPECT_EQ(sent, kMessages);
  EXPECT_GT(received, kMessages / 2);
  EXPECT_LT(received, kMessages);
  EXPECT_GT(pair.world.host(1).counter(Counter::UnreliableDropped), 0u);
  EXPECT_EQ(pair.connection.b.qp->state(), QpState::Rts);
  pair.expect_surroundings_untouched();
}

// Class D: the peer that is refused never hears of it, and both go on. No event either.
TEST(Unreliable, DropsARefusedWriteInSilence) {
  Pair pair(unreliable());
  std::array from{pair.a.sge(0, 3000)};
  auto request = message(WorkOpcode::Write, from, pair.b);
  request.rkey.value ^= 1;
  pair.post(pair.connection.a, request);
  request = message(WorkOpcode::Write, from, pair.b, 2);
  request.remote_address += kBufferBytes - 2999;
  pair.post(pair.connection.a, request);
  pair.settle();
  const auto done = pair.completions(pair.connection.a);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::Success);
  EXPECT_EQ(done[1].status, Status::Success);
  EXPECT_TRUE(pair.is_filled(pair.b, 0, kBufferBytes, std::byte{0x11}));
  EXPECT_EQ(pair.world.host(1).counter(Counter::UnreliableDropped), 6u);
  EXPECT_TRUE(pair.events_b.async.empty());
  EXPECT_EQ(pair.connection.b.qp->state(), QpState::Rts);
  pair.a.host->fill(pair.a.start, 3000, std::byte{0x22});
  pair.post(pair.connection.a, message(WorkOpcode::Write, from, pair.b, 3));
  pair.settle();
  EXPECT_TRUE(pair.is_filled(pair.b, 0, 3000, std::byte{0x22}));
}

TEST(Unreliable, AReceiveThatIsTooSmallEndsTheReceiver) {
  Pair pair(unreliable());
  std::array from{pair.a.sge(0, 3000)};
  std::array into{pair.b.sge(0, 2999)};
  pair.post_receive(pair.connection.b, 10, into);
  pair.post_receive(pair.connection.b, 11, into);
  pair.post(pair.connection.a, message(WorkOpcode::Send, from, pair.b));
  pair.settle();
  const auto received = pair.completions(pair.connection.b);
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(received[0].status, Status::LocalLength);
  EXPECT_EQ(received[0].reason, ReasonId::ReceiveTooSmall);
  EXPECT_EQ(received[1].status, Status::Flushed);
  EXPECT_EQ(pair.connection.b.qp->state(), QpState::Error);
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::Success);
}

// IBTA 10.3.1.6: only the sending half stops, until it is set to RTS again.
TEST(Unreliable, ABadLocalKeyStopsTheSendingHalf) {
  Pair pair(unreliable());
  std::array bad{driver::Sge{pair.a.start.value, 8, pair.a.key.value ^ 1}};
  std::array good{pair.a.sge(0, 8)};
  pair.post(pair.connection.a, message(WorkOpcode::Write, bad, pair.b, 1));
  pair.post(pair.connection.a, message(WorkOpcode::Write, good, pair.b, 2));
  pair.settle();
  const auto done = pair.completions(pair.connection.a);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::LocalProtection);
  EXPECT_EQ(done[1].status, Status::Flushed);
  EXPECT_EQ(pair.connection.a.qp->state(), QpState::Sqe);
  // It still receives.
  std::array into{pair.a.sge(0, 8)};
  pair.post_receive(pair.connection.a, 20, into);
  std::array from{pair.b.sge(0, 8)};
  pair.post(pair.connection.b, message(WorkOpcode::Send, from, pair.a));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).wr_id, 20u);
  transport::QpAttributes attributes;
  attributes.state = QpState::Rts;
  ASSERT_TRUE(pair.a.host->engine().modify_qp(*pair.connection.a.qp, attributes,
                                              transport::QpAttribute::State, pair.world.now()));
  pair.post(pair.connection.a, message(WorkOpcode::Write, good, pair.b, 3));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::Success);
}

TEST(Unreliable, HasNoReadsAndNoAtomics) {
  Pair pair(unreliable());
  std::array into{pair.a.sge(0, 8)};
  for (const WorkOpcode opcode : {WorkOpcode::Read, WorkOpcode::FetchAdd, WorkOpcode::CompareSwap,
                                  WorkOpcode::AtomicWrite, WorkOpcode::SendInvalidate}) {
    const auto posted = pair.a.host->engine().post_send(
        *pair.connection.a.qp, message(opcode, into, pair.b), false, pair.world.now());
    ASSERT_FALSE(posted);
    EXPECT_EQ(posted.error().id, ReasonId::OpcodeNotSupported);
  }
}

}  // namespace
}  // namespace softhca::sim
