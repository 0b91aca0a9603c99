// Atomics, as requester and as responder: executed once, whatever the cable does.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "transport/requester.h"
#include "transport/responder.h"
#include "transport/test_memory.h"

namespace softhca::transport {
namespace {

using wire::NakCode;
using wire::Operation;
using wire::Psn;

constexpr Psn kFirstAtomic{0xff'ffff};

std::string hex_of(const wire::Headers& headers) {
  std::array<std::byte, wire::kMaxHeaderBytes> bytes;
  const std::size_t count = wire::emit(headers, bytes);
  std::string hex;
  for (std::size_t i = 0; i < count; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[std::to_integer<unsigned>(bytes[i]) >> 4];
    hex += kDigits[std::to_integer<unsigned>(bytes[i]) & 15];
  }
  return hex;
}

struct AtomicRequester {
  explicit AtomicRequester(Requester::Settings settings = {.dest_qpn = {0x14},
                                                           .initial_psn = kFirstAtomic,
                                                           .mtu = 256,
                                                           .timeout = milliseconds(1),
                                                           .retry_count = 3,
                                                           .rnr_retry = 1,
                                                           .max_reads = 2})
      : requester(settings, memory, counters) {}

  FakeMemory memory;
  trace::QpCounters counters;
  Requester requester;
  Time now{1};
  std::uint32_t next_work = 0;

  void post(WorkOpcode opcode, std::uint64_t swap_or_add = 1, std::uint64_t compare = 0,
            bool fence = false) {
    SendWork work;
    work.work = next_work++;
    work.opcode = opcode;
    work.bytes = kAtomicBytes;
    work.remote_address = 0x1000;
    work.rkey = {7};
    work.swap_or_add = swap_or_add;
    work.compare = compare;
    work.signaled = true;
    work.fence = fence;
    requester.post(work);
  }
  std::vector<std::uint32_t> leaving() {
    std::vector<std::uint32_t> psns;
    while (const auto out = requester.poll_packet(now))
      psns.push_back(static_cast<std::uint32_t>(wire::ahead(out->headers.bth.psn, kFirstAtomic)));
    return psns;
  }
  wire::Headers answer(std::uint32_t psn, wire::AethKind kind, std::uint8_t value) {
    wire::Headers h;
    h.bth.psn = kFirstAtomic.plus(psn);
    h.aeth_kind = kind;
    h.aeth_value = value;
    return h;
  }
  void acknowledge(std::uint32_t psn) {
    requester.on_acknowledge(answer(psn, wire::AethKind::Ack, wire::kCreditsInvalid), now);
  }
  void refuse(std::uint32_t psn, NakCode code) {
    requester.on_acknowledge(answer(psn, wire::AethKind::Nak, static_cast<std::uint8_t>(code)),
                             now);
  }
  void respond(std::uint32_t psn) {
    requester.on_atomic_response(answer(psn, wire::AethKind::Ack, wire::kCreditsInvalid), now);
  }
  std::vector<Status> completions() {
    std::vector<Status> all;
    while (const auto done = requester.poll_completion()) all.push_back(done->status);
    return all;
  }
};

using AtomicPsns = std::vector<std::uint32_t>;

struct AtomicResponder {
  explicit AtomicResponder(Psn expected = kFirstAtomic)
      : responder({.dest_qpn = {0x14},
                   .expected_psn = expected,
                   .mtu = 256,
                   .max_reads = 2,
                   .min_rnr_timer = 5,
                   .may_read = true,
                   .may_write = true,
                   .may_atomic = true},
                  memory, counters) {}

  FakeMemory memory;
  trace::QpCounters counters;
  Responder responder;

  void request(Operation operation, std::uint32_t psn, std::uint64_t swap_or_add,
               std::uint64_t compare = 0, std::uint64_t address = 0x1000) {
    wire::Headers h;
    h.bth.opcode = wire::opcode_of(wire::Service::Rc, operation);
    h.bth.psn = kFirstAtomic.plus(psn);
    h.bth.ack_request = true;
    h.remote_address = address;
    h.rkey = {7};
    h.swap_or_add = swap_or_add;
    h.compare = compare;
    responder.on_request(*wire::find_opcode(h.bth.opcode), h, 0);
  }
  void fetch_add(std::uint32_t psn, std::uint64_t number) {
    request(Operation::FetchAdd, psn, number);
  }
  void write(std::uint32_t psn) {
    wire::Headers h;
    h.bth.opcode = wire::opcode_of(wire::Service::Rc, Operation::WriteOnly);
    h.bth.psn = kFirstAtomic.plus(psn);
    h.bth.ack_request = true;
    responder.on_request(*wire::find_opcode(h.bth.opcode), h, 0);
  }
  // The next answer is that of the atomic `psn`, and brings `original`.
  void expect_original(std::uint32_t psn, std::uint64_t original) {
    const auto out = responder.poll_packet();
    ASSERT_TRUE(out);
    EXPECT_EQ(out->headers.bth.opcode,
              wire::opcode_of(wire::Service::Rc, Operation::AtomicAcknowledge));
    EXPECT_EQ(out->headers.bth.psn, kFirstAtomic.plus(psn));
    EXPECT_EQ(out->headers.original, original);
    EXPECT_EQ(out->payload.bytes, 0u);
  }
  void expect_nak(std::uint32_t psn, NakCode code) {
    const auto out = responder.poll_packet();
    ASSERT_TRUE(out);
    EXPECT_EQ(out->headers.aeth_kind, wire::AethKind::Nak);
    EXPECT_EQ(out->headers.aeth_value, static_cast<std::uint8_t>(code));
    EXPECT_EQ(out->headers.bth.psn, kFirstAtomic.plus(psn));
    expect_silence();
  }
  void expect_silence() { EXPECT_FALSE(responder.poll_packet()); }
};

// What Linux rxe sent (tests/golden/atomic.pcap), BTH and extension headers: request and answer.
constexpr const char* kGoldenRequests[] = {
    "1400ffff0000001480abc000000000003345600000000506000000000000000500000000"
    "00000000",
    "1300ffff0000001480abc001000000003345600000000506112233445566778800000000"
    "00000005",
    "1300ffff0000001480abc002000000003345600000000506000000000000000100000000"
    "00000009"};
constexpr const char* kGoldenAnswers[] = {"1200ffff0000001400abc0001f0000010000000000000000",
                                          "1200ffff0000001400abc0011f0000020000000000000005",
                                          "1200ffff0000001400abc0021f0000031122334455667788"};

TEST(Atomic, BothSidesSayWhatRxeSays) {
  AtomicRequester c({.dest_qpn = {0x14},
                     .initial_psn = {0xabc000},
                     .mtu = 1024,
                     .timeout = milliseconds(1),
                     .retry_count = 3,
                     .rnr_retry = 1,
                     .max_reads = 3});
  AtomicResponder server(Psn{0xabc000});
  struct Ask {
    WorkOpcode opcode;
    std::uint64_t swap_or_add, compare;
  };
  for (const Ask& ask :
       {Ask{WorkOpcode::FetchAdd, 5, 0}, Ask{WorkOpcode::CompareSwap, 0x1122334455667788, 5},
        Ask{WorkOpcode::CompareSwap, 1, 9}}) {
    SendWork work;
    work.opcode = ask.opcode;
    work.bytes = kAtomicBytes;
    work.remote_address = 0x3345'6000;
    work.rkey = {0x506};
    work.swap_or_add = ask.swap_or_add;
    work.compare = ask.compare;
    c.requester.post(work);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const auto request = c.requester.poll_packet(c.now);
    ASSERT_TRUE(request);
    EXPECT_EQ(hex_of(request->headers), kGoldenRequests[i]);
    server.responder.on_request(*wire::find_opcode(request->headers.bth.opcode), request->headers,
                                0);
    const auto answer = server.responder.poll_packet();
    ASSERT_TRUE(answer);
    EXPECT_EQ(hex_of(answer->headers), kGoldenAnswers[i]);
    c.requester.on_atomic_response(answer->headers, c.now);
  }
  EXPECT_EQ(c.completions(), std::vector<Status>(3, Status::Success));
  EXPECT_EQ(server.memory.word, 0x1122334455667788u);  // nine was not there: nothing was swapped
  EXPECT_EQ(c.memory.placed.size(), 3u);
}

TEST(Atomic, SharesTheLimitOnOutstandingRequestsWithReads) {  // C9-148
  AtomicRequester c;
  c.post(WorkOpcode::FetchAdd);
  c.post(WorkOpcode::Read);
  c.post(WorkOpcode::CompareSwap);
  EXPECT_EQ(c.leaving(), (AtomicPsns{0, 1}));
  c.respond(0);
  EXPECT_EQ(c.leaving(), AtomicPsns{2});
}

TEST(Atomic, CompletesWhenTheOriginalValueIsInItsBuffer) {
  AtomicRequester c;
  c.post(WorkOpcode::FetchAdd);
  c.leaving();
  c.acknowledge(0);  // an ACK does not bring it
  EXPECT_TRUE(c.completions().empty());
  EXPECT_EQ(c.leaving(), AtomicPsns{0});
  c.respond(0);
  EXPECT_EQ(c.completions(), std::vector{Status::Success});
  ASSERT_EQ(c.memory.placed.size(), 1u);
  EXPECT_EQ(c.memory.placed[0].bytes, kAtomicBytes);
  c.respond(0);  // the answer to the repetition: nobody waits for it
  EXPECT_EQ(c.memory.placed.size(), 1u);
  EXPECT_EQ(c.requester.next_deadline(), Time::never());
}

TEST(Atomic, AFenceWaitsForIt) {  // C23
  AtomicRequester c;
  c.post(WorkOpcode::FetchAdd);
  c.post(WorkOpcode::Write, 0, 0, true);
  EXPECT_EQ(c.leaving(), AtomicPsns{0});
  c.respond(0);
  EXPECT_EQ(c.leaving(), AtomicPsns{1});
}

TEST(Atomic, AnAnswerThatOvertookALostOneIsAskedForAgainWithIt) {
  AtomicRequester c;
  c.post(WorkOpcode::FetchAdd);
  c.post(WorkOpcode::FetchAdd);
  EXPECT_EQ(c.leaving(), (AtomicPsns{0, 1}));
  c.respond(1);
  EXPECT_TRUE(c.completions().empty());
  EXPECT_EQ(c.leaving(), (AtomicPsns{0, 1}));
  c.respond(0);
  c.respond(1);
  EXPECT_EQ(c.completions().size(), 2u);
}

TEST(Atomic, AnAnswerAcknowledgesWhatIsBeforeItAndIsNoAnswerToARead) {
  AtomicRequester c;
  c.post(WorkOpcode::Write);
  c.post(WorkOpcode::FetchAdd);
  c.post(WorkOpcode::Read);
  EXPECT_EQ(c.leaving(), (AtomicPsns{0, 1, 2}));
  c.respond(1);
  EXPECT_EQ(c.completions().size(), 2u);
  c.respond(2);
  EXPECT_TRUE(c.completions().empty());
}

TEST(Atomic, ABufferThatWentAwayFailsTheRequest) {  // C62
  AtomicRequester c;
  c.memory.place_refusal = {.id = trace::ReasonId::KeyStale};
  c.post(WorkOpcode::FetchAdd);
  c.post(WorkOpcode::FetchAdd);
  c.leaving();
  c.respond(0);
  EXPECT_EQ(c.completions(), (std::vector{Status::LocalProtection, Status::Flushed}));
}

TEST(Atomic, IsGivenUpAfterItsRetriesAndRefusedByANak) {
  AtomicRequester c;
  c.post(WorkOpcode::FetchAdd);
  c.leaving();
  c.refuse(0, NakCode::InvalidRequest);
  EXPECT_EQ(c.completions(), std::vector{Status::RemoteInvalidRequest});
  AtomicRequester silent;
  silent.post(WorkOpcode::FetchAdd);
  for (int tries = 0; tries < 4; ++tries) {
    EXPECT_EQ(silent.leaving(), AtomicPsns{0});
    silent.now = silent.requester.next_deadline();
    silent.requester.on_time(silent.now);
  }
  EXPECT_EQ(silent.completions(), std::vector{Status::RetriesExceeded});
}

// C17: the answer was lost, once and twice.
TEST(Atomic, ADuplicateIsAnsweredFromWhatWasSavedAndNotExecuted) {
  AtomicResponder c;
  c.memory.word = 41;
  c.fetch_add(0, 1);
  c.expect_original(0, 41);
  for (int again = 0; again < 2; ++again) {
    c.fetch_add(0, 1);
    c.expect_original(0, 41);
    c.expect_silence();
  }
  EXPECT_EQ(c.memory.word, 42u);
  c.request(Operation::CompareSwap, 1, 7, 42);
  c.expect_original(1, 42);
  c.request(Operation::CompareSwap, 1, 7, 42);
  c.expect_original(1, 42);
  EXPECT_EQ(c.memory.word, 7u);
  EXPECT_EQ(c.memory.atomics, 2);
  EXPECT_EQ(c.counters.get(trace::QpCounter::Duplicates), 3u);
}

TEST(Atomic, DuplicatesOfAllThatIsOutstandingAreAnsweredInTheirOrder) {
  AtomicResponder c;
  c.fetch_add(0, 1);
  c.fetch_add(1, 1);
  c.fetch_add(1, 1);  // before anything has left: still one answer to each
  c.fetch_add(0, 1);
  c.expect_original(0, 0);
  c.expect_original(1, 1);
  c.expect_silence();
  EXPECT_EQ(c.memory.word, 2u);
}

TEST(Atomic, ADuplicateThatIsNotTheSameRequestOrIsForgottenIsDropped) {
  AtomicResponder c;
  for (std::uint32_t psn = 0; psn < 3; ++psn) {
    c.fetch_add(psn, 1);
    c.expect_original(psn, psn);
  }
  c.fetch_add(0, 1);  // max_dest_rd_atomic is two
  c.expect_silence();
  c.fetch_add(2, 5);
  c.expect_silence();
  c.request(Operation::CompareSwap, 2, 1);
  c.expect_silence();
  c.request(Operation::FetchAdd, 2, 1, 0, 0x1008);
  c.expect_silence();
  c.fetch_add(2, 1);
  c.expect_original(2, 2);
  EXPECT_EQ(c.memory.atomics, 3);
  EXPECT_FALSE(c.responder.failed());
}

TEST(Atomic, NoMoreAreOutstandingThanTheResponderHasRoomFor) {  // C9-148
  AtomicResponder c;
  c.fetch_add(0, 1);
  c.fetch_add(1, 1);
  c.fetch_add(2, 1);
  EXPECT_TRUE(c.responder.failed());
  EXPECT_EQ(c.memory.word, 2u);
}

TEST(Atomic, OneThatArrivesAheadOfItsTurnIsNotExecuted) {  // C9-99
  AtomicResponder c;
  c.fetch_add(1, 1);
  c.expect_nak(0, NakCode::SequenceError);
  EXPECT_EQ(c.memory.atomics, 0);
  c.fetch_add(0, 1);
  c.expect_original(0, 0);
  c.fetch_add(1, 1);
  c.expect_original(1, 1);
}

// C63: what is misaligned is an invalid request, even where the key is wrong too.
TEST(Atomic, AnAddressThatIsNoMultipleOfEightIsAnInvalidRequest) {
  for (const bool is_key_bad : {false, true})
    for (std::uint64_t off = 1; off < 8; ++off) {
      AtomicResponder c;
      if (is_key_bad) c.memory.refusal = {.id = trace::ReasonId::KeyStale};
      c.request(Operation::FetchAdd, 0, 1, 0, 0x1000 + off);
      c.expect_nak(0, NakCode::InvalidRequest);
      const auto failure = c.responder.poll_failure();
      ASSERT_TRUE(failure);
      EXPECT_EQ(failure->event, ResponderEvent::RequestError);
      EXPECT_EQ(failure->reason.id, trace::ReasonId::AtomicMisaligned);
      EXPECT_EQ(c.memory.atomics, 0);
    }
}

TEST(Atomic, NeedsTheRightOfTheQueuePairAndOfTheRegion) {
  AtomicResponder c;
  c.responder.set_rights(true, true, false);
  c.fetch_add(0, 1);
  c.expect_nak(0, NakCode::RemoteAccess);
  const auto failure = c.responder.poll_failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->reason.id, trace::ReasonId::QpRightMissing);
  AtomicResponder other;
  other.memory.refusal = {.id = trace::ReasonId::RightMissing};
  other.fetch_add(0, 1);
  other.expect_nak(0, NakCode::RemoteAccess);
  EXPECT_EQ(c.memory.atomics + other.memory.atomics, 0);
}

TEST(Atomic, MemoryThatFailsIsAnOperationalErrorOfThePeer) {
  AtomicResponder c;
  c.memory.place_refusal = {.id = trace::ReasonId::FrameGone};
  c.fetch_add(0, 1);
  c.expect_nak(0, NakCode::RemoteOperational);
  EXPECT_TRUE(c.responder.failed());
}

TEST(Atomic, ItsNumberIsNeverAcknowledgedByAnAckAlone) {
  AtomicResponder c;
  c.write(0);
  c.fetch_add(1, 1);
  ASSERT_TRUE(c.responder.poll_packet());
  c.expect_original(1, 0);
  c.write(0);  // a duplicate is acknowledged as what it is
  const auto out = c.responder.poll_packet();
  ASSERT_TRUE(out);
  EXPECT_EQ(out->headers.bth.psn, kFirstAtomic);
}

}  // namespace
}  // namespace softhca::transport
