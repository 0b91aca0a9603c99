#include "transport/unreliable.h"

#include "base/assert.h"

namespace softhca::transport {

using trace::Reason;
using trace::ReasonId;

UnreliableConnection::UnreliableConnection(const Settings& settings, MemoryPort& memory)
    : settings_(settings), memory_(memory), expected_(settings.expected_psn) {
  ASSERT(settings.mtu >= 256 && settings.mtu <= wire::kMaxMtu);
}

void UnreliableConnection::complete(const SendWork& work, Status status, const Reason& reason) {
  sent_.push_back(
      {.work = work.work, .status = status, .signaled = work.signaled, .reason = reason});
}

// Nothing was wrong with the packet that was polled last.
void UnreliableConnection::settle() {
  if (!leaving_) return;
  complete(*leaving_, Status::Success, {});
  leaving_.reset();
}

// What fails does so in its turn, behind those before it.
void UnreliableConnection::post(const SendWork& work) {
  settle();
  work_.push_back(work);
  if (failed_) fail_sends();
}

// Work on the device's own keys, up to the next message. False if some of it failed.
bool UnreliableConnection::execute_locals() {
  while (!work_.empty() && work_.front().status == Status::Success &&
         is_local(work_.front().opcode)) {
    SendWork work = work_.front();
    work_.pop_front();
    if (const Reason refused = memory_.execute_local(work.work)) {
      complete(work,
               work.opcode == WorkOpcode::BindWindow ? Status::MwBind : Status::LocalQpOperation,
               refused);
      fail_sends();
      return false;
    }
    complete(work, Status::Success, {});
  }
  return true;
}

std::optional<Emission> UnreliableConnection::poll_packet() {
  settle();
  if (failed_ || !execute_locals() || work_.empty()) return std::nullopt;
  const SendWork work = work_.front();
  if (work.status != Status::Success) {
    work_.pop_front();
    complete(work, work.status, work.reason);
    fail_sends();
    return std::nullopt;
  }
  Emission out = message_packet(wire::Service::Uc, work, packets_sent_, settings_.mtu);
  out.headers.bth.dest_qpn = settings_.dest_qpn;
  out.headers.bth.psn = psn_;
  psn_ = psn_.plus(1);
  if (++packets_sent_ == packets_of(work, settings_.mtu)) {
    packets_sent_ = 0;
    work_.pop_front();
    leaving_ = work;
  }
  return out;
}

void UnreliableConnection::on_payload_fault(Status status, const Reason& reason) {
  if (leaving_) {
    complete(*leaving_, status, reason);
    leaving_.reset();
  } else if (!work_.empty()) {
    complete(work_.front(), status, reason);
    work_.pop_front();
  }
  fail_sends();
}

std::optional<SendCompletion> UnreliableConnection::poll_send_completion() {
  settle();
  if (sent_.empty()) return std::nullopt;
  const SendCompletion done = sent_.front();
  sent_.pop_front();
  return done;
}

void UnreliableConnection::fail_sends() {
  settle();
  failed_ = true;
  packets_sent_ = 0;
  for (const SendWork& work : work_) complete(work, Status::Flushed, {.id = ReasonId::Flushed});
  work_.clear();
}

// IBTA 9.8.2.2: FIRST and ONLY begin a message whatever their PSN, and end the one that was
// arriving. Anything else has to be the packet that is next.
Reason UnreliableConnection::check_order(const Arriving& packet) {
  const wire::Psn psn = packet.headers.bth.psn;
  const bool is_next = wire::ahead(psn, expected_) == 0;
  if (packet.info.starts()) {
    message_.reset();
  } else if (!is_next || !message_ || message_->kind != packet.info.kind) {
    const bool in_order = is_next && message_;
    message_.reset();
    if (in_order) return {.id = ReasonId::UnexpectedOpcode, .object = packet.info.opcode};
    return {.id = ReasonId::SequenceError, .object = psn.value};
  }
  expected_ = psn.plus(1);
  return {};
}

Reason UnreliableConnection::check_payload(const Arriving& packet) const {
  const std::uint32_t bytes = packet.bytes;
  bool fits = packet.info.ends() ? bytes <= settings_.mtu : bytes == settings_.mtu;
  if (packet.info.place == wire::Place::Last && bytes == 0) fits = false;
  if (message_->kind == wire::Kind::Write) {
    const std::uint64_t arrived = message_->offset + bytes;
    if (packet.info.ends() ? arrived != message_->bytes : arrived >= message_->bytes) fits = false;
  }
  if (message_->bytes > settings_.max_message_bytes) fits = false;
  if (fits) return {};
  return {.id = ReasonId::LengthMismatch, .object = packet.info.opcode, .length = bytes};
}

// Rights and key of a WRITE, a receive for a SEND.
Reason UnreliableConnection::begin(const Arriving& packet) {
  const wire::Headers& h = packet.headers;
  if (packet.info.kind == wire::Kind::Write) {
    if (!settings_.may_write)
      return {.id = ReasonId::QpRightMissing,
              .object = h.rkey.value,
              .address = h.remote_address,
              .length = h.dma_length};
    if (h.dma_length == 0) return {};
    return memory_.check_remote(RemoteRight::Write, h.rkey, h.remote_address, h.dma_length);
  }
  if (!held_) held_ = memory_.take_receive();
  return held_ ? Reason{} : Reason{.id = ReasonId::NoReceivePosted};
}

Reason UnreliableConnection::on_packet(const wire::OpcodeInfo& info, const wire::Headers& headers,
                                       std::uint32_t payload_bytes) {
  const Arriving packet{info, headers, payload_bytes};
  if (info.kind != wire::Kind::Send && info.kind != wire::Kind::Write)
    return {.id = ReasonId::UnexpectedOpcode, .object = info.opcode};
  Reason refused = check_order(packet);
  if (refused) return refused;
  if (info.starts())
    message_ = {.kind = info.kind,
                .offset = 0,
                .address = headers.remote_address,
                .key = headers.rkey,
                .bytes = info.kind == wire::Kind::Write ? headers.dma_length : 0};
  refused = check_payload(packet);
  if (!refused && info.starts()) refused = begin(packet);
  if (!refused)
    refused = info.kind == wire::Kind::Send ? execute_send(packet) : execute_write(packet);
  if (refused) {
    message_.reset();
    return refused;
  }
  if (info.ends()) message_.reset();
  return {};
}

// The receive was at fault, which is not the packet's: it completes, with the error.
Reason UnreliableConnection::fail_receive(Status status, const Reason& reason) {
  received_.push_back({.work = held_->work, .status = status, .reason = reason});
  held_.reset();
  return reason;
}

Reason UnreliableConnection::execute_send(const Arriving& packet) {
  if (held_->broken) return fail_receive(Status::LocalProtection, held_->broken);
  if (message_->offset + packet.bytes > held_->capacity_bytes)
    return fail_receive(Status::LocalLength, {.id = ReasonId::ReceiveTooSmall,
                                              .length = message_->offset + packet.bytes,
                                              .high = held_->capacity_bytes});
  if (packet.bytes != 0) {
    const Reason refused = memory_.place({.place = PayloadRef::Place::ReceiveWork,
                                          .work = held_->work,
                                          .offset = message_->offset,
                                          .key = {},
                                          .address = 0,
                                          .bytes = packet.bytes});
    if (refused) return fail_receive(Status::LocalProtection, refused);
  }
  message_->offset += packet.bytes;
  if (packet.info.ends()) finish(packet);
  return {};
}

Reason UnreliableConnection::execute_write(const Arriving& packet) {
  const bool with_immediate = packet.info.has(wire::Header::Imm);
  if (with_immediate && !held_) held_ = memory_.take_receive();
  if (with_immediate && !held_) return {.id = ReasonId::NoReceivePosted};
  if (packet.bytes != 0) {
    const Reason refused =
        memory_.place({.place = PayloadRef::Place::Region,
                       .work = 0,
                       .offset = 0,
                       .key = message_->key,
                       .address = message_->address + message_->offset,
                       .bytes = packet.bytes,
                       .left = message_->bytes - message_->offset - packet.bytes});
    if (refused) return refused;
  }
  message_->offset += packet.bytes;
  if (with_immediate) finish(packet);
  return {};
}

void UnreliableConnection::finish(const Arriving& packet) {
  const bool with_immediate = packet.info.has(wire::Header::Imm);
  received_.push_back({.work = held_->work,
                       .status = Status::Success,
                       .is_write = packet.info.kind == wire::Kind::Write,
                       .with_immediate = with_immediate,
                       .solicited = packet.headers.bth.solicited,
                       .immediate = with_immediate ? packet.headers.immediate : 0,
                       .bytes = message_->offset,
                       .reason = {}});
  held_.reset();
}

std::optional<ReceiveCompletion> UnreliableConnection::poll_receive_completion() {
  if (received_.empty()) return std::nullopt;
  const ReceiveCompletion done = received_.front();
  received_.pop_front();
  return done;
}

void UnreliableConnection::fail_receives() {
  message_.reset();
  if (!held_) return;
  received_.push_back(
      {.work = held_->work, .status = Status::Flushed, .reason = {.id = ReasonId::Flushed}});
  held_.reset();
}

}  // namespace softhca::transport
