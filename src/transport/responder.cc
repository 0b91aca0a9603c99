#include "transport/responder.h"

#include <algorithm>

#include "base/assert.h"

namespace softhca::transport {

using trace::ReasonId;
using wire::Kind;

namespace {

// Answered by a response of its own, not by an ACK.
bool has_response(Kind kind) {
  return kind == Kind::ReadRequest || kind == Kind::Atomic || kind == Kind::AtomicWrite;
}

}  // namespace

Responder::Responder(const Settings& settings, MemoryPort& memory, trace::QpCounters& counters)
    : settings_(settings),
      memory_(memory),
      counters_(counters),
      expected_(settings.expected_psn),
      last_done_(settings.expected_psn.minus(1)) {
  ASSERT(settings.mtu >= 256 && settings.mtu <= wire::kMaxMtu);
}

std::uint32_t Responder::packets_of(std::uint32_t bytes) const {
  return std::max<std::uint32_t>(1, (bytes + settings_.mtu - 1) / settings_.mtu);
}

void Responder::on_request(const wire::OpcodeInfo& info, const wire::Headers& headers,
                           std::uint32_t payload_bytes) {
  if (failed_) return;
  const Request request{info, headers, payload_bytes};
  Verdict verdict = admit(request);
  if (verdict.kind == Verdict::Kind::Proceed) verdict = execute(request);
  switch (verdict.kind) {
    case Verdict::Kind::Proceed:
      nak_sent_ = false;
      if (headers.bth.ack_request && !has_response(info.kind)) acknowledge(headers.bth.psn);
      return;
    case Verdict::Kind::Drop:
      return;
    case Verdict::Kind::Duplicate:
      counters_.add(trace::QpCounter::Duplicates);
      return answer_duplicate(request);
    case Verdict::Kind::Refuse:
      return refuse(request, verdict.fault, verdict.reason);
  }
}

Responder::Verdict Responder::admit(const Request& request) {
  using Check = Verdict (Responder::*)(const Request&) const;
  static constexpr Check kInSpecOrder[] = {
      &Responder::check_psn,          &Responder::check_opcode,  &Responder::check_sequence,
      &Responder::check_shared_queue, &Responder::check_payload, &Responder::check_alignment,
      &Responder::check_rights};
  for (const Check check : kInSpecOrder)
    if (Verdict verdict = (this->*check)(request); verdict.kind != Verdict::Kind::Proceed)
      return verdict;
  return check_resources(request);
}

// C9-98, C9-99: the expected PSN is executed, one behind it is a duplicate, one ahead a gap.
Responder::Verdict Responder::check_psn(const Request& request) const {
  const std::int32_t ahead = wire::ahead(request.headers.bth.psn, expected_);
  if (ahead == 0) return {};
  if (ahead < 0) return {.kind = Verdict::Kind::Duplicate};
  if (nak_sent_) return {.kind = Verdict::Kind::Drop};
  return {.kind = Verdict::Kind::Refuse,
          .fault = Fault::SequenceError,
          .reason = {.id = ReasonId::SequenceError, .object = request.headers.bth.psn.value}};
}

// C9-100 ff.: an opcode that the service or this device does not offer.
Responder::Verdict Responder::check_opcode(const Request& request) const {
  switch (request.info.kind) {
    case Kind::Write:
    case Kind::ReadRequest:
    case Kind::Atomic:
    case Kind::AtomicWrite:
    case Kind::Send:
      return {};
    default:
      return {.kind = Verdict::Kind::Refuse,
              .fault = Fault::InvalidRequest,
              .reason = {.id = ReasonId::UnexpectedOpcode, .object = request.headers.bth.opcode}};
  }
}

// Table 39: FIRST, MIDDLE and LAST of one kind follow each other.
Responder::Verdict Responder::check_sequence(const Request& request) const {
  const bool arriving = message_.kind != Message::Kind::None;
  const auto kind = request.info.kind == Kind::Send ? Message::Kind::Send : Message::Kind::Write;
  if (request.info.starts() ? !arriving : arriving && message_.kind == kind) return {};
  return {.kind = Verdict::Kind::Refuse,
          .fault = Fault::InvalidRequest,
          .reason = {.id = ReasonId::UnexpectedOpcode, .object = request.info.opcode}};
}

// A14: a request names a queue of the target's domain, and a message the same one throughout.
Responder::Verdict Responder::check_shared_queue(const Request& request) const {
  if (!request.info.has(wire::Header::Xrceth)) return {};
  const std::uint32_t srqn = request.headers.xrc_srqn;
  trace::Reason reason = memory_.check_shared_queue(srqn);
  if (!reason && !request.info.starts() && srqn != message_.srqn)
    reason = {.id = ReasonId::XrcQueueUnknown, .object = srqn};
  if (!reason) return {};
  const bool is_ours = reason.id == ReasonId::SharedQueueFailed;
  return {.kind = Verdict::Kind::Refuse,
          .fault = is_ours ? Fault::RemoteOperational : Fault::InvalidRequest,
          .reason = reason};
}

// C9-105 ff.: how long the payload is, and that it adds up to what the RETH announced.
Responder::Verdict Responder::check_payload(const Request& request) const {
  const std::uint32_t bytes = request.payload_bytes;
  bool fits = request.info.kind == Kind::ReadRequest ||
              (request.info.ends() ? bytes <= settings_.mtu : bytes == settings_.mtu);
  if (request.info.place == wire::Place::Last && bytes == 0) fits = false;
  if (request.info.kind == Kind::Write) {
    const bool starts = request.info.starts();
    const std::uint64_t total = starts ? request.headers.dma_length : message_.bytes;
    const std::uint64_t arrived = (starts ? 0 : message_.offset) + bytes;
    if (request.info.ends() ? arrived != total : arrived >= total) fits = false;
  }
  // C11: an atomic WRITE has eight bytes, in the packet as in its RETH.
  if (request.info.kind == Kind::AtomicWrite)
    fits = bytes == kAtomicBytes && request.headers.dma_length == kAtomicBytes;
  if (request.headers.dma_length > settings_.max_message_bytes) fits = false;
  if (fits) return {};
  return {
      .kind = Verdict::Kind::Refuse,
      .fault = Fault::InvalidRequest,
      .reason = {.id = ReasonId::LengthMismatch, .object = request.info.opcode, .length = bytes}};
}

// An atomic works on eight bytes whose address is a multiple of eight. That comes before its key:
// what makes no sense is refused as such, whoever may ask (CASES C63).
Responder::Verdict Responder::check_alignment(const Request& request) const {
  const wire::Headers& h = request.headers;
  const bool is_aligned = h.remote_address % kAtomicBytes == 0;
  if (is_aligned || (request.info.kind != Kind::Atomic && request.info.kind != Kind::AtomicWrite))
    return {};
  return {.kind = Verdict::Kind::Refuse,
          .fault = Fault::InvalidRequest,
          .reason = {.id = ReasonId::AtomicMisaligned,
                     .object = h.rkey.value,
                     .address = h.remote_address,
                     .length = kAtomicBytes}};
}

// The queue pair's own rights, then the key: C9-83 ff. Once per message; an empty access has no
// key.
Responder::Verdict Responder::check_rights(const Request& request) const {
  const wire::Headers& h = request.headers;
  const bool is_atomic = request.info.kind == Kind::Atomic;
  if (!request.info.has(wire::Header::Reth) && !is_atomic) return {};
  const bool is_read = request.info.kind == Kind::ReadRequest;
  const std::uint32_t bytes = is_atomic ? kAtomicBytes : h.dma_length;
  const bool may = is_atomic ? settings_.may_atomic
                   : is_read ? settings_.may_read
                             : settings_.may_write;
  const RemoteRight right = is_atomic ? RemoteRight::Atomic
                            : is_read ? RemoteRight::Read
                                      : RemoteRight::Write;
  trace::Reason reason;
  if (!may)
    reason = {.id = ReasonId::QpRightMissing,
              .object = h.rkey.value,
              .address = h.remote_address,
              .length = bytes};
  else if (bytes != 0)
    reason = memory_.check_remote(right, h.rkey, h.remote_address, bytes);
  if (!reason) return {};
  return {.kind = Verdict::Kind::Refuse, .fault = Fault::RemoteAccess, .reason = reason};
}

// A receive for a SEND that starts and for immediate data; room for one more READ or atomic.
Responder::Verdict Responder::check_resources(const Request& request) {
  held_.reset();
  if (has_response(request.info.kind)) {
    const auto open = std::ranges::count_if(
        replies_, [](const Reply& r) { return r.brings_bytes() && !r.again; });
    if (open < std::max<std::ptrdiff_t>(1, settings_.max_reads)) return {};
    return {.kind = Verdict::Kind::Refuse,
            .fault = Fault::InvalidRequest,
            .reason = {.id = ReasonId::TooManyReads, .object = settings_.max_reads}};
  }
  const bool needs_receive =
      request.info.kind == Kind::Send ? request.info.starts() : request.info.has(wire::Header::Imm);
  if (!needs_receive) return {};
  held_ = memory_.take_receive();
  if (held_) return {};
  return {.kind = Verdict::Kind::Refuse,
          .fault = Fault::ReceiverNotReady,
          .reason = {.id = ReasonId::NoReceivePosted}};
}

Responder::Verdict Responder::execute(const Request& request) {
  const Kind kind = request.info.kind;
  const Verdict verdict = kind == Kind::Send          ? execute_send(request)
                          : kind == Kind::Write       ? execute_write(request)
                          : kind == Kind::Atomic      ? execute_atomic(request)
                          : kind == Kind::AtomicWrite ? execute_atomic_write(request)
                                                      : execute_read(request);
  if (verdict.kind != Verdict::Kind::Proceed) return verdict;
  if (request.info.ends()) {
    msn_ = msn_.next();
    message_ = {};
  }
  if (has_response(kind)) return {};
  last_done_ = expected_;
  expected_ = expected_.plus(1);
  return {};
}

Responder::Verdict Responder::execute_send(const Request& request) {
  if (request.info.starts())
    message_ = {.kind = Message::Kind::Send,
                .offset = 0,
                .slot = *held_,
                .address = 0,
                .key = {},
                .bytes = 0,
                .srqn = request.headers.xrc_srqn};
  held_.reset();
  const std::uint32_t bytes = request.payload_bytes;
  if (message_.slot.broken)
    return {.kind = Verdict::Kind::Refuse,
            .fault = Fault::RemoteOperational,
            .reason = message_.slot.broken};
  if (message_.offset + bytes > message_.slot.capacity_bytes)
    return {.kind = Verdict::Kind::Refuse,
            .fault = Fault::ReceiveTooSmall,
            .reason = {.id = ReasonId::ReceiveTooSmall,
                       .length = message_.offset + bytes,
                       .high = message_.slot.capacity_bytes}};
  if (bytes != 0) {
    const trace::Reason reason = memory_.place({.place = PayloadRef::Place::ReceiveWork,
                                                .work = message_.slot.work,
                                                .offset = message_.offset,
                                                .key = {},
                                                .address = 0,
                                                .bytes = bytes});
    if (reason)
      return {.kind = Verdict::Kind::Refuse, .fault = Fault::RemoteOperational, .reason = reason};
  }
  message_.offset += bytes;
  // Behind the bytes: whoever hears of the end of the key has the message (IBTA 9.4.1.1.3).
  if (request.info.has(wire::Header::Ieth))
    if (const trace::Reason refused = memory_.invalidate(request.headers.invalidate_key))
      return {.kind = Verdict::Kind::Refuse, .fault = Fault::RemoteAccess, .reason = refused};
  if (request.info.ends()) complete_receive(request, message_.offset, message_.slot);
  return {};
}

Responder::Verdict Responder::execute_write(const Request& request) {
  const std::uint32_t bytes = request.payload_bytes;
  if (request.info.starts())
    message_ = {.kind = Message::Kind::Write,
                .offset = 0,
                .slot = {},
                .address = request.headers.remote_address,
                .key = request.headers.rkey,
                .bytes = request.headers.dma_length,
                .srqn = request.headers.xrc_srqn};
  if (bytes != 0) {
    const trace::Reason reason = memory_.place({.place = PayloadRef::Place::Region,
                                                .work = 0,
                                                .offset = 0,
                                                .key = message_.key,
                                                .address = message_.address + message_.offset,
                                                .bytes = bytes,
                                                .srqn = message_.srqn,
                                                .left = message_.bytes - message_.offset - bytes});
    if (reason)
      return {.kind = Verdict::Kind::Refuse, .fault = memory_fault(reason), .reason = reason};
  }
  message_.offset += bytes;
  if (held_) {
    complete_receive(request, message_.offset, *held_);
    held_.reset();
  }
  return {};
}

// Its reply is queued, and it is kept for duplicates.
void Responder::open_resource(const Resource& resource) {
  resources_.push_back(resource);
  if (resources_.size() > std::max<std::size_t>(1, settings_.max_reads)) resources_.pop_front();
  Reply reply;
  reply.form = resource.is_atomic ? Reply::Form::Atomic : Reply::Form::Read;
  reply.resource = resource;
  reply.psn = resource.first;
  reply.msn = msn_.next();
  reply.origin = resource.first;
  replies_.push_back(reply);
  expected_ = expected_.plus(resource.packets);
}

Responder::Verdict Responder::execute_read(const Request& request) {
  const wire::Headers& h = request.headers;
  open_resource({.is_atomic = false,
                 .first = h.bth.psn,
                 .packets = packets_of(h.dma_length),
                 .key = h.rkey,
                 .address = h.remote_address,
                 .bytes = h.dma_length,
                 .atomic = {},
                 .srqn = h.xrc_srqn});
  return {};
}

// Eight aligned bytes, as they lie in the packet, in one access.
Responder::Verdict Responder::execute_atomic_write(const Request& request) {
  const wire::Headers& h = request.headers;
  const trace::Reason refused = memory_.place({.place = PayloadRef::Place::Region,
                                               .work = 0,
                                               .offset = 0,
                                               .key = h.rkey,
                                               .address = h.remote_address,
                                               .bytes = kAtomicBytes});
  if (refused)
    return {.kind = Verdict::Kind::Refuse, .fault = memory_fault(refused), .reason = refused};
  open_resource({.is_write = true,
                 .first = h.bth.psn,
                 .packets = 1,
                 .key = h.rkey,
                 .address = h.remote_address,
                 .bytes = 0,
                 .atomic = {}});
  return {};
}

Responder::Verdict Responder::execute_atomic(const Request& request) {
  const AtomicOperation atomic = AtomicOperation::of(request.info, request.headers);
  const auto original = memory_.execute_atomic(atomic);
  if (!original)
    return {.kind = Verdict::Kind::Refuse,
            .fault = memory_fault(original.error()),
            .reason = original.error()};
  open_resource({.is_atomic = true,
                 .first = request.headers.bth.psn,
                 .packets = 1,
                 .key = {},
                 .address = 0,
                 .bytes = kAtomicBytes,
                 .atomic = atomic,
                 .srqn = request.headers.xrc_srqn,
                 .original = *original});
  return {};
}

}  // namespace softhca::transport
