// Unreliable connections: whole messages or nothing, and nobody is told.
#include "transport/unreliable.h"

#include <gtest/gtest.h>

#include <vector>

#include "transport/test_memory.h"

namespace softhca::transport {
namespace {

using trace::ReasonId;
using wire::Operation;
using wire::Psn;

constexpr Psn kFirstUnreliable{0xff'ffff};

struct Unreliable {
  explicit Unreliable(bool may_write = true)
      : connection({.dest_qpn = {0x14},
                    .expected_psn = kFirstUnreliable,
                    .mtu = 256,
                    .may_write = may_write},
                   memory) {
    connection.start(kFirstUnreliable);
  }

  ReasonId packet(Operation operation, std::uint32_t psn, std::uint32_t bytes,
                  std::uint32_t dma_length = 0) {
    wire::Headers h;
    h.bth.opcode = wire::opcode_of(wire::Service::Uc, operation);
    h.bth.psn = kFirstUnreliable.plus(psn);
    h.remote_address = 0x1000;
    h.rkey = {7};
    h.dma_length = dma_length;
    h.immediate = 0xabcd;
    return connection.on_packet(*wire::find_opcode(h.bth.opcode), h, bytes).id;
  }
  void post(WorkOpcode opcode, std::uint64_t bytes, Status status = Status::Success) {
    connection.post({.work = next_work++,
                     .opcode = opcode,
                     .bytes = bytes,
                     .remote_address = 0x2000,
                     .rkey = {9},
                     .immediate = 0x1234,
                     .signaled = true,
                     .solicited = true,
                     .status = status,
                     .reason = {}});
  }
  std::vector<Status> sent() {
    std::vector<Status> all;
    while (const auto done = connection.poll_send_completion()) all.push_back(done->status);
    return all;
  }
  std::vector<ReceiveCompletion> received() {
    std::vector<ReceiveCompletion> all;
    while (const auto done = connection.poll_receive_completion()) all.push_back(*done);
    return all;
  }

  FakeMemory memory;
  UnreliableConnection connection;
  std::uint32_t next_work = 0;
};

TEST(UnreliableConnection, CutsAMessageByTheMtuAndIsDoneWithItsLastPacket) {
  Unreliable u;
  u.post(WorkOpcode::WriteImm, 600);
  u.post(WorkOpcode::Send, 0);
  constexpr Operation kExpected[] = {Operation::WriteFirst, Operation::WriteMiddle,
                                     Operation::WriteLastImm, Operation::SendOnly};
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto out = u.connection.poll_packet();
    ASSERT_TRUE(out);
    const wire::Headers& h = out->headers;
    EXPECT_EQ(h.bth.opcode, wire::opcode_of(wire::Service::Uc, kExpected[i]));
    EXPECT_EQ(h.bth.psn, kFirstUnreliable.plus(i));
    EXPECT_EQ(h.bth.dest_qpn, wire::Qpn{0x14});
    EXPECT_FALSE(h.bth.ack_request);
    EXPECT_EQ(h.bth.solicited, i >= 2);
    EXPECT_EQ(h.dma_length, i == 0 ? 600u : 0u);
    EXPECT_EQ(h.immediate, i == 2 ? 0x1234u : 0u);
    EXPECT_EQ(out->payload.bytes, i < 2 ? 256u : i == 2 ? 88u : 0u);
    EXPECT_EQ(u.sent().size(), i < 2 ? 0u : 1u) << i;
  }
  EXPECT_FALSE(u.connection.poll_packet());
}

// Where one fails those behind it are flushed, until it is set to RTS again.
TEST(UnreliableConnection, StopsTheSendingHalfAtWhatFails) {
  Unreliable u;
  u.post(WorkOpcode::Send, 10);
  u.post(WorkOpcode::Send, 10, Status::LocalProtection);
  u.post(WorkOpcode::Send, 10);
  EXPECT_TRUE(u.connection.poll_packet());
  EXPECT_FALSE(u.connection.poll_packet());
  u.post(WorkOpcode::Send, 10);
  EXPECT_EQ(u.sent(), (std::vector{Status::Success, Status::LocalProtection, Status::Flushed,
                                   Status::Flushed}));
  u.connection.resume();
  u.post(WorkOpcode::Send, 600);
  EXPECT_TRUE(u.connection.poll_packet());
  u.connection.on_payload_fault(Status::LocalQpOperation, {.id = ReasonId::FrameGone});
  EXPECT_EQ(u.sent(), std::vector{Status::LocalQpOperation}) << "its second packet does not leave";
  EXPECT_FALSE(u.connection.poll_packet());
}

TEST(UnreliableConnection, ExecutesWorkOnKeysInItsTurn) {
  Unreliable u;
  u.post(WorkOpcode::Send, 300);
  u.post(WorkOpcode::BindWindow, 0);
  u.post(WorkOpcode::Send, 10);
  EXPECT_TRUE(u.connection.poll_packet());
  EXPECT_TRUE(u.connection.poll_packet());
  EXPECT_TRUE(u.memory.locals.empty());
  EXPECT_TRUE(u.connection.poll_packet());
  EXPECT_EQ(u.memory.locals, std::vector{1u});
  EXPECT_EQ(u.sent(), std::vector(3, Status::Success));
  u.memory.local_refusal = {.id = ReasonId::WindowBound};
  u.post(WorkOpcode::BindWindow, 0);
  u.post(WorkOpcode::Send, 10);
  EXPECT_FALSE(u.connection.poll_packet());
  EXPECT_EQ(u.sent(), (std::vector{Status::MwBind, Status::Flushed}));
}

TEST(UnreliableConnection, PutsAMessageTogether) {
  Unreliable u;
  u.memory.receives = 2;
  EXPECT_EQ(u.packet(Operation::SendFirst, 0, 256), ReasonId::None);
  EXPECT_EQ(u.packet(Operation::SendLastImm, 1, 44), ReasonId::None);
  EXPECT_EQ(u.packet(Operation::WriteFirst, 2, 256, 257), ReasonId::None);
  EXPECT_EQ(u.packet(Operation::WriteLastImm, 3, 1), ReasonId::None);
  const auto done = u.received();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].bytes, 300u);
  EXPECT_EQ(done[0].immediate, 0xabcdu);
  EXPECT_FALSE(done[0].is_write);
  EXPECT_TRUE(done[1].is_write);
  EXPECT_EQ(done[1].bytes, 257u);
  ASSERT_EQ(u.memory.placed.size(), 4u);
  EXPECT_EQ(u.memory.placed[1].offset, 256u);
  EXPECT_EQ(u.memory.placed[3].address, 0x1000u + 256);
}

// IBTA 9.8.2.2: with one packet missing the message is nothing, and its receive the next one's.
TEST(UnreliableConnection, DropsAMessageWithAGapAndKeepsItsReceive) {
  Unreliable u;
  u.memory.receives = 1;
  EXPECT_EQ(u.packet(Operation::SendFirst, 0, 256), ReasonId::None);
  EXPECT_EQ(u.packet(Operation::SendMiddle, 2, 256), ReasonId::SequenceError);
  EXPECT_EQ(u.packet(Operation::SendLast, 3, 10), ReasonId::SequenceError);
  EXPECT_TRUE(u.received().empty());
  // A message may begin with any PSN.
  EXPECT_EQ(u.packet(Operation::SendOnly, 9, 5), ReasonId::None);
  const auto done = u.received();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].work, 0u);
  EXPECT_EQ(done[0].bytes, 5u);
  EXPECT_EQ(u.memory.placed.back().offset, 0u);
}

TEST(UnreliableConnection, EndsAMessageWhereAnotherBegins) {
  Unreliable u;
  u.memory.receives = 1;
  EXPECT_EQ(u.packet(Operation::SendFirst, 0, 256), ReasonId::None);
  EXPECT_EQ(u.packet(Operation::WriteOnly, 1, 8, 8), ReasonId::None);
  EXPECT_EQ(u.packet(Operation::SendLast, 2, 8), ReasonId::SequenceError);
  EXPECT_EQ(u.packet(Operation::WriteFirst, 3, 256, 512), ReasonId::None);
  EXPECT_EQ(u.packet(Operation::SendLast, 4, 8), ReasonId::UnexpectedOpcode);
  EXPECT_EQ(u.packet(Operation::WriteLast, 5, 256), ReasonId::SequenceError);
  EXPECT_TRUE(u.received().empty());
}

// Class D: dropped in silence, and the connection lives.
TEST(UnreliableConnection, DropsWhatItMayNotExecute) {
  Unreliable u;
  u.memory.refusal = {.id = ReasonId::KeyStale};
  EXPECT_EQ(u.packet(Operation::WriteFirst, 0, 256, 512), ReasonId::KeyStale);
  EXPECT_EQ(u.packet(Operation::WriteLast, 1, 256), ReasonId::SequenceError);
  EXPECT_TRUE(u.memory.placed.empty());
  u.memory.refusal = {};
  EXPECT_EQ(u.packet(Operation::SendOnly, 2, 8), ReasonId::NoReceivePosted);
  EXPECT_EQ(u.packet(Operation::WriteOnlyImm, 3, 8, 8), ReasonId::NoReceivePosted);
  EXPECT_EQ(u.packet(Operation::WriteOnly, 4, 8, 9), ReasonId::LengthMismatch);
  EXPECT_EQ(u.packet(Operation::SendOnly, 5, 257), ReasonId::LengthMismatch);
  EXPECT_TRUE(u.memory.placed.empty());
  Unreliable forbidden(false);
  EXPECT_EQ(forbidden.packet(Operation::WriteOnly, 0, 8, 8), ReasonId::QpRightMissing);
  EXPECT_EQ(forbidden.memory.checked, 0);
}

// What this side did wrong is told.
TEST(UnreliableConnection, CompletesAReceiveThatIsTooSmallWithTheError) {
  Unreliable u;
  u.memory.receives = 2;
  u.memory.receive_bytes = 300;
  EXPECT_EQ(u.packet(Operation::SendFirst, 0, 256), ReasonId::None);
  EXPECT_EQ(u.packet(Operation::SendLast, 1, 45), ReasonId::ReceiveTooSmall);
  const auto done = u.received();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::LocalLength);
  EXPECT_EQ(done[0].reason.id, ReasonId::ReceiveTooSmall);
  EXPECT_EQ(u.packet(Operation::SendFirst, 2, 256), ReasonId::None);
  u.connection.fail_receives();
  const auto flushed = u.received();
  ASSERT_EQ(flushed.size(), 1u);
  EXPECT_EQ(flushed[0].status, Status::Flushed);
  EXPECT_EQ(flushed[0].work, 1u);
}

}  // namespace
}  // namespace softhca::transport
