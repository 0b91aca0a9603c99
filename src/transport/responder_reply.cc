// The responder's half that answers: ACK, NAK, responses with bytes, and what its own side is told.
#include <algorithm>

#include "base/assert.h"
#include "transport/responder.h"

namespace softhca::transport {

using trace::ReasonId;

// One pending ACK stands for all before it (C9-107: acknowledgements may be coalesced).
void Responder::acknowledge(wire::Psn psn) {
  if (!replies_.empty() && !replies_.back().brings_bytes() &&
      replies_.back().kind == wire::AethKind::Ack && wire::ahead(psn, replies_.back().psn) >= 0) {
    replies_.back().psn = psn;
    replies_.back().msn = msn_;
    return;
  }
  queue(psn, wire::AethKind::Ack, wire::kCreditsInvalid);
}

void Responder::queue_nak(wire::Psn psn, Fault fault) {
  const FaultInfo& row = row_of(fault);
  queue(psn, row.aeth,
        row.aeth == wire::AethKind::RnrNak ? settings_.min_rnr_timer
                                           : static_cast<std::uint8_t>(row.code));
}

// Who asks again before the answer has left gets it once, so a peer that floods us makes us keep
// no more than it has told us of.
void Responder::queue(wire::Psn psn, wire::AethKind kind, std::uint8_t value) {
  const bool waits = std::ranges::any_of(replies_, [&](const Reply& r) {
    return !r.brings_bytes() && r.psn == psn && r.kind == kind && r.value == value;
  });
  if (waits) return;
  Reply reply;
  reply.psn = psn;
  reply.msn = msn_;
  reply.kind = kind;
  reply.value = value;
  replies_.push_back(reply);
}

void Responder::refuse(const Request& request, Fault fault, const trace::Reason& reason) {
  const FaultInfo& row = row_of(fault);
  if (fault == Fault::SequenceError) {
    counters_.add(trace::QpCounter::OutOfOrder);
    queue_nak(expected_, fault);
  } else {
    queue_nak(request.headers.bth.psn, fault);
  }
  nak_sent_ = true;
  if (!row.enters_error) return;
  // The error of a WRITE with immediate rides on its receive (C49).
  if (request.info.has(wire::Header::Imm) && request.info.kind == wire::Kind::Write && !held_ &&
      message_.kind != Message::Kind::Send)
    held_ = memory_.take_receive();
  fail(fault, reason);
}

// A receive that was consumed carries the error; otherwise an asynchronous event does (C49).
void Responder::fail(Fault fault, const trace::Reason& reason) {
  const FaultInfo& row = row_of(fault);
  failed_ = true;
  ResponderEvent event = row.event;
  const ReceiveSlot* consumed = held_                                  ? &*held_
                                : message_.kind == Message::Kind::Send ? &message_.slot
                                                                       : nullptr;
  if (consumed != nullptr) {
    done_.push_back({.work = consumed->work,
                     .status = row.receive_status,
                     .is_write = false,
                     .with_immediate = false,
                     .solicited = false,
                     .immediate = 0,
                     .bytes = 0,
                     .reason = reason});
    event = ResponderEvent::None;
  }
  failure_ = ResponderFailure{event, reason};
  message_ = {};
  held_.reset();
}

void Responder::abandon() {
  if (failed_) return;
  failed_ = true;
  if (message_.kind == Message::Kind::Send)
    done_.push_back({.work = message_.slot.work,
                     .status = Status::Flushed,
                     .is_write = false,
                     .with_immediate = false,
                     .solicited = false,
                     .immediate = 0,
                     .bytes = 0,
                     .reason = {.id = trace::ReasonId::Flushed}});
  message_ = {};
}

// A SEND or WRITE that was executed is only acknowledged again.
void Responder::answer_duplicate(const Request& request) {
  switch (request.info.kind) {
    case wire::Kind::ReadRequest:
      return repeat_read(request);
    case wire::Kind::Atomic:
      return repeat_atomic(request);
    case wire::Kind::AtomicWrite:
      return repeat_atomic_write(request);
    default:
      acknowledge(last_done_);  // never the PSN of what only its response answers
  }
}

// Replaces whatever was still to be sent in answer to the request numbered `origin`.
void Responder::answer_again(const Resource& resource, wire::Psn origin) {
  std::erase_if(replies_, [&](const Reply& r) { return r.brings_bytes() && r.origin == origin; });
  Reply reply;
  reply.form = resource.is_atomic ? Reply::Form::Atomic : Reply::Form::Read;
  reply.resource = resource;
  reply.psn = resource.first;
  reply.msn = msn_;
  reply.origin = origin;
  reply.again = true;
  const auto place = std::ranges::find_if(
      replies_, [&](const Reply& r) { return wire::ahead(r.psn, reply.psn) > 0; });
  replies_.insert(place, reply);
}

// A READ is executed again if it lies within one that was (C9-105; CASES C18), else it is dropped.
void Responder::repeat_read(const Request& request) {
  const wire::Headers& h = request.headers;
  const std::uint32_t packets = packets_of(h.dma_length);
  for (const Resource& read : resources_) {
    const std::int32_t skip = wire::ahead(h.bth.psn, read.first);
    if (skip < 0 || static_cast<std::uint32_t>(skip) >= read.packets) continue;
    const std::uint64_t offset = static_cast<std::uint64_t>(skip) * settings_.mtu;
    const bool within = !read.is_atomic && !read.is_write && h.rkey == read.key &&
                        h.xrc_srqn == read.srqn && h.remote_address == read.address + offset &&
                        offset <= read.bytes && h.dma_length <= read.bytes - offset &&
                        packets <= read.packets - static_cast<std::uint32_t>(skip);
    if (!within) return;
    Resource part = read;
    part.first = h.bth.psn;
    part.packets = packets;
    part.address = h.remote_address;
    part.bytes = h.dma_length;
    return answer_again(part, read.first);
  }
}

// An atomic is never executed again. What it found is told again if it is still known and the
// request is the same, else it is dropped (IBTA 9.4.5; CASES C17).
void Responder::repeat_atomic(const Request& request) {
  const AtomicOperation atomic = AtomicOperation::of(request.info, request.headers);
  for (const Resource& done : resources_)
    if (done.is_atomic && done.first == request.headers.bth.psn && done.atomic == atomic &&
        done.srqn == request.headers.xrc_srqn)
      return answer_again(done, done.first);
}

// Likewise: its bytes may have been written over since.
void Responder::repeat_atomic_write(const Request& request) {
  const wire::Headers& h = request.headers;
  for (const Resource& done : resources_)
    if (done.is_write && done.first == h.bth.psn && done.key == h.rkey &&
        done.address == h.remote_address)
      return answer_again(done, done.first);
}

std::optional<Emission> Responder::poll_packet() {
  if (replies_.empty()) return std::nullopt;
  Reply& front = replies_.front();
  if (front.form == Reply::Form::Atomic) {
    const Emission out = emit_atomic_response(front);
    replies_.pop_front();
    return out;
  }
  if (front.form == Reply::Form::Acknowledgement) {
    counters_.add(counters_of(front.kind, front.value).sent);
    const Emission out = emit_acknowledge(front);
    replies_.pop_front();
    return out;
  }
  const Emission out = emit_read_response(front);
  ++front.sent;
  last_read_reply_ = front;
  if (front.sent == front.resource.packets) replies_.pop_front();
  return out;
}

Emission Responder::emission_of(wire::Operation operation, wire::Psn psn) const {
  Emission out;
  wire::Headers& h = out.headers;
  h.bth.opcode = wire::opcode_of(settings_.service, operation);
  h.bth.pkey = wire::kDefaultPkey;
  h.bth.dest_qpn = settings_.dest_qpn;
  h.bth.psn = psn;
  return out;
}

Emission Responder::emit_acknowledge(const Reply& reply) const {
  Emission out = emission_of(wire::Operation::Acknowledge, reply.psn);
  wire::Headers& h = out.headers;
  h.aeth_kind = reply.kind;
  h.aeth_value = reply.value;
  h.msn = reply.msn;
  return out;
}

Emission Responder::emit_atomic_response(const Reply& reply) const {
  Emission out = emission_of(wire::Operation::AtomicAcknowledge, reply.psn);
  wire::Headers& h = out.headers;
  h.aeth_kind = wire::AethKind::Ack;
  h.aeth_value = wire::kCreditsInvalid;
  h.msn = reply.msn;
  h.original = reply.resource.original;
  return out;
}

Emission Responder::emit_read_response(const Reply& reply) const {
  const bool first = reply.sent == 0;
  const bool last = reply.sent + 1 == reply.resource.packets;
  const wire::Place place = first ? (last ? wire::Place::Only : wire::Place::First)
                                  : (last ? wire::Place::Last : wire::Place::Middle);
  const std::uint64_t offset = std::uint64_t{reply.sent} * settings_.mtu;
  const auto bytes = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(settings_.mtu, reply.resource.bytes - offset));
  Emission out =
      emission_of(wire::read_response_operation(place), reply.resource.first.plus(reply.sent));
  wire::Headers& h = out.headers;
  h.bth.pad = wire::pad_for(bytes);
  if (place != wire::Place::Middle) {
    h.aeth_kind = wire::AethKind::Ack;
    h.aeth_value = wire::kCreditsInvalid;
    h.msn = reply.msn;
  }
  if (bytes != 0)
    out.payload = {.place = PayloadRef::Place::Region,
                   .work = 0,
                   .offset = 0,
                   .key = reply.resource.key,
                   .address = reply.resource.address + offset,
                   .bytes = bytes,
                   .srqn = reply.resource.srqn};
  return out;
}

void Responder::on_payload_fault(const trace::Reason& reason) {
  ASSERT(last_read_reply_);
  const Reply broken = *last_read_reply_;
  std::erase_if(replies_, [&](const Reply& r) { return wire::ahead(r.psn, broken.psn) >= 0; });
  const Fault fault = memory_fault(reason);
  queue_nak(broken.resource.first.plus(broken.sent - 1), fault);
  if (!failed_) fail(fault, reason);
}

void Responder::complete_receive(const Request& request, std::uint64_t bytes,
                                 const ReceiveSlot& slot) {
  const bool with_immediate = request.info.has(wire::Header::Imm);
  done_.push_back({.work = slot.work,
                   .status = Status::Success,
                   .is_write = request.info.kind == wire::Kind::Write,
                   .with_immediate = with_immediate,
                   .solicited = request.headers.bth.solicited,
                   .immediate = with_immediate ? request.headers.immediate : 0,
                   .invalidated = request.info.has(wire::Header::Ieth),
                   .invalidated_key = request.headers.invalidate_key,
                   .bytes = bytes,
                   .reason = {}});
}

std::optional<ReceiveCompletion> Responder::poll_completion() {
  if (done_.empty()) return std::nullopt;
  const ReceiveCompletion front = done_.front();
  done_.pop_front();
  return front;
}

std::optional<ResponderFailure> Responder::poll_failure() {
  const std::optional<ResponderFailure> out = failure_;
  failure_.reset();
  return out;
}

}  // namespace softhca::transport
