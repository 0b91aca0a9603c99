// Work on keys through a reliable connection: windows, invalidation, and WRITEs that are atomic.
#include <gtest/gtest.h>

#include <vector>

#include "transport/requester.h"
#include "transport/responder.h"
#include "transport/test_memory.h"

namespace softhca::transport {
namespace {

using trace::ReasonId;
using wire::Operation;
using wire::Psn;

constexpr Psn kFirstKeyWork{0xff'ffff};

struct KeyRequester {
  FakeMemory memory;
  trace::QpCounters counters;
  Requester requester{{.dest_qpn = {0x14},
                       .initial_psn = kFirstKeyWork,
                       .mtu = 256,
                       .timeout = milliseconds(1),
                       .retry_count = 3,
                       .rnr_retry = 1,
                       .max_reads = 2},
                      memory,
                      counters};
  Time now{1};
  std::uint32_t next_work = 0;

  void post(WorkOpcode opcode, std::uint64_t bytes = 0, bool fence = false) {
    SendWork work;
    work.work = next_work++;
    work.opcode = opcode;
    work.bytes = bytes;
    work.remote_address = 0x1000;
    work.rkey = {0x707};
    work.signaled = true;
    work.fence = fence;
    requester.post(work);
  }
  std::vector<std::uint8_t> leaving() {
    std::vector<std::uint8_t> operations;
    while (const auto out = requester.poll_packet(now))
      operations.push_back(out->headers.bth.opcode);
    return operations;
  }
  void acknowledge(std::uint32_t psn) {
    wire::Headers h;
    h.bth.psn = kFirstKeyWork.plus(psn);
    h.aeth_kind = wire::AethKind::Ack;
    h.aeth_value = wire::kCreditsInvalid;
    requester.on_acknowledge(h, now);
  }
  void respond(std::uint32_t psn, std::uint32_t bytes) {
    wire::Headers h;
    h.bth.opcode = wire::opcode_of(wire::Service::Rc, Operation::ReadResponseOnly);
    h.bth.psn = kFirstKeyWork.plus(psn);
    requester.on_read_response(*wire::find_opcode(h.bth.opcode), h, bytes, now);
  }
  using Done = std::vector<std::pair<std::uint32_t, Status>>;
  Done completions() {
    Done all;
    while (const auto done = requester.poll_completion()) all.push_back({done->work, done->status});
    return all;
  }
};

using KeyDone = KeyRequester::Done;

// A bind takes no PSN; the SEND behind it leaves after it, with its key.
TEST(Requester, ExecutesABindBetweenTheMessagesAroundIt) {
  KeyRequester r;
  r.post(WorkOpcode::Send, 300);
  r.post(WorkOpcode::BindWindow);
  r.post(WorkOpcode::Send, 8);
  ASSERT_TRUE(r.requester.poll_packet(r.now));
  EXPECT_TRUE(r.memory.locals.empty()) << "the first message is not out yet";
  EXPECT_EQ(r.leaving().size(), 2u);
  EXPECT_EQ(r.memory.locals, std::vector{1u});
  EXPECT_TRUE(r.completions().empty()) << "completions come in order";
  r.acknowledge(1);
  EXPECT_EQ(r.completions(), (KeyDone{{0, Status::Success}, {1, Status::Success}}));
  r.acknowledge(2);
  EXPECT_EQ(r.completions(), (KeyDone{{2, Status::Success}}));
}

TEST(Requester, CompletesABindWithNothingAroundIt) {
  KeyRequester r;
  r.post(WorkOpcode::BindWindow);
  r.post(WorkOpcode::LocalInvalidate);
  EXPECT_TRUE(r.leaving().empty());
  EXPECT_EQ(r.completions(), (KeyDone{{0, Status::Success}, {1, Status::Success}}));
  EXPECT_EQ(r.memory.locals, (std::vector{0u, 1u}));
}

// It is done once, whatever is sent again.
TEST(Requester, DoesNotExecuteABindAgainWhenItGoesBack) {
  KeyRequester r;
  r.post(WorkOpcode::Send, 8);
  r.post(WorkOpcode::BindWindow);
  r.post(WorkOpcode::Send, 8);
  EXPECT_EQ(r.leaving().size(), 2u);
  r.now = r.now + milliseconds(2);
  r.requester.on_time(r.now);
  EXPECT_EQ(r.leaving().size(), 2u);
  EXPECT_EQ(r.memory.locals, std::vector{1u});
  r.acknowledge(1);
  EXPECT_EQ(r.completions().size(), 3u);
}

// C23: fenced, an invalidation waits for all before it, WRITEs too.
TEST(Requester, AFencedInvalidationWaitsForAllBeforeIt) {
  KeyRequester r;
  r.post(WorkOpcode::Write, 8);
  r.post(WorkOpcode::LocalInvalidate, 0, true);
  r.post(WorkOpcode::Send, 8);
  EXPECT_EQ(r.leaving().size(), 1u);
  EXPECT_TRUE(r.memory.locals.empty());
  r.acknowledge(0);
  EXPECT_EQ(r.leaving().size(), 1u);
  EXPECT_EQ(r.memory.locals, std::vector{1u});
  r.acknowledge(1);
  EXPECT_EQ(r.completions().size(), 3u);
}

// They waited for each other, for ever.
TEST(Requester, FencedWorkOnKeysDoesNotWaitForItsLike) {
  KeyRequester r;
  r.post(WorkOpcode::BindWindow, 0, true);
  r.post(WorkOpcode::LocalInvalidate, 0, true);
  r.post(WorkOpcode::Send, 8);
  EXPECT_EQ(r.leaving().size(), 1u);
  EXPECT_EQ(r.memory.locals, (std::vector{0u, 1u}));
  EXPECT_EQ(r.completions(), (KeyDone{{0, Status::Success}, {1, Status::Success}}));
}

TEST(Requester, ABindIsCompleteBeforeWhatIsRefusedBehindIt) {
  KeyRequester r;
  r.post(WorkOpcode::BindWindow);
  SendWork refused;
  refused.work = 1;
  refused.opcode = WorkOpcode::LocalInvalidate;
  refused.status = Status::LocalProtection;
  r.requester.post(refused);
  EXPECT_TRUE(r.leaving().empty());
  EXPECT_EQ(r.completions(), (KeyDone{{0, Status::Success}, {1, Status::LocalProtection}}));
}

TEST(Requester, ARefusedBindEndsTheConnectionInItsTurn) {
  KeyRequester r;
  r.memory.local_refusal = {.id = ReasonId::BindRights};
  r.post(WorkOpcode::Send, 8);
  r.post(WorkOpcode::BindWindow);
  r.post(WorkOpcode::Send, 8);
  EXPECT_EQ(r.leaving().size(), 1u) << "nothing behind it leaves";
  EXPECT_TRUE(r.completions().empty());
  r.acknowledge(0);
  EXPECT_EQ(r.completions(),
            (KeyDone{{0, Status::Success}, {1, Status::MwBind}, {2, Status::Flushed}}));
  EXPECT_TRUE(r.requester.failed());
}

TEST(Requester, SaysInTheLastPacketWhichKeyTheSendEnds) {
  KeyRequester r;
  r.post(WorkOpcode::SendInvalidate, 300);
  const auto first = r.requester.poll_packet(r.now);
  const auto last = r.requester.poll_packet(r.now);
  ASSERT_TRUE(first && last);
  EXPECT_EQ(first->headers.bth.opcode, wire::opcode_of(wire::Service::Rc, Operation::SendFirst));
  EXPECT_EQ(last->headers.bth.opcode,
            wire::opcode_of(wire::Service::Rc, Operation::SendLastInvalidate));
  EXPECT_EQ(last->headers.invalidate_key, wire::Key{0x707});
  EXPECT_EQ(first->headers.invalidate_key, wire::Key{});
}

// An atomic WRITE takes one of the peer's resources until its empty READ response comes.
TEST(Requester, AnAtomicWriteIsDoneWithItsResponse) {
  KeyRequester r;
  for (int i = 0; i < 3; ++i) r.post(WorkOpcode::AtomicWrite, 8);
  EXPECT_EQ(r.leaving(), std::vector<std::uint8_t>(
                             2, wire::opcode_of(wire::Service::Rc, Operation::AtomicWrite)));
  r.respond(0, 0);
  EXPECT_EQ(r.completions(), (KeyDone{{0, Status::Success}}));
  EXPECT_EQ(r.leaving().size(), 1u);
  r.respond(1, 8);
  EXPECT_EQ(r.completions(), (KeyDone{{1, Status::BadResponse}, {2, Status::Flushed}}));
}

struct KeyResponder {
  FakeMemory memory;
  trace::QpCounters counters;
  Responder responder{{.dest_qpn = {0x14},
                       .expected_psn = kFirstKeyWork,
                       .mtu = 256,
                       .max_reads = 2,
                       .min_rnr_timer = 5,
                       .may_read = true,
                       .may_write = true,
                       .may_atomic = true},
                      memory,
                      counters};

  void request(Operation operation, std::uint32_t psn, std::uint32_t bytes,
               std::uint64_t address = 0x1000, std::uint32_t dma_length = 8) {
    wire::Headers h;
    h.bth.opcode = wire::opcode_of(wire::Service::Rc, operation);
    h.bth.psn = kFirstKeyWork.plus(psn);
    h.bth.ack_request = true;
    h.remote_address = address;
    h.rkey = {7};
    h.dma_length = dma_length;
    h.invalidate_key = {0x909};
    responder.on_request(*wire::find_opcode(h.bth.opcode), h, bytes);
  }
};

TEST(Responder, InvalidatesBehindTheBytesAndTellsWhichKey) {
  KeyResponder r;
  r.memory.receives = 1;
  r.request(Operation::SendFirst, 0, 256);
  EXPECT_TRUE(r.memory.invalidated.empty());
  r.request(Operation::SendLastInvalidate, 1, 10);
  EXPECT_EQ(r.memory.invalidated, std::vector{wire::Key{0x909}});
  const auto done = r.responder.poll_completion();
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->invalidated);
  EXPECT_EQ(done->invalidated_key, wire::Key{0x909});
  EXPECT_EQ(done->bytes, 266u);
  // A duplicate is acknowledged and does nothing.
  r.request(Operation::SendLastInvalidate, 1, 10);
  EXPECT_EQ(r.memory.invalidated.size(), 1u);
}

// Class J: the message has come, its key does not end: the receive carries the error.
TEST(Responder, RefusesToInvalidateWhatIsNotThePeersToEnd) {
  KeyResponder r;
  r.memory.receives = 1;
  r.memory.invalidate_refusal = {.id = ReasonId::NotInvalidatable};
  r.request(Operation::SendOnlyInvalidate, 0, 10);
  const auto nak = r.responder.poll_packet();
  ASSERT_TRUE(nak);
  EXPECT_EQ(nak->headers.aeth_kind, wire::AethKind::Nak);
  EXPECT_EQ(nak->headers.aeth_value, static_cast<std::uint8_t>(wire::NakCode::RemoteAccess));
  const auto done = r.responder.poll_completion();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, Status::LocalAccess);
  EXPECT_EQ(done->reason.id, ReasonId::NotInvalidatable);
  EXPECT_TRUE(r.responder.failed());
}

TEST(Responder, AnswersAnAtomicWriteWithAReadResponseOfNoBytes) {
  KeyResponder r;
  r.request(Operation::AtomicWrite, 0, 8);
  ASSERT_EQ(r.memory.placed.size(), 1u);
  EXPECT_EQ(r.memory.placed[0].bytes, 8u);
  // A duplicate is answered again, and its bytes are not written again.
  for (int i = 0; i < 2; ++i) {
    const auto out = r.responder.poll_packet();
    ASSERT_TRUE(out);
    EXPECT_EQ(out->headers.bth.opcode,
              wire::opcode_of(wire::Service::Rc, Operation::ReadResponseOnly));
    EXPECT_EQ(out->headers.bth.psn, kFirstKeyWork);
    EXPECT_EQ(out->payload.bytes, 0u);
    r.request(Operation::AtomicWrite, 0, 8);
  }
  EXPECT_EQ(r.memory.placed.size(), 1u);
}

// C11: exactly eight bytes at a multiple of eight, and the packet's own bytes only.
TEST(Responder, RefusesAnAtomicWriteOfAnyOtherForm) {
  struct Form {
    std::uint32_t bytes, dma_length;
    std::uint64_t address;
  };
  for (const Form& form : {Form{0, 0, 0x1000}, Form{0, 8, 0x1000}, Form{1, 1, 0x1000},
                           Form{7, 7, 0x1000}, Form{9, 9, 0x1000}, Form{16, 16, 0x1000},
                           Form{8, 9, 0x1000}, Form{8, 8, 0x1001}, Form{8, 8, 0x1004}}) {
    KeyResponder r;
    r.request(Operation::AtomicWrite, 0, form.bytes, form.address, form.dma_length);
    const auto nak = r.responder.poll_packet();
    ASSERT_TRUE(nak);
    EXPECT_EQ(nak->headers.aeth_kind, wire::AethKind::Nak);
    EXPECT_EQ(nak->headers.aeth_value, static_cast<std::uint8_t>(wire::NakCode::InvalidRequest));
    EXPECT_TRUE(r.memory.placed.empty());
    EXPECT_EQ(r.memory.checked, 0);
  }
}

}  // namespace
}  // namespace softhca::transport
