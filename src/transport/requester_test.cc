#include "transport/requester.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "transport/test_memory.h"

namespace softhca::transport {
namespace {

using trace::QpCounter;
using wire::AethKind;
using wire::NakCode;
using wire::Psn;

constexpr std::uint32_t kRequesterMtu = 256;
constexpr Psn kFirst{0xff'fffd};
constexpr Duration kTimeout = milliseconds(1);

struct RequesterTalk {
  explicit RequesterTalk(std::uint8_t retries = 2) : retry_count(retries) {}

  std::uint8_t retry_count;
  FakeMemory memory;
  trace::QpCounters counters;
  Requester requester{{.dest_qpn = {0x20},
                       .initial_psn = kFirst,
                       .mtu = kRequesterMtu,
                       .timeout = kTimeout,
                       .retry_count = retry_count,
                       .rnr_retry = 1,
                       .max_reads = 2},
                      memory,
                      counters};
  Time now{1};
  std::uint32_t next_work = 0;

  void post(WorkOpcode opcode, std::uint64_t bytes, bool fence = false) {
    requester.post({.work = next_work++,
                    .opcode = opcode,
                    .bytes = bytes,
                    .remote_address = 0x1000,
                    .rkey = {7},
                    .immediate = 0,
                    .signaled = true,
                    .solicited = false,
                    .fence = fence,
                    .status = Status::Success,
                    .reason = {}});
  }
  // PSNs (counted from the first) of all that leaves now.
  std::vector<std::uint32_t> leaving() {
    std::vector<std::uint32_t> psns;
    while (const auto out = requester.poll_packet(now))
      psns.push_back(static_cast<std::uint32_t>(wire::ahead(out->headers.bth.psn, kFirst)));
    return psns;
  }
  void answer(AethKind kind, std::uint8_t value, std::uint32_t psn) {
    wire::Headers h;
    h.bth.psn = kFirst.plus(psn);
    h.aeth_kind = kind;
    h.aeth_value = value;
    requester.on_acknowledge(h, now);
  }
  void acknowledge(std::uint32_t psn) { answer(AethKind::Ack, wire::kCreditsInvalid, psn); }
  void nak(NakCode code, std::uint32_t psn) {
    answer(AethKind::Nak, static_cast<std::uint8_t>(code), psn);
  }
  void respond(wire::Operation operation, std::uint32_t psn, std::uint32_t bytes) {
    wire::Headers h;
    h.bth.psn = kFirst.plus(psn);
    requester.on_read_response(*wire::find_opcode(wire::opcode_of(wire::Service::Rc, operation)), h,
                               bytes, now);
  }
  std::vector<Status> completions() {
    std::vector<Status> all;
    while (const auto done = requester.poll_completion()) all.push_back(done->status);
    return all;
  }
};

using Psns = std::vector<std::uint32_t>;
using Statuses = std::vector<Status>;

TEST(Requester, CutsAMessageByThePathMtuAndAsksForAnAckAtItsEnd) {
  RequesterTalk c;
  c.post(WorkOpcode::Write, 600);
  const std::uint8_t opcodes[] = {0x06, 0x07, 0x08};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto out = c.requester.poll_packet(c.now);
    ASSERT_TRUE(out);
    EXPECT_EQ(out->headers.bth.opcode, opcodes[i]);
    EXPECT_EQ(out->headers.bth.ack_request, i == 2);
    EXPECT_EQ(out->payload.offset, i * kRequesterMtu);
    EXPECT_EQ(out->payload.bytes, i == 2 ? 88u : kRequesterMtu);
    EXPECT_EQ(out->headers.dma_length, i == 0 ? 600u : 0u);
  }
  EXPECT_TRUE(c.completions().empty());
  c.acknowledge(2);
  EXPECT_EQ(c.completions(), Statuses{Status::Success});
  EXPECT_EQ(c.requester.next_deadline(), Time::never());
}

TEST(Requester, OneAckRetiresAllBeforeIt) {
  RequesterTalk c;
  for (int i = 0; i < 3; ++i) c.post(WorkOpcode::Send, 10);
  EXPECT_EQ(c.leaving(), (Psns{0, 1, 2}));
  c.acknowledge(1);
  EXPECT_EQ(c.completions().size(), 2u);
}

TEST(Requester, GoesBackToWhatASequenceNakNames) {
  RequesterTalk c;
  c.post(WorkOpcode::Send, 700);
  EXPECT_EQ(c.leaving(), (Psns{0, 1, 2}));
  c.nak(NakCode::SequenceError, 1);
  EXPECT_EQ(c.leaving(), (Psns{1, 2}));
  c.nak(NakCode::SequenceError, 1);  // the same once more, without progress: a duplicate
  EXPECT_EQ(c.leaving(), Psns{});
}

TEST(Requester, AGhostAcknowledgementChangesNothing) {
  RequesterTalk c;
  c.post(WorkOpcode::Send, 10);
  c.acknowledge(0);  // not sent yet
  EXPECT_TRUE(c.completions().empty());
  EXPECT_EQ(c.leaving(), Psns{0});
  c.acknowledge(5);
  EXPECT_TRUE(c.completions().empty());
  c.acknowledge(0);
  c.acknowledge(0);
  EXPECT_EQ(c.completions(), Statuses{Status::Success});
}

TEST(Requester, GivesUpAfterRetryCountTimeouts) {  // C9-139
  RequesterTalk c;
  c.post(WorkOpcode::Send, 10);
  c.post(WorkOpcode::Send, 10);
  EXPECT_EQ(c.leaving(), (Psns{0, 1}));
  for (int retry = 0; retry < 2; ++retry) {
    c.now = c.requester.next_deadline();
    c.requester.on_time(c.now);
    EXPECT_EQ(c.leaving(), (Psns{0, 1}));
  }
  c.now = c.requester.next_deadline();
  c.requester.on_time(c.now);
  EXPECT_EQ(c.completions(), (Statuses{Status::RetriesExceeded, Status::Flushed}));
  EXPECT_EQ(c.now, Time{1} + kTimeout + kTimeout * 2 + kTimeout * 4);
}

// The local timeout is a lower bound, and four times that an upper one.
TEST(Requester, WaitsLongerForEachRetryUntilThereIsProgress) {
  RequesterTalk c(7);
  c.post(WorkOpcode::Send, 10);
  c.post(WorkOpcode::Send, 10);
  c.leaving();
  for (const int times : {1, 2, 4, 4, 4}) {
    EXPECT_EQ(c.requester.next_deadline(), c.now + kTimeout * times);
    c.now = c.requester.next_deadline();
    c.requester.on_time(c.now);
    c.leaving();
  }
  c.acknowledge(0);
  EXPECT_EQ(c.requester.next_deadline(), c.now + kTimeout);
}

TEST(Requester, ProgressGivesTheRetriesBack) {
  RequesterTalk c;
  for (int i = 0; i < 5; ++i) c.post(WorkOpcode::Send, 10);
  EXPECT_EQ(c.leaving().size(), 5u);
  for (std::uint32_t i = 0; i < 5; ++i) {
    c.now = c.requester.next_deadline();
    c.requester.on_time(c.now);
    c.leaving();
    c.acknowledge(i);
  }
  EXPECT_EQ(c.completions().size(), 5u);
}

TEST(Requester, WaitsAsLongAsAnRnrNakSays) {
  RequesterTalk c;
  c.post(WorkOpcode::Send, 10);
  c.leaving();
  c.answer(AethKind::RnrNak, 1, 0);  // 10 us
  EXPECT_EQ(c.leaving(), Psns{});
  EXPECT_EQ(c.requester.next_deadline(), c.now + microseconds(10));
  c.now = c.requester.next_deadline();
  c.requester.on_time(c.now);
  EXPECT_EQ(c.leaving(), Psns{0});
  c.answer(AethKind::RnrNak, 1, 0);
  EXPECT_EQ(c.completions(), Statuses{Status::RnrRetriesExceeded});
}

TEST(Requester, ALostReadResponseIsAskedForFromThereOn) {  // C9-110: an implied NAK
  RequesterTalk c;
  c.post(WorkOpcode::Read, 1000);
  EXPECT_EQ(c.leaving(), Psns{0});
  c.respond(wire::Operation::ReadResponseFirst, 0, kRequesterMtu);
  c.respond(wire::Operation::ReadResponseMiddle, 2, kRequesterMtu);
  const auto again = c.requester.poll_packet(c.now);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->headers.bth.psn, kFirst.plus(1));
  EXPECT_EQ(again->headers.remote_address, 0x1000u + kRequesterMtu);
  EXPECT_EQ(again->headers.dma_length, 1000 - kRequesterMtu);
  c.respond(wire::Operation::ReadResponseFirst, 1, kRequesterMtu);
  c.respond(wire::Operation::ReadResponseMiddle, 2, kRequesterMtu);
  c.respond(wire::Operation::ReadResponseLast, 3, 1000 - 3 * kRequesterMtu);
  EXPECT_EQ(c.completions(), Statuses{Status::Success});
  ASSERT_EQ(c.memory.placed.size(), 4u);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(c.memory.placed[i].offset, i * kRequesterMtu);
}

TEST(Requester, AnAckDoesNotStandForAReadResponse) {
  RequesterTalk c;
  c.post(WorkOpcode::Read, 10);
  c.post(WorkOpcode::Send, 10);
  EXPECT_EQ(c.leaving(), (Psns{0, 1}));
  c.acknowledge(1);
  EXPECT_TRUE(c.completions().empty());
  EXPECT_EQ(c.leaving(), (Psns{0, 1}));
}

TEST(Requester, NoMoreReadsAreOutstandingThanAllowed) {
  RequesterTalk c;
  for (int i = 0; i < 4; ++i) c.post(WorkOpcode::Read, 10);
  EXPECT_EQ(c.leaving(), (Psns{0, 1}));
  c.respond(wire::Operation::ReadResponseOnly, 0, 10);
  EXPECT_EQ(c.leaving(), Psns{2});
}

// IBTA 10.3.1.5: what has begun goes on, and drained is when nothing has.
TEST(Requester, IsDrainedWhenEveryRequestThatBeganIsDone) {
  RequesterTalk c;
  EXPECT_TRUE(c.requester.is_drained());
  c.post(WorkOpcode::Write, 600);
  ASSERT_TRUE(c.requester.poll_packet(c.now));
  c.post(WorkOpcode::Write, 10);
  c.requester.hold(true);
  c.acknowledge(0);
  EXPECT_FALSE(c.requester.is_drained()) << "all that left is acknowledged, not all has left";
  EXPECT_EQ(c.leaving(), (Psns{1, 2}));
  EXPECT_FALSE(c.requester.is_drained());
  c.acknowledge(2);
  EXPECT_TRUE(c.requester.is_drained());
  EXPECT_TRUE(c.leaving().empty());
}

TEST(Requester, AFenceWaitsForReadsAndForNothingElse) {  // C23
  RequesterTalk c;
  c.post(WorkOpcode::Write, 10);
  c.post(WorkOpcode::Send, 10, true);
  EXPECT_EQ(c.leaving(), (Psns{0, 1}));
  c.post(WorkOpcode::Read, 10);
  c.post(WorkOpcode::Send, 10, true);
  EXPECT_EQ(c.leaving(), Psns{2});
  c.respond(wire::Operation::ReadResponseOnly, 2, 10);
  EXPECT_EQ(c.leaving(), Psns{3});
}

TEST(Requester, ARequestRefusedHereFailsInItsTurnAndStopsWhatIsBehindIt) {
  RequesterTalk c;
  c.post(WorkOpcode::Send, 10);
  c.requester.post({.work = 1,
                    .opcode = WorkOpcode::Send,
                    .bytes = 0,
                    .remote_address = 0,
                    .rkey = {},
                    .immediate = 0,
                    .signaled = true,
                    .solicited = false,
                    .fence = false,
                    .status = Status::LocalProtection,
                    .reason = {.id = trace::ReasonId::KeyStale}});
  c.next_work = 2;
  c.post(WorkOpcode::Send, 10);
  EXPECT_EQ(c.leaving(), Psns{0});
  EXPECT_TRUE(c.completions().empty());
  c.acknowledge(0);
  EXPECT_EQ(c.completions(), (Statuses{Status::Success, Status::LocalProtection, Status::Flushed}));
}

TEST(Requester, EachFatalNakHasItsStatus) {
  const std::pair<NakCode, Status> kRows[] = {
      {NakCode::InvalidRequest, Status::RemoteInvalidRequest},
      {NakCode::RemoteAccess, Status::RemoteAccess},
      {NakCode::RemoteOperational, Status::RemoteOperation}};
  for (const auto& [code, status] : kRows) {
    RequesterTalk c;
    c.post(WorkOpcode::Send, 10);
    c.post(WorkOpcode::Send, 10);
    c.leaving();
    c.nak(code, 1);  // acknowledges the first
    EXPECT_EQ(c.completions(), (Statuses{Status::Success, status}));
    c.post(WorkOpcode::Send, 10);
    EXPECT_EQ(c.completions(), Statuses{Status::Flushed});
  }
}

TEST(Requester, AResponseOfTheWrongLengthIsABadResponse) {
  RequesterTalk c;
  c.post(WorkOpcode::Read, 10);
  c.leaving();
  c.respond(wire::Operation::ReadResponseOnly, 0, 11);
  EXPECT_EQ(c.completions(), Statuses{Status::BadResponse});
  EXPECT_TRUE(c.memory.placed.empty());
}

TEST(Requester, CountsTimeoutsAndWhatIsSentAgainForThem) {
  RequesterTalk c;
  c.post(WorkOpcode::Send, 700);
  c.leaving();
  EXPECT_EQ(c.counters.get(QpCounter::Retransmits), 0u);
  c.now = c.now + kTimeout;
  c.requester.on_time(c.now);
  EXPECT_EQ(c.leaving(), (Psns{0, 1, 2}));
  EXPECT_EQ(c.counters.get(QpCounter::Timeouts), 1u);
  EXPECT_EQ(c.counters.get(QpCounter::Retransmits), 3u);
  c.acknowledge(2);
  EXPECT_EQ(c.counters.get(QpCounter::AcksReceived), 1u);
}

TEST(Requester, CountsNaksByTheirKind) {
  const std::pair<NakCode, QpCounter> kinds[] = {
      {NakCode::SequenceError, QpCounter::SequenceNaksReceived},
      {NakCode::InvalidRequest, QpCounter::InvalidRequestNaksReceived},
      {NakCode::RemoteAccess, QpCounter::RemoteAccessNaksReceived},
      {NakCode::RemoteOperational, QpCounter::RemoteOperationalNaksReceived}};
  for (const auto& [code, counter] : kinds) {
    RequesterTalk c;
    c.post(WorkOpcode::Send, 10);
    c.leaving();
    c.nak(code, 0);
    for (const auto& [other, each] : kinds)
      EXPECT_EQ(c.counters.get(each), other == code ? 1u : 0u) << static_cast<int>(code);
    EXPECT_EQ(c.counters.get(QpCounter::Timeouts), 0u);
  }
}

TEST(Requester, CountsAWaitForTheReceiverOnceAndAllOfItsTime) {
  RequesterTalk c;
  c.post(WorkOpcode::Send, 10);
  c.leaving();
  const Time start = c.now;
  c.answer(AethKind::RnrNak, 1, 0);  // 10 us
  EXPECT_EQ(c.counters.get(QpCounter::RnrNaksReceived), 1u);
  EXPECT_EQ(c.counters.get(QpCounter::RnrWaits), 1u);
  c.now = c.requester.next_deadline();
  c.requester.on_time(c.now);
  EXPECT_EQ(c.counters.get(QpCounter::RnrWaitPs), static_cast<std::uint64_t>((c.now - start).ps));
  EXPECT_EQ(c.leaving(), Psns{0});
  c.now = c.now + milliseconds(1);
  c.acknowledge(0);
  EXPECT_EQ(c.counters.get(QpCounter::RnrWaitPs), 10'000'000u);
  EXPECT_EQ(c.counters.get(QpCounter::RnrWaits), 1u);
}

TEST(Requester, CountsTheTimeInWhichAFullWindowHoldsWorkBack) {
  RequesterTalk c;
  c.post(WorkOpcode::Write, std::uint64_t{SendWindow::kLeast + 1} * kRequesterMtu);
  EXPECT_EQ(c.leaving().size(), SendWindow::kLeast);
  c.now = c.now + microseconds(3);
  c.leaving();  // whoever looks meanwhile sees what has passed
  EXPECT_EQ(c.counters.get(QpCounter::WindowFullPs), 3'000'000u);
  c.now = c.now + microseconds(4);
  c.acknowledge(0);
  EXPECT_EQ(c.leaving(), Psns{SendWindow::kLeast});
  EXPECT_EQ(c.counters.get(QpCounter::WindowFullPs), 7'000'000u);
  c.now = c.now + microseconds(5);
  EXPECT_TRUE(c.leaving().empty());
  EXPECT_EQ(c.counters.get(QpCounter::WindowFullPs), 7'000'000u) << "nothing waits any more";
}

TEST(Requester, CountsTheTimeInWhichTooManyReadsHoldOneBack) {
  RequesterTalk c;
  for (int i = 0; i < 3; ++i) c.post(WorkOpcode::Read, 10);  // two may be outstanding
  EXPECT_EQ(c.leaving(), (Psns{0, 1}));
  c.now = c.now + microseconds(6);
  c.respond(wire::Operation::ReadResponseOnly, 0, 10);
  EXPECT_EQ(c.leaving(), Psns{2});
  EXPECT_EQ(c.counters.get(QpCounter::WindowFullPs), 6'000'000u);
}

// Annex A14: every request names the peer's queue, whatever its place in a message.
TEST(Requester, AnXrcRequestNamesTheQueueInEveryPacket) {
  FakeMemory memory;
  trace::QpCounters counters;
  Requester requester({.dest_qpn = {0x20},
                       .initial_psn = kFirst,
                       .mtu = kRequesterMtu,
                       .timeout = kTimeout,
                       .retry_count = 1,
                       .rnr_retry = 1,
                       .max_reads = 4,
                       .service = wire::Service::Xrc},
                      memory, counters);
  std::uint32_t work = 0;
  for (const WorkOpcode opcode :
       {WorkOpcode::SendImm, WorkOpcode::Write, WorkOpcode::Read, WorkOpcode::CompareSwap})
    requester.post({.work = work++,
                    .opcode = opcode,
                    .bytes = is_atomic(opcode) ? 8u : 700u,
                    .remote_address = 0x1000,
                    .rkey = {7},
                    .xrc_srqn = 0x4711});
  std::vector<std::uint8_t> opcodes;
  while (const auto out = requester.poll_packet(Time{1})) {
    const wire::OpcodeInfo* info = wire::find_opcode(out->headers.bth.opcode);
    EXPECT_EQ(info->service, wire::Service::Xrc);
    EXPECT_TRUE(info->has(wire::Header::Xrceth));
    EXPECT_EQ(out->headers.xrc_srqn, 0x4711u);
    opcodes.push_back(out->headers.bth.opcode);
  }
  EXPECT_EQ(opcodes, (std::vector<std::uint8_t>{0xa0, 0xa1, 0xa3, 0xa6, 0xa7, 0xa8, 0xac, 0xb3}));
}

// 9.7.6.1.3: the timer is for an answer that was asked for, and a slow sender asks late.
TEST(Requester, APacketThatWaitedForItsTurnStartsTheTimerAnew) {
  RequesterTalk t;
  t.post(WorkOpcode::Write, 2 * kRequesterMtu);
  ASSERT_TRUE(t.requester.poll_packet(t.now));
  t.now = t.now + (kTimeout - picoseconds(1));
  ASSERT_TRUE(t.requester.poll_packet(t.now));
  t.requester.on_paced(t.now);
  EXPECT_EQ(t.requester.next_deadline(), t.now + kTimeout);
  t.acknowledge(1);
  t.requester.on_paced(t.now);
  EXPECT_EQ(t.requester.next_deadline(), Time::never());
}

}  // namespace
}  // namespace softhca::transport
