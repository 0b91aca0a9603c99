// The side of a queue pair that only datagrams have: an address for each request, and the network
// header in front of what is received.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/assert.h"
#include "nic/queue_pair.h"

namespace softhca::nic {

using transport::Datagrams;
using transport::Status;

namespace {

// What stands in front of a message: the header of IPv6, or 20 bytes of zeros and that of IPv4
// (CASES C08: programs tell one from the other by the first byte and by the checksum). What a UDP
// socket does not tell reads as we send it: identification 0, 64 hops, flow label 0.
void write_network_header(const wire::Datagram& datagram, std::size_t udp_bytes, Bytes to) {
  std::array<std::byte, wire::kMaxIpUdpBytes> headers{};
  const std::size_t bytes = wire::emit_ip_udp(datagram, udp_bytes, headers) - wire::kUdpBytes;
  ASSERT(bytes <= to.size());
  std::ranges::fill(to, std::byte{0});
  std::memcpy(to.last(bytes).data(), headers.data(), bytes);
}

}  // namespace

bool QueuePair::wants_sends() const {
  return requester_    ? requester_->wants_work()
         : unreliable_ ? unreliable_->wants_work()
                       : datagrams_->wants_work();
}

bool QueuePair::flushes_sends() const {
  return state_ == transport::QpState::Error || (requester_    ? requester_->failed()
                                                 : unreliable_ ? unreliable_->failed()
                                                               : datagrams_->failed());
}

void QueuePair::take_address(Fetched& into, ConstBytes bytes) const {
  into.address = load_le<AddressSegment>(bytes);
  const AddressSegment& address = into.address;
  into.path = {};
  std::ranges::copy(address.source, into.path.source.bytes.begin());
  std::ranges::copy(address.destination, into.path.destination.bytes.begin());
  into.path.source_port = address.source_port;
  into.path.traffic_class = address.traffic_class;
  into.path.hop_limit = address.hop_limit;
  into.path.flow_label = address.flow_label;
}

// CASES C42: an address handle belongs to a protection domain too.
trace::Reason QueuePair::check_address(const Fetched& request) const {
  using trace::ReasonId;
  const auto opcode = static_cast<transport::WorkOpcode>(request.wqe.opcode);
  if (opcode != transport::WorkOpcode::Send && opcode != transport::WorkOpcode::SendImm)
    return {.id = ReasonId::OpcodeNotSupported, .object = request.wqe.opcode};
  if (request.address.pd != context_.pd)
    return {.id = ReasonId::KeyOtherDomain, .object = context_.qpn.value};
  if (request.path.source.is_ipv4() != request.path.destination.is_ipv4())
    return {.id = ReasonId::WqeMalformed, .object = context_.qpn.value};
  return {};
}

void QueuePair::enter_send_error(Time now) {
  state_ = transport::QpState::Sqe;
  if (datagrams_) datagrams_->fail_sends();
  if (unreliable_) unreliable_->fail_sends();
  fetch_sends(now);
}

Datagrams::Arrival QueuePair::on_datagram(const wire::Packet& packet,
                                          const wire::Datagram& datagram, Time now) {
  constexpr std::size_t kHeader = transport::kNetworkHeaderBytes;
  if (packet.payload.size() > wire::kMaxMtu) return Datagrams::Arrival::Malformed;
  now_ = now;
  // One access for both.
  const Bytes message = memory_.staging().first(kHeader + packet.payload.size());
  const std::size_t udp_bytes = packet.info->header_bytes() + packet.payload.size() +
                                packet.headers.bth.pad + wire::kIcrcBytes;
  write_network_header(datagram, udp_bytes, message.first(kHeader));
  std::ranges::copy(packet.payload, message.subspan(kHeader).begin());
  payload_ = message;
  const Datagrams::Arrival arrival = datagrams_->on_packet(
      *packet.info, packet.headers, static_cast<std::uint32_t>(packet.payload.size()));
  payload_ = {};
  return arrival;
}

Datagrams::Arrival QueuePair::on_frame(ConstBytes frame, std::uint32_t tag, Time now) {
  if (!datagrams_ || state_ == transport::QpState::Error) return Datagrams::Arrival::NoReceive;
  now_ = now;
  payload_ = frame;
  flow_tag_ = tag;
  const Datagrams::Arrival arrival = datagrams_->on_frame(static_cast<std::uint32_t>(frame.size()));
  payload_ = {};
  return arrival;
}

const wire::Datagram& QueuePair::path_of(const Outgoing& outgoing) const {
  if (outgoing.is_notification) return notification_path_;
  if (!is_for_datagrams()) return path_;
  return fetched_[outgoing.emission.payload.work % kFetchedSlots].path;
}

bool QueuePair::has_send_completion() const {
  return (requester_ && requester_->has_completion()) ||
         (datagrams_ && datagrams_->has_send_completion()) ||
         (unreliable_ && unreliable_->has_send_completion());
}

std::optional<PendingCqe> QueuePair::poll_datagram_receive(Time now) {
  if (!datagrams_) return std::nullopt;
  const auto done = datagrams_->poll_receive_completion();
  if (!done) return std::nullopt;
  receives_.note_done();
  PendingCqe pending = receive_cqe(done->receive, now);
  if (is_raw()) {
    pending.cqe.flow_tag = flow_tag_;
  } else if (done->receive.status == Status::Success) {
    pending.cqe.source_qpn = done->source_qpn.value;
    pending.cqe.flags |= static_cast<std::uint8_t>(CqeFlag::NetworkHeader);
  }
  return pending;
}

std::optional<transport::SendCompletion> QueuePair::poll_send_completion() {
  if (datagrams_) return datagrams_->poll_send_completion();
  if (unreliable_) return unreliable_->poll_send_completion();
  return requester_ ? requester_->poll_completion() : std::nullopt;
}

}  // namespace softhca::nic
