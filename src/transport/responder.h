// Responder: the receiving half of a reliable connection (RC or XRC), as a pure machine.
//
// A request goes through admit(): check_* functions in the order of the specification, each of
// which can only say proceed, drop, duplicate or refuse. Then exactly one execute_*, then exactly
// one reply is queued. Nothing goes back.
//
// An atomic is executed when it is admitted, and what it found is kept with the last READs, as long
// as max_dest_rd_atomic of them: a duplicate is answered from there and changes nothing. An atomic
// WRITE likewise; its answer is the READ response of no bytes.
//
// Replies leave in the order of their PSNs. READ responses are made from memory when they leave;
// if that fails, the reply is a NAK instead.
//
// Spec        IBTA vol. 1, 9.7.4 (responder: PSN, opcode, R_Key, length checks in this order),
//             9.7.5.1 (acknowledging), 9.9.3 (responder errors)
// Threads     owned by the device; no locks
// Invariants  (1) a request is executed at most once, duplicates of READs excepted
//             (2) after a refusal that ends the connection nothing is executed
#pragma once
#include <cstdint>
#include <deque>
#include <optional>

#include "base/clock.h"
#include "trace/qp_counters.h"
#include "transport/emission.h"
#include "transport/fault.h"
#include "transport/memory_port.h"

namespace softhca::transport {

struct ReceiveCompletion {
  std::uint32_t work{};
  Status status{};
  bool is_write{};  // RDMA WRITE with immediate; else SEND
  bool with_immediate{};
  bool solicited{};
  std::uint32_t immediate{};
  bool invalidated{};  // by a SEND with invalidate
  wire::Key invalidated_key{};
  std::uint64_t bytes{};
  trace::Reason reason{};
};

// The connection failed here; what the device has to tell besides completions.
struct ResponderFailure {
  ResponderEvent event{};
  trace::Reason reason{};
};

class Responder {
 public:
  struct Settings {
    wire::Qpn dest_qpn;
    wire::Psn expected_psn;
    std::uint32_t mtu{};
    std::uint8_t max_reads{};      // READs and atomics that may be outstanding; C9-148
    std::uint8_t min_rnr_timer{};  // coded, sent in RNR NAKs
    bool may_read{};               // remote rights of the queue pair itself
    bool may_write{};
    bool may_atomic{};
    std::uint32_t max_message_bytes = 1u << 31;
    wire::Service service = wire::Service::Rc;  // or Xrc
  };
  // `memory` and `counters` outlive this object.
  Responder(const Settings& settings, MemoryPort& memory, trace::QpCounters& counters);

  // A request packet for this queue pair, from its peer. The device holds the payload.
  void on_request(const wire::OpcodeInfo& info, const wire::Headers& headers,
                  std::uint32_t payload_bytes);

  // A message that the peer's device, on this host, has placed in the next receive by itself. It
  // had no PSN, and is not acknowledged. REQUIRES: !is_in_message()
  void on_placed(const ReceiveCompletion& done) { done_.push_back(done); }

  std::optional<Emission> poll_packet();
  // The payload of the READ response just polled could not be read.
  void on_payload_fault(const trace::Reason& reason);

  std::optional<ReceiveCompletion> poll_completion();
  // Once, when the connection fails.
  std::optional<ResponderFailure> poll_failure();
  // The queue pair failed for another cause than this half: the receive that a message was filling
  // is flushed, and nothing is executed any more.
  void abandon();
  bool failed() const { return failed_; }
  // One has begun to arrive and has not ended.
  bool is_in_message() const { return message_.kind != Message::Kind::None; }
  bool has_replies() const { return !replies_.empty(); }
  bool has_news() const { return failure_.has_value() || !done_.empty(); }
  // The next packet is of a READ response.
  bool is_read_next() const {
    return !replies_.empty() && replies_.front().form == Reply::Form::Read;
  }

  // What it waits for: the PSN of the next request. And how many READs at a time it takes.
  wire::Psn expected_psn() const { return expected_; }
  std::uint8_t max_reads() const { return settings_.max_reads; }

  // Attributes that may change while connected.
  void set_max_reads(std::uint8_t count) { settings_.max_reads = count; }  // CASES C25
  void set_min_rnr_timer(std::uint8_t code) { settings_.min_rnr_timer = code; }
  void set_rights(bool may_read, bool may_write, bool may_atomic) {
    settings_.may_read = may_read;
    settings_.may_write = may_write;
    settings_.may_atomic = may_atomic;
  }

 private:
  struct Request {
    const wire::OpcodeInfo& info;
    const wire::Headers& headers;
    std::uint32_t payload_bytes;
  };
  struct Verdict {
    enum class Kind : std::uint8_t { Proceed, Drop, Duplicate, Refuse };
    Kind kind = Kind::Proceed;
    Fault fault{};
    trace::Reason reason{};
  };
  // A READ, an atomic or an atomic WRITE that is being, or has been, answered.
  struct Resource {
    bool is_atomic{};
    bool is_write{};
    wire::Psn first;
    std::uint32_t packets{};
    wire::Key key;
    std::uint64_t address{};
    std::uint32_t bytes{};
    AtomicOperation atomic;
    std::uint32_t srqn{};      // XRC
    std::uint64_t original{};  // what the atomic found
  };
  struct Reply {
    enum class Form : std::uint8_t { Acknowledgement, Read, Atomic };
    Form form = Form::Acknowledgement;
    // Acknowledgement: what its AETH says.
    wire::Psn psn;
    wire::Msn msn;
    wire::AethKind kind{};
    std::uint8_t value{};
    // READ response: the rest of this, `sent` packets of which have left. Atomic: its answer.
    Resource resource;
    std::uint32_t sent{};
    wire::Psn origin;  // first PSN of the request that this answers, or answers again
    bool again{};      // a duplicate: the peer may not be waiting for it any more
    bool brings_bytes() const { return form != Form::Acknowledgement; }
  };
  // The message that is arriving.
  struct Message {
    enum class Kind : std::uint8_t { None, Send, Write };
    Kind kind = Kind::None;
    std::uint64_t offset{};   // bytes that have arrived
    ReceiveSlot slot;         // SEND
    std::uint64_t address{};  // WRITE: from its RETH
    wire::Key key;
    std::uint64_t bytes{};
    std::uint32_t srqn{};  // XRC
  };

  // responder.cc: checks, in the order of IBTA 9.7.4
  Verdict admit(const Request& request);
  Verdict check_psn(const Request& request) const;
  Verdict check_opcode(const Request& request) const;
  Verdict check_sequence(const Request& request) const;
  Verdict check_shared_queue(const Request& request) const;
  Verdict check_alignment(const Request& request) const;
  Verdict check_payload(const Request& request) const;
  Verdict check_rights(const Request& request) const;
  Verdict check_resources(const Request& request);
  Verdict execute(const Request& request);
  Verdict execute_send(const Request& request);
  Verdict execute_write(const Request& request);
  Verdict execute_read(const Request& request);
  Verdict execute_atomic(const Request& request);
  Verdict execute_atomic_write(const Request& request);
  void open_resource(const Resource& resource);
  std::uint32_t packets_of(std::uint32_t bytes) const;

  // responder_reply.cc
  void acknowledge(wire::Psn psn);
  void refuse(const Request& request, Fault fault, const trace::Reason& reason);
  void answer_duplicate(const Request& request);
  void answer_again(const Resource& resource, wire::Psn origin);
  void repeat_read(const Request& request);
  void repeat_atomic(const Request& request);
  void repeat_atomic_write(const Request& request);
  void fail(Fault fault, const trace::Reason& reason);
  void queue_nak(wire::Psn psn, Fault fault);
  void queue(wire::Psn psn, wire::AethKind kind, std::uint8_t value);
  Emission emission_of(wire::Operation operation, wire::Psn psn) const;
  Emission emit_acknowledge(const Reply& reply) const;
  Emission emit_read_response(const Reply& reply) const;
  Emission emit_atomic_response(const Reply& reply) const;
  void complete_receive(const Request& request, std::uint64_t bytes, const ReceiveSlot& slot);

  Settings settings_;
  MemoryPort& memory_;
  trace::QpCounters& counters_;
  wire::Psn expected_;
  wire::Psn last_done_;  // of the last request executed that is answered by an ACK
  wire::Msn msn_;        // messages completed
  Message message_;
  std::optional<ReceiveSlot> held_;  // taken for the packet in hand
  bool nak_sent_ = false;            // one NAK per gap, then silence until it is closed
  bool failed_ = false;
  std::deque<Resource> resources_;  // the last max_reads READs and atomics, for duplicates
  std::deque<Reply> replies_;
  std::optional<Reply> last_read_reply_;  // the one polled last, should its payload fail
  std::deque<ReceiveCompletion> done_;
  std::optional<ResponderFailure> failure_;
};

}  // namespace softhca::transport
