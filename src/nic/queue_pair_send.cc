// QueuePair: send requests, from the ring to the transport, and their payload, which is read in one
// access for several packets.
#include <algorithm>
#include <array>
#include <utility>

#include "base/range.h"
#include "nic/queue_pair.h"

namespace softhca::nic {

using pcie::Outcome;
using trace::Counter;
using trace::EventKind;
using trace::QpCounter;
using trace::Reason;
using trace::ReasonId;
using transport::PayloadRef;
using transport::QpState;
using transport::Status;

namespace {

// Whether a requester refused a piece by key (LocalProtection) or the bus failed it.
Status local_status(const Reason& reason) {
  return trace::is_key_refusal(reason.id) ? Status::LocalProtection : Status::LocalQpOperation;
}

}  // namespace

// Takes as many send requests off the ring as the requester wants.
void QueuePair::fetch_sends(Time now) {
  if (!requester_ && !datagrams_ && !unreliable_) {
    // In ERR without ever having been connected: everything is flushed as it lies.
    if (state_ != QpState::Error || context_.send.slots == 0) return;
    requester_ =
        std::make_unique<transport::Requester>(transport::Requester::Settings{.dest_qpn = {},
                                                                              .initial_psn = {},
                                                                              .mtu = 256,
                                                                              .timeout = {},
                                                                              .retry_count = 0,
                                                                              .rnr_retry = 0,
                                                                              .max_reads = 0},
                                               *this, counters_);
    requester_->fail(Status::Flushed, {.id = ReasonId::Flushed});
  }
  if (held_) start(*std::exchange(held_, std::nullopt), now);
  while (!held_ && send_fetched_ != send_posted_ && wants_sends() &&
         send_fetched_ - send_done_ < kFetchedSlots) {
    const std::uint32_t index = send_fetched_++;
    Fetched& request = fetched(index);
    Reason reason;
    fetch_send(index, request, reason, now);
    transport::SendWork work = check_send(index, request, reason, now);
    if (faults_ != nullptr && !flushes_sends()) [[unlikely]]
      fail_by_plan(work, request.wqe.cookie, now);
    start(work, now);
  }
  run_batch(now);
}

void QueuePair::post(const transport::SendWork& work) {
  if (requester_) {
    note_posted(work);
    requester_->post(work);
  } else if (unreliable_) {
    unreliable_->post(work);
  } else {
    const AddressSegment& address = fetched(work.work).address;
    datagrams_->post({work, {address.qpn & wire::kMask24}, address.qkey});
  }
}

bool QueuePair::fetch_send(std::uint32_t index, Fetched& into, Reason& reason, Time now) {
  const QueuePlace& ring = context_.send;
  std::array<std::byte, sizeof(SendWqe) + sizeof(AddressSegment) + kMaxSges * sizeof(Segment)> slot;
  static_assert(kMaxInlineBytes <= kMaxSges * sizeof(Segment));
  const BusAddr at = advance(ring.bus, std::uint64_t{index & (ring.slots - 1)} * ring.stride);
  const Bytes bytes = Bytes(slot).first(ring.stride);
  const Outcome outcome = memory_.read_bus(at, bytes, now);
  note(outcome);
  tracer_.count(Counter::WqesFetched);
  tracer_.emit(EventKind::WqeFetch, now, context_.qpn.value, 0, index, at.value, bytes.size());
  into.segments.clear();
  into.inline_bytes.clear();
  into.wqe = {};
  if (!outcome) {
    reason = outcome.reason;
    return false;
  }
  into.wqe = load_le<SendWqe>(bytes);
  const SendWqe& wqe = into.wqe;
  ConstBytes behind = bytes.subspan(sizeof(SendWqe));
  if (is_for_datagrams()) {
    take_address(into, behind);
    behind = behind.subspan(sizeof(AddressSegment));
  }
  const bool is_inline = (wqe.flags & static_cast<std::uint8_t>(WqeFlag::Inline)) != 0;
  const std::size_t needed = is_inline ? wqe.inline_bytes : wqe.segments * sizeof(Segment);
  if (wqe.index != index || wqe.segments > ring.max_segments || needed > behind.size()) {
    reason = {.id = ReasonId::WqeMalformed, .object = context_.qpn.value, .address = index};
    return false;
  }
  if (is_inline) {
    into.inline_bytes.assign(behind.begin(), behind.begin() + static_cast<std::ptrdiff_t>(needed));
    return true;
  }
  for (std::size_t i = 0; i < wqe.segments; ++i)
    into.segments.push_back(load_le<Segment>(behind, i * sizeof(Segment)));
  return true;
}

// What the request asks for, with the reason if it must fail: each lkey is checked here, before
// anything is sent (IBTA 10.6.3.1: local protection checks come first).
transport::SendWork QueuePair::check_send(std::uint32_t index, Fetched& request,
                                          const Reason& unread, Time now) {
  const SendWqe& wqe = request.wqe;
  Reason reason = unread;
  const auto has = [&](WqeFlag flag) { return (wqe.flags & static_cast<std::uint8_t>(flag)) != 0; };
  transport::SendWork work{.work = index,
                           .opcode = static_cast<transport::WorkOpcode>(wqe.opcode),
                           .bytes = request.inline_bytes.size(),
                           .remote_address = wqe.remote_address,
                           .rkey = {wqe.rkey},
                           .immediate = wqe.immediate,
                           .xrc_srqn = wqe.xrc_srqn,
                           .swap_or_add = wqe.swap_or_add,
                           .compare = wqe.compare,
                           .signaled = has(WqeFlag::Signaled),
                           .solicited = has(WqeFlag::Solicited),
                           .fence = has(WqeFlag::Fence),
                           .status = Status::Success,
                           .reason = {}};
  if (!reason && !transport::is_offered(context_.type, work.opcode))
    reason = {.id = ReasonId::OpcodeNotSupported, .object = wqe.opcode};
  const bool is_written = transport::brings_bytes(work.opcode);
  // There is nowhere to put them. The driver refuses it; the slot may have been written to since.
  if (!reason && is_written && has(WqeFlag::Inline))
    reason = {.id = ReasonId::WqeMalformed, .object = context_.qpn.value};
  if (!reason && is_for_datagrams()) reason = check_address(request);
  for (const Segment& s : request.segments) {
    work.bytes += s.bytes;
    if (reason || s.bytes == 0) continue;
    reason = memory_.check({.key = {s.lkey},
                            .pd = context_.pd,
                            .right = is_written ? KeyRight::LocalWrite : KeyRight::LocalRead,
                            .address = s.address,
                            .bytes = s.bytes},
                           context_.qpn, now);
  }
  if (!reason && work.bytes > kMaxMessageBytes)
    reason = {.id = ReasonId::MessageTooLong,
              .object = context_.qpn.value,
              .length = work.bytes,
              .high = kMaxMessageBytes};
  if (!reason &&
      (transport::is_atomic(work.opcode) || work.opcode == transport::WorkOpcode::AtomicWrite))
    reason = check_atomic(work.bytes);
  if (reason) {
    const bool by_length =
        reason.id == ReasonId::MessageTooLong || reason.id == ReasonId::AtomicLength;
    work.status = by_length ? Status::LocalLength : local_status(reason);
    if (reason.id == ReasonId::WqeMalformed || reason.id == ReasonId::OpcodeNotSupported)
      work.status = Status::LocalQpOperation;
    work.reason = reason;
    work.bytes = 0;
  }
  return work;
}

// A planned failure takes the way of one that was found here: what was posted before it completes
// first, and what is behind it is flushed.
void QueuePair::fail_by_plan(transport::SendWork& work, std::uint64_t wr_id, Time now) {
  const auto fate =
      faults_->on_work(context_.qpn, static_cast<std::uint8_t>(work.opcode), wr_id, now);
  if (!fate.reason || work.status != Status::Success) return;
  work.status = static_cast<Status>(fate.status);
  work.reason = fate.reason;
  work.bytes = 0;
}

void QueuePair::on_payload_fault(std::uint32_t work, const Reason& reason) {
  const Status status = local_status(reason);
  if (requester_)
    requester_->on_payload_fault(work, status, reason);
  else if (unreliable_)
    unreliable_->on_payload_fault(status, reason);
  else
    datagrams_->on_payload_fault(status, reason);
}

// Connections send what may be marked, if they obey when they are told of it.
void QueuePair::set_path(const wire::Datagram& path) {
  path_ = path;
  if (rate_) path_.traffic_class = wire::with_ecn(path.traffic_class, wire::kEcnCapable);
}

// Notifications are not answered, or they would go to and fro; nor are multicasts: all who hear one
// would do it at once.
bool QueuePair::on_marked(const wire::Packet& packet, const wire::Datagram& datagram, Time now) {
  count(QpCounter::EcnMarked, Counter::EcnMarked);
  if (!congestion_.notifies() || packet.info->kind == wire::Kind::Congestion ||
      datagram.destination.is_multicast())
    return false;
  const wire::Qpn peer = is_for_datagrams() ? packet.headers.source_qpn : peer_;
  if (!notifications_.on_marked(peer, packet.headers.bth.pkey, congestion_.cnp_interval, now))
    return false;
  notification_path_ = path_;
  if (is_for_datagrams())
    notification_path_ = {.source = datagram.destination,
                          .destination = datagram.source,
                          .source_port = datagram.destination_port,
                          .traffic_class = datagram.traffic_class};
  std::uint8_t& traffic_class = notification_path_.traffic_class;
  traffic_class = wire::with_ecn(traffic_class, 0);
  return true;
}

// One of datagrams does not slow down: the others that it sends to have done nothing, and anybody
// could have sent it.
void QueuePair::on_notification(Time now) {
  if (!rate_) return count(QpCounter::CnpsIgnored, Counter::CnpsIgnored);
  count(QpCounter::CnpsHandled, Counter::CnpsHandled);
  rate_->on_notification(now);
}

QueuePair::Outgoing QueuePair::poll_notification() {
  count(QpCounter::CnpsSent, Counter::CnpsSent);
  return {.emission = notifications_.poll_packet(), .is_response = true, .is_notification = true};
}

bool QueuePair::may_send(Time now) {
  if (rate_->may_send(now)) return true;
  paced_until_ = rate_->next_deadline();
  return false;
}

// What was polled, or that there was nothing to poll.
void QueuePair::pace(const std::optional<Outgoing>& outgoing, Time now) {
  if (!outgoing) {
    if (rate_->next_deadline() <= now) rate_->on_idle();
    return;
  }
  if (!rate_->is_limited()) return;
  const transport::Emission& emission = outgoing->emission;
  const wire::OpcodeInfo& info = *wire::find_opcode(emission.headers.bth.opcode);
  if (outgoing->is_response && info.kind != wire::Kind::ReadResponse) return;
  rate_->on_sent(static_cast<std::int64_t>(wire::kMaxIpUdpBytes + info.header_bytes() +
                                           emission.payload.bytes + wire::kIcrcBytes),
                 now);
  if (requester_ && !outgoing->is_response) requester_->on_paced(now);
}

void QueuePair::count(QpCounter of_pair, Counter of_device) {
  counters_.add(of_pair);
  tracer_.count(of_device);
}

// One access for this packet and those that will follow it now. If it fails each makes its own.
bool QueuePair::stage(const PayloadRef& from, const Segments& segments, const Rooms& rooms,
                      Time now) {
  if (from.left == 0 || rooms.count < 2) return false;
  std::array<Bytes, kStagedPackets> parts;
  HostMemory::Staged staged{
      .qpn = context_.qpn, .work = from.work, .offset = from.offset, .step = from.bytes};
  std::uint64_t left = from.bytes + from.left;
  while (left != 0 && staged.count < std::min(parts.size(), rooms.count)) {
    const Bytes room = rooms.at(staged.count);
    parts[staged.count] = room.first(std::min<std::uint64_t>(left, from.bytes));
    left -= parts[staged.count].size();
    staged.rooms[staged.count++] = room.data();
  }
  memory_.forget_staged();
  const Outcome outcome =
      read_request(segments, from.offset, std::span<const Bytes>(parts).first(staged.count), now);
  note(outcome);
  if (outcome) memory_.set_staged(staged);
  return static_cast<bool>(outcome);
}

// Packets of others may have been built meanwhile: then it lies in the wrong room.
bool QueuePair::is_staged(const PayloadRef& from, Bytes room) const {
  const HostMemory::Staged& staged = memory_.staged();
  if (staged.count == 0 || staged.qpn != context_.qpn || staged.work != from.work ||
      from.offset < staged.offset)
    return false;
  const std::uint64_t place = (from.offset - staged.offset) / staged.step;
  return place < staged.count && from.offset == staged.offset + place * staged.step &&
         staged.rooms[place] == room.data();
}

}  // namespace softhca::nic
