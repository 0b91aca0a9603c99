#include "transport/responder.h"

#include <gtest/gtest.h>

#include "transport/test_memory.h"

namespace softhca::transport {
namespace {

using trace::QpCounter;
using wire::AethKind;
using wire::Operation;
using wire::Psn;

constexpr std::uint32_t kResponderMtu = 256;

// A responder and the packets of its peer.
struct ResponderTalk {
  FakeMemory memory;
  trace::QpCounters counters;
  Responder responder{{.dest_qpn = {0x20},
                       .expected_psn = {0xff'fffe},
                       .mtu = kResponderMtu,
                       .max_reads = 2,
                       .min_rnr_timer = 5,
                       .may_read = true,
                       .may_write = true},
                      memory,
                      counters};

  void send(Operation operation, std::uint32_t psn, std::uint32_t bytes, bool ack = true,
            std::uint32_t dma_length = 0, std::uint64_t address = 0x1000) {
    const wire::OpcodeInfo* info = wire::find_opcode(wire::opcode_of(wire::Service::Rc, operation));
    wire::Headers h;
    h.bth.opcode = info->opcode;
    h.bth.psn = Psn{0xff'fffe}.plus(psn);
    h.bth.ack_request = ack;
    h.dma_length = dma_length;
    h.remote_address = address;
    h.rkey = {7};
    responder.on_request(*info, h, bytes);
  }
  // The answers so far: kind and PSN (from the first), then silence.
  void expect(std::initializer_list<std::pair<AethKind, std::uint32_t>> answers) {
    for (const auto& [kind, psn] : answers) {
      const auto out = responder.poll_packet();
      ASSERT_TRUE(out);
      EXPECT_EQ(out->headers.aeth_kind, kind);
      EXPECT_EQ(out->headers.bth.psn, Psn{0xff'fffe}.plus(psn));
    }
    EXPECT_FALSE(responder.poll_packet());
  }
};

TEST(Responder, AcksADuplicateWriteWithoutExecutingIt) {  // C9-105
  ResponderTalk c;
  c.send(Operation::WriteOnly, 0, 10, true, 10);
  c.expect({{AethKind::Ack, 0}});
  c.send(Operation::WriteOnly, 0, 10, true, 10);
  c.expect({{AethKind::Ack, 0}});
  EXPECT_EQ(c.memory.placed.size(), 1u);
}

TEST(Responder, SendsOneNakForAGapAndStaysSilentUntilItIsClosed) {  // C9-112
  ResponderTalk c;
  c.memory.receives = 9;
  c.send(Operation::SendOnly, 1, 1);
  c.send(Operation::SendOnly, 2, 1);
  c.expect({{AethKind::Nak, 0}});
  c.send(Operation::SendOnly, 0, 1);
  c.expect({{AethKind::Ack, 0}});
  c.send(Operation::SendOnly, 2, 1);
  c.expect({{AethKind::Nak, 1}});
}

TEST(Responder, CoalescesAcknowledgements) {  // C9-107
  ResponderTalk c;
  c.memory.receives = 3;
  for (std::uint32_t psn = 0; psn < 3; ++psn) c.send(Operation::SendOnly, psn, 1);
  c.expect({{AethKind::Ack, 2}});
}

TEST(Responder, AnswersWithoutAReceiveThatItIsNotReadyEachTime) {  // C9-118
  ResponderTalk c;
  c.send(Operation::SendOnly, 0, 1);
  c.expect({{AethKind::RnrNak, 0}});
  c.send(Operation::SendOnly, 1, 1);  // behind it: silence
  c.expect({});
  c.send(Operation::SendOnly, 0, 1);
  c.expect({{AethKind::RnrNak, 0}});
  c.memory.receives = 1;
  c.send(Operation::SendOnly, 0, 1);
  c.expect({{AethKind::Ack, 0}});
  EXPECT_FALSE(c.responder.failed());
}

TEST(Responder, KeepsEachAnswerOnceHoweverOftenItIsAskedFor) {
  ResponderTalk c;
  c.send(Operation::WriteOnly, 0, 10, true, 10);
  for (int i = 0; i < 1000; ++i) {
    c.send(Operation::SendOnly, 1, 1);              // nobody has posted a receive
    c.send(Operation::WriteOnly, 0, 10, true, 10);  // a duplicate
  }
  c.expect({{AethKind::Ack, 0}, {AethKind::RnrNak, 1}});
  c.send(Operation::SendOnly, 1, 1);
  c.expect({{AethKind::RnrNak, 1}});
}

TEST(Responder, FlushesTheReceiveThatAMessageWasFilling) {  // C29
  ResponderTalk c;
  c.memory.receives = 2;
  c.send(Operation::SendFirst, 0, kResponderMtu);
  c.responder.abandon();
  c.responder.abandon();
  const auto done = c.responder.poll_completion();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, Status::Flushed);
  EXPECT_FALSE(c.responder.poll_completion());
  EXPECT_FALSE(c.responder.poll_failure());
  c.send(Operation::SendLast, 1, 1);
  EXPECT_EQ(c.memory.placed.size(), 1u);
}

TEST(Responder, RefusesWhatDoesNotFollow) {  // table 39
  for (const Operation bad : {Operation::SendMiddle, Operation::SendLast, Operation::WriteLast}) {
    ResponderTalk c;
    c.memory.receives = 1;
    c.send(bad, 0, bad == Operation::SendMiddle ? kResponderMtu : 1);
    c.expect({{AethKind::Nak, 0}});
    EXPECT_TRUE(c.responder.failed());
  }
  ResponderTalk c;
  c.memory.receives = 2;
  c.send(Operation::SendFirst, 0, kResponderMtu);
  c.send(Operation::WriteMiddle, 1, kResponderMtu);
  EXPECT_TRUE(c.responder.failed());
}

TEST(Responder, RefusesPayloadsThatDoNotFillTheMtuOrDoNotAddUp) {
  struct Case {
    Operation operation;
    std::uint32_t bytes, dma_length;
  };
  for (const Case t :
       {Case{Operation::SendFirst, kResponderMtu - 1, 0},
        Case{Operation::SendOnly, kResponderMtu + 1, 0}, Case{Operation::WriteOnly, 16, 64},
        Case{Operation::WriteFirst, kResponderMtu, kResponderMtu}}) {
    ResponderTalk c;
    c.memory.receives = 1;
    c.send(t.operation, 0, t.bytes, true, t.dma_length);
    c.expect({{AethKind::Nak, 0}});
    EXPECT_TRUE(c.memory.placed.empty());
  }
}

TEST(Responder, AnswersAReadInPiecesOfTheMtuAndNumbersWhatFollowsBehindThem) {
  ResponderTalk c;
  c.send(Operation::ReadRequest, 0, 0, true, 600);
  c.send(Operation::WriteOnly, 3, 4, true, 4);
  const std::uint32_t bytes[] = {256, 256, 88};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto out = c.responder.poll_packet();
    ASSERT_TRUE(out);
    EXPECT_EQ(out->headers.bth.psn, Psn{0xff'fffe}.plus(i));
    EXPECT_EQ(out->payload.bytes, bytes[i]);
    EXPECT_EQ(out->payload.address, 0x1000u + i * kResponderMtu);
  }
  c.expect({{AethKind::Ack, 3}});
}

// C18: a READ that comes again may ask for a part of what it asked for, and for nothing else.
TEST(Responder, ARepeatedReadMustLieWithinTheFirst) {
  ResponderTalk c;
  c.send(Operation::ReadRequest, 0, 0, true, 600);
  while (c.responder.poll_packet()) {
  }
  const auto repeat = [&](std::uint32_t psn, std::uint32_t length, std::uint64_t address) {
    c.send(Operation::ReadRequest, psn, 0, true, length, address);
    int packets = 0;
    while (c.responder.poll_packet()) ++packets;
    return packets;
  };
  EXPECT_EQ(repeat(0, 600, 0x1000), 3);
  EXPECT_EQ(repeat(1, 344, 0x1000 + kResponderMtu), 2);
  EXPECT_EQ(repeat(1, 345, 0x1000 + kResponderMtu), 0);
  EXPECT_EQ(repeat(1, 344, 0x1000), 0);
  EXPECT_EQ(repeat(0, 601, 0x1000), 0);
  EXPECT_EQ(repeat(0, 1024, ~std::uint64_t{0} - 1023), 0);
  EXPECT_FALSE(c.responder.failed());
}

TEST(Responder, AReadWhoseMemoryHasGoneIsAnsweredByANak) {  // C21
  ResponderTalk c;
  c.send(Operation::ReadRequest, 0, 0, true, 600);
  ASSERT_TRUE(c.responder.poll_packet());
  ASSERT_TRUE(c.responder.poll_packet());
  c.responder.on_payload_fault({.id = trace::ReasonId::KeyStale});
  c.expect({{AethKind::Nak, 1}});
  EXPECT_TRUE(c.responder.failed());
}

TEST(Responder, NeverAcknowledgesTheNumberOfARead) {
  ResponderTalk c;
  c.send(Operation::WriteOnly, 0, 4, true, 4);
  c.send(Operation::ReadRequest, 1, 0, true, 4);
  while (c.responder.poll_packet()) {
  }
  c.send(Operation::WriteOnly, 0, 4, true, 4);  // the duplicate is acknowledged as what it is
  c.expect({{AethKind::Ack, 0}});
}

TEST(Responder, CountsDuplicatesAndWhatComesAheadOfItsTurn) {
  ResponderTalk c;
  c.send(Operation::WriteOnly, 0, 10, true, 10);
  c.send(Operation::WriteOnly, 0, 10, true, 10);
  c.expect({{AethKind::Ack, 0}});
  EXPECT_EQ(c.counters.get(QpCounter::AcksSent), 1u) << "one stands for both";
  EXPECT_EQ(c.counters.get(QpCounter::Duplicates), 1u);
  c.send(Operation::WriteOnly, 3, 10, true, 10);
  c.expect({{AethKind::Nak, 1}});
  EXPECT_EQ(c.counters.get(QpCounter::OutOfOrder), 1u);
  EXPECT_EQ(c.counters.get(QpCounter::SequenceNaksSent), 1u);
}

TEST(Responder, CountsTheNaksThatItSendsByTheirKind) {
  ResponderTalk invalid;
  invalid.send(Operation::SendLast, 0, 1);
  invalid.expect({{AethKind::Nak, 0}});
  EXPECT_EQ(invalid.counters.get(QpCounter::InvalidRequestNaksSent), 1u);
  ResponderTalk access;
  access.memory.refusal = {.id = trace::ReasonId::KeyStale};
  access.send(Operation::WriteOnly, 0, 10, true, 10);
  access.expect({{AethKind::Nak, 0}});
  EXPECT_EQ(access.counters.get(QpCounter::RemoteAccessNaksSent), 1u);
  ResponderTalk operational;
  operational.memory.place_refusal = {.id = trace::ReasonId::FrameGone};
  operational.send(Operation::WriteOnly, 0, 10, true, 10);
  operational.expect({{AethKind::Nak, 0}});
  EXPECT_EQ(operational.counters.get(QpCounter::RemoteOperationalNaksSent), 1u);
  ResponderTalk unready;
  unready.send(Operation::SendOnly, 0, 10);
  unready.expect({{AethKind::RnrNak, 0}});
  EXPECT_EQ(unready.counters.get(QpCounter::RnrNaksSent), 1u);
  EXPECT_EQ(unready.counters.get(QpCounter::SequenceNaksSent), 0u);
}

// A responder of XRC and the packets of its peer, each of which names a queue.
struct XrcTalk {
  FakeMemory memory;
  trace::QpCounters counters;
  Responder responder{{.dest_qpn = {0x20},
                       .expected_psn = {0},
                       .mtu = kResponderMtu,
                       .max_reads = 2,
                       .min_rnr_timer = 5,
                       .may_read = true,
                       .may_write = true,
                       .service = wire::Service::Xrc},
                      memory,
                      counters};

  XrcTalk() { memory.shared_queue = 9; }
  std::optional<Emission> send(Operation operation, std::uint32_t psn, std::uint32_t bytes,
                               std::uint32_t srqn, std::uint32_t dma_length = 0) {
    const wire::OpcodeInfo* info =
        wire::find_opcode(wire::opcode_of(wire::Service::Xrc, operation));
    wire::Headers h;
    h.bth.opcode = info->opcode;
    h.bth.psn = Psn{psn};
    h.bth.ack_request = true;
    h.xrc_srqn = srqn;
    h.dma_length = dma_length;
    h.remote_address = 0x1000;
    h.rkey = {7};
    responder.on_request(*info, h, bytes);
    return responder.poll_packet();
  }
};

TEST(Responder, AnswersXrcWithXrcOpcodes) {
  XrcTalk c;
  c.memory.receives = 1;
  const auto ack = c.send(Operation::SendOnly, 0, 10, 9);
  ASSERT_TRUE(ack);
  EXPECT_EQ(ack->headers.bth.opcode, 0xb1);
  const auto response = c.send(Operation::ReadRequest, 1, 0, 9, 20);
  ASSERT_TRUE(response);
  EXPECT_EQ(response->headers.bth.opcode, 0xb0);
  EXPECT_EQ(response->payload.srqn, 9u);
}

// Annex A14; what is said again is said again whatever the duplicate names.
TEST(Responder, RefusesXrcRequestsForQueuesThatAreNotThere) {
  XrcTalk c;
  const auto ack = c.send(Operation::WriteOnly, 0, 10, 9, 10);
  ASSERT_TRUE(ack);
  EXPECT_EQ(ack->headers.aeth_kind, AethKind::Ack);
  const auto again = c.send(Operation::WriteOnly, 0, 10, 8, 10);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->headers.aeth_kind, AethKind::Ack);
  const auto nak = c.send(Operation::WriteOnly, 1, 10, 8, 10);
  ASSERT_TRUE(nak);
  EXPECT_EQ(nak->headers.aeth_kind, AethKind::Nak);
  EXPECT_EQ(nak->headers.aeth_value, static_cast<std::uint8_t>(wire::NakCode::InvalidRequest));
  EXPECT_EQ(c.memory.placed.size(), 1u);
  EXPECT_EQ(c.responder.poll_failure()->reason.id, trace::ReasonId::XrcQueueUnknown);
}

TEST(Responder, AnXrcMessageKeepsToItsQueue) {
  XrcTalk c;
  EXPECT_TRUE(c.send(Operation::WriteFirst, 0, kResponderMtu, 9, 400));
  c.memory.shared_queue = 8;  // both are there, one at a time
  const auto nak = c.send(Operation::WriteLast, 1, 400 - kResponderMtu, 8);
  ASSERT_TRUE(nak);
  EXPECT_EQ(nak->headers.aeth_kind, AethKind::Nak);
}

}  // namespace
}  // namespace softhca::transport
