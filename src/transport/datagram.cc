#include "transport/datagram.h"

namespace softhca::transport {

using trace::ReasonId;

void Datagrams::complete(const SendWork& work, Status status, const trace::Reason& reason) {
  sent_.push_back(
      {.work = work.work, .status = status, .signaled = work.signaled, .reason = reason});
}

// Nothing was wrong with the packet that was polled last.
void Datagrams::settle() {
  if (!leaving_) return;
  complete(*leaving_, Status::Success, {});
  leaving_.reset();
}

// What fails does so in its turn, behind those before it.
void Datagrams::post(const DatagramWork& work) {
  settle();
  work_.push_back(work);
  if (failed_) fail_sends();
}

std::optional<Emission> Datagrams::poll_packet() {
  settle();
  if (failed_ || work_.empty()) return std::nullopt;
  const DatagramWork work = work_.front();
  work_.pop_front();
  SendWork send = work.send;
  const bool is_short = send.bytes < settings_.least;
  if (send.status == Status::Success && (is_short || send.bytes > settings_.mtu)) {
    send.status = Status::LocalLength;
    send.reason = {.id = is_short ? ReasonId::FrameTooShort : ReasonId::MessageTooLong,
                   .object = settings_.qpn.value,
                   .length = send.bytes,
                   .high = is_short ? 0 : settings_.mtu};
  }
  if (send.status != Status::Success) {
    complete(send, send.status, send.reason);
    fail_sends();
    return std::nullopt;
  }
  const bool with_immediate = send.opcode == WorkOpcode::SendImm;
  const auto bytes = static_cast<std::uint32_t>(send.bytes);
  Emission out;
  out.headers.bth.opcode =
      wire::opcode_of(wire::Service::Ud, wire::send_operation(wire::Place::Only, with_immediate));
  out.headers.bth.solicited = send.solicited;
  out.headers.bth.pad = wire::pad_for(bytes);
  out.headers.bth.pkey = wire::kDefaultPkey;
  out.headers.bth.dest_qpn = work.dest_qpn;
  out.headers.bth.psn = psn_;
  out.headers.qkey = (work.qkey & kOwnQkeyBit) != 0 ? settings_.qkey : work.qkey;
  out.headers.source_qpn = settings_.qpn;
  if (with_immediate) out.headers.immediate = send.immediate;
  out.payload.place = PayloadRef::Place::SendWork;
  out.payload.work = send.work;
  out.payload.bytes = bytes;
  psn_ = psn_.plus(1);
  leaving_ = send;
  return out;
}

void Datagrams::on_payload_fault(Status status, const trace::Reason& reason) {
  if (!leaving_) return;
  complete(*leaving_, status, reason);
  leaving_.reset();
  fail_sends();
}

std::optional<SendCompletion> Datagrams::poll_send_completion() {
  settle();
  if (sent_.empty()) return std::nullopt;
  const SendCompletion done = sent_.front();
  sent_.pop_front();
  return done;
}

void Datagrams::fail_sends() {
  settle();
  failed_ = true;
  for (const DatagramWork& work : work_)
    complete(work.send, Status::Flushed, {.id = ReasonId::Flushed});
  work_.clear();
}

Datagrams::Arrival Datagrams::on_packet(const wire::OpcodeInfo& info, const wire::Headers& headers,
                                        std::uint32_t payload_bytes) {
  if (info.service != wire::Service::Ud || info.kind != wire::Kind::Send ||
      payload_bytes > settings_.mtu)
    return Arrival::Malformed;
  if (headers.qkey != settings_.qkey) return Arrival::WrongQkey;
  DatagramCompletion completion{.receive = {}, .source_qpn = headers.source_qpn};
  completion.receive.with_immediate = info.has(wire::Header::Imm);
  completion.receive.solicited = headers.bth.solicited;
  completion.receive.immediate = headers.immediate;
  return receive(settings_.header_bytes + payload_bytes, completion);
}

// `completion` is what the packet says about itself.
Datagrams::Arrival Datagrams::receive(std::uint32_t bytes, const DatagramCompletion& completion) {
  if (!held_) held_ = memory_.take_receive();
  if (!held_) return Arrival::NoReceive;

  trace::Reason reason = held_->broken;
  if (!reason && bytes > held_->capacity_bytes) return Arrival::ReceiveTooSmall;
  if (!reason)
    reason = memory_.place({.place = PayloadRef::Place::ReceiveWork,
                            .work = held_->work,
                            .offset = 0,
                            .key = {},
                            .address = 0,
                            .bytes = bytes});
  DatagramCompletion done = completion;
  if (reason)
    done.receive = {.status = Status::LocalProtection, .reason = reason};
  else
    done.receive.bytes = bytes;
  done.receive.work = held_->work;
  held_.reset();
  received_.push_back(done);
  return reason ? Arrival::Failed : Arrival::Received;
}

std::optional<DatagramCompletion> Datagrams::poll_receive_completion() {
  if (received_.empty()) return std::nullopt;
  const DatagramCompletion done = received_.front();
  received_.pop_front();
  return done;
}

void Datagrams::fail_receives() {
  if (!held_) return;
  received_.push_back({.receive = {.work = held_->work,
                                   .status = Status::Flushed,
                                   .reason = {.id = ReasonId::Flushed}},
                       .source_qpn = {}});
  held_.reset();
}

}  // namespace softhca::transport
