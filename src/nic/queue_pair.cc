#include "nic/queue_pair.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/range.h"

namespace softhca::nic {

using pcie::Outcome;
using trace::Counter;
using trace::EventKind;
using trace::Reason;
using trace::ReasonId;
using transport::PayloadRef;
using transport::QpState;
using transport::Status;

namespace {

CqeKind kind_of(transport::WorkOpcode opcode) {
  using transport::WorkOpcode;
  switch (opcode) {
    case WorkOpcode::Send:
    case WorkOpcode::SendImm:
    case WorkOpcode::SendInvalidate:
      return CqeKind::Send;
    case WorkOpcode::LocalInvalidate:
      return CqeKind::LocalInvalidate;
    case WorkOpcode::BindWindow:
      return CqeKind::BindWindow;
    case WorkOpcode::AtomicWrite:
      return CqeKind::AtomicWrite;
    case WorkOpcode::Read:
      return CqeKind::Read;
    case WorkOpcode::CompareSwap:
      return CqeKind::CompareSwap;
    case WorkOpcode::FetchAdd:
      return CqeKind::FetchAdd;
    case WorkOpcode::Write:
    case WorkOpcode::WriteImm:
      break;
  }
  return CqeKind::Write;
}

}  // namespace

QueuePair::QueuePair(const QpContext& context, HostMemory& memory, SharedReceiveQueues& shared,
                     trace::Tracer& tracer, trace::QpCounters& counters,
                     const transport::CongestionSettings& congestion, faults::Injector* faults,
                     SameHost* neighbours, link::Link* link)
    : context_(context),
      memory_(memory),
      shared_(shared),
      tracer_(tracer),
      counters_(counters),
      faults_(faults),
      neighbours_(neighbours),
      link_(link),
      congestion_(congestion),
      receives_(context.receive, context.pd, memory, tracer),
      fetched_(kFetchedSlots) {}

void QueuePair::to_rtr(const transport::QpAttributes& a, const wire::Datagram& path) {
  state_ = QpState::Rtr;
  if (is_for_datagrams() || is_raw()) {
    datagrams_ = std::make_unique<transport::Datagrams>(
        transport::Datagrams::Settings{
            .qpn = context_.qpn,
            .qkey = a.qkey,
            .mtu = is_raw() ? context_.max_frame_bytes : a.path_mtu_bytes,
            .header_bytes = is_raw() ? 0 : transport::kNetworkHeaderBytes,
            .least = is_raw() ? std::uint32_t{wire::kEthernetBytes} : 0},
        *this);
    return;
  }
  turn_packets_ = std::min(kStagedPackets, kTurnBytes / a.path_mtu_bytes);
  peer_ = a.dest_qpn;
  if (congestion_.controls()) rate_.emplace(transport::mbps(congestion_.line_mbps));
  set_path(path);
  if (context_.type == transport::QpType::XrcSend) return;
  if (context_.type == transport::QpType::Uc) {
    unreliable_ = std::make_unique<transport::UnreliableConnection>(
        transport::UnreliableConnection::Settings{.dest_qpn = a.dest_qpn,
                                                  .expected_psn = a.rq_psn,
                                                  .mtu = a.path_mtu_bytes,
                                                  .may_write = (a.access_flags & 2) != 0,
                                                  .max_message_bytes = kMaxMessageBytes},
        *this);
    return;
  }
  responder_ = std::make_unique<transport::Responder>(
      transport::Responder::Settings{.dest_qpn = a.dest_qpn,
                                     .expected_psn = a.rq_psn,
                                     .mtu = a.path_mtu_bytes,
                                     .max_reads = a.max_dest_reads,
                                     .min_rnr_timer = a.min_rnr_timer,
                                     .may_read = (a.access_flags & 4) != 0,
                                     .may_write = (a.access_flags & 2) != 0,
                                     .may_atomic = (a.access_flags & 8) != 0,
                                     .max_message_bytes = kMaxMessageBytes,
                                     .service = service()},
      *this, counters_);
}

void QueuePair::to_rts(const transport::QpAttributes& a) {
  state_ = QpState::Rts;
  if (datagrams_) {
    datagrams_->start(a.sq_psn);
    datagrams_->set_qkey(a.qkey);
    return;
  }
  if (context_.type == transport::QpType::XrcReceive) return update(a);
  if (unreliable_) {
    unreliable_->start(a.sq_psn);
    return update(a);
  }
  requester_ = std::make_unique<transport::Requester>(
      transport::Requester::Settings{.dest_qpn = a.dest_qpn,
                                     .initial_psn = a.sq_psn,
                                     .mtu = a.path_mtu_bytes,
                                     .timeout = transport::ack_timeout(a.timeout),
                                     .retry_count = a.retry_count,
                                     .rnr_retry = a.rnr_retry,
                                     .max_reads = a.max_reads,
                                     .service = service()},
      *this, counters_);
  update(a);
}

void QueuePair::update(const transport::QpAttributes& a) {
  if (datagrams_) datagrams_->set_qkey(a.qkey);
  if (unreliable_) unreliable_->set_rights((a.access_flags & 2) != 0);
  if (!responder_) return;
  responder_->set_min_rnr_timer(a.min_rnr_timer);
  responder_->set_max_reads(a.max_dest_reads);
  responder_->set_rights((a.access_flags & 4) != 0, (a.access_flags & 2) != 0,
                         (a.access_flags & 8) != 0);
}

void QueuePair::set_state(QpState state) {
  state_ = state;
  if (state != QpState::Sqd) notify_drained_ = false;
  if (requester_) requester_->hold(state == QpState::Sqd);
  if (unreliable_) unreliable_->hold(state == QpState::Sqd);
  if (state != QpState::Rts) return;
  if (datagrams_) datagrams_->resume();
  if (unreliable_) unreliable_->resume();
}

void QueuePair::adjust(const transport::QpAttributes& a, const wire::Datagram& path) {
  if (!path.destination.is_zero()) set_path(path);
  if (requester_)
    requester_->set_patience({.timeout = transport::ack_timeout(a.timeout),
                              .retry_count = a.retry_count,
                              .rnr_retry = a.rnr_retry,
                              .max_reads = a.max_reads});
  notify_drained_ |= a.notify_drained;
}

bool QueuePair::is_draining() const {
  if (state_ != QpState::Sqd) return false;
  if (requester_) return !requester_->is_drained();
  return unreliable_ && !unreliable_->is_drained();
}

bool QueuePair::take_drained() {
  if (!notify_drained_ || state_ != QpState::Sqd || is_draining()) return false;
  notify_drained_ = false;
  return true;
}

void QueuePair::to_reset() {
  notify_drained_ = false;
  requester_.reset();
  responder_.reset();
  datagrams_.reset();
  unreliable_.reset();
  send_posted_ = send_fetched_ = send_done_ = 0;
  receives_.clear();
  flushed_.clear();
  rendezvous_.clear();
  direct_ = {};
  held_.reset();
  holds_receives_ = false;
  stalled_until_ = {};
  notifications_ = {};
  rate_.reset();
  paced_until_ = Time::never();
  state_ = QpState::Reset;
}

void QueuePair::enter_error(Status first, const Reason& reason, Time now) {
  state_ = QpState::Error;
  if (requester_) requester_->fail(first, reason);
  if (responder_) responder_->abandon();
  if (datagrams_) {
    datagrams_->fail_sends();
    datagrams_->fail_receives();
  }
  if (unreliable_) {
    unreliable_->fail_sends();
    unreliable_->fail_receives();
  }
  fetch_sends(now);
  holds_receives_ |= responder_ && context_.type == transport::QpType::Rc && !shares_receives() &&
                     neighbours_ != nullptr && link_ != nullptr;
  if (!holds_receives_) flush_receives(now);
}

void QueuePair::flush_held(Time now) {
  holds_receives_ = false;
  flush_receives(now);
}

void QueuePair::on_send_doorbell(std::uint32_t producer, Time now) {
  tracer_.count(Counter::Doorbells);
  tracer_.emit(EventKind::Doorbell, now, context_.qpn.value, 0, producer);
  send_posted_ = producer;
  if (direct_.neighbour) direct_.neighbour->prefetch(peer_);
  fetch_sends(now);
}

void QueuePair::on_receive_doorbell(std::uint32_t producer, Time now) {
  tracer_.count(Counter::Doorbells);
  tracer_.emit(EventKind::Doorbell, now, context_.qpn.value, 1, producer);
  receives_.on_doorbell(producer);
  if (state_ == QpState::Error && !holds_receives_) flush_receives(now);
}

void QueuePair::flush_receives(Time now) {
  FetchedReceive request;
  while (receives_.take_to_flush(request, context_.qpn, now)) {
    ready_at_ = later(ready_at_, request.ready_at);
    Cqe cqe;
    cqe.cookie = request.cookie;
    cqe.qpn = context_.qpn.value;
    cqe.work = request.work;
    cqe.status = static_cast<std::uint8_t>(Status::Flushed);
    cqe.reason = static_cast<std::uint16_t>(ReasonId::Flushed);
    cqe.kind = static_cast<std::uint8_t>(CqeKind::Receive);
    flushed_.push_back({context_.receive_cqn, cqe});
  }
}

void QueuePair::on_packet(const wire::Packet& packet, std::span<const ConstBytes> ahead, Time now) {
  now_ = now;
  payload_ = packet.payload;
  ahead_ = ahead;
  const auto bytes = static_cast<std::uint32_t>(packet.payload.size());
  if (packet.info->is_request()) {
    if (context_.xrcd != 0) name_shared(packet.headers.xrc_srqn);
    is_send_in_hand_ = packet.info->kind == wire::Kind::Send;
    if (responder_) {
      request_ = &packet.headers.bth;
      if (faults_ != nullptr) [[unlikely]]
        stalled_until_ =
            later(stalled_until_, faults_->on_request(context_.qpn, packet.headers.bth, now));
      responder_->on_request(*packet.info, packet.headers, bytes);
      request_ = nullptr;
    }
    if (unreliable_) last_drop_ = unreliable_->on_packet(*packet.info, packet.headers, bytes);
  } else if (requester_) {
    take_response(packet, now);
    fetch_sends(now);
  }
  payload_ = {};
  ahead_ = {};
}

void QueuePair::take_response(const wire::Packet& packet, Time now) {
  const wire::Headers& h = packet.headers;
  switch (packet.info->kind) {
    case wire::Kind::ReadResponse:
      return requester_->on_read_response(*packet.info, h,
                                          static_cast<std::uint32_t>(packet.payload.size()), now);
    case wire::Kind::AtomicAcknowledge:
      payload_ = bytes_of(h.original);  // memory holds it as this host does
      return requester_->on_atomic_response(h, now);
    case wire::Kind::Acknowledge:
      return requester_->on_acknowledge(h, now);
    default:
      return;
  }
}

void QueuePair::on_time(Time now) {
  if (now >= stalled_until_) stalled_until_ = {};
  if (now >= paced_until_) paced_until_ = Time::never();
  if (requester_) requester_->on_time(now);
}

std::optional<QueuePair::Outgoing> QueuePair::poll_packet(Time now, Turn first) {
  if (notifications_.is_waiting()) [[unlikely]]
    return poll_notification();
  auto packet = first == Turn::Responses ? poll_response(now) : poll_request(now);
  if (!packet) packet = first == Turn::Responses ? poll_request(now) : poll_response(now);
  if (rate_) pace(packet, now);
  return packet;
}

std::optional<QueuePair::Outgoing> QueuePair::poll_request(Time now) {
  const bool sends = state_ == QpState::Rts || (state_ == QpState::Sqd && !datagrams_);
  if (!sends || (!requester_ && !datagrams_ && !unreliable_)) return std::nullopt;
  if (rate_ && !may_send(now)) return std::nullopt;
  now_ = now;
  const auto emission = requester_    ? requester_->poll_packet(now)
                        : unreliable_ ? unreliable_->poll_packet()
                                      : datagrams_->poll_packet();
  return emission ? std::optional(Outgoing{*emission, false}) : std::nullopt;
}

std::optional<QueuePair::Outgoing> QueuePair::poll_response(Time now) {
  if (!responder_ || now < stalled_until_) return std::nullopt;
  if (rate_ && responder_->is_read_next() && !may_send(now)) return std::nullopt;
  const auto emission = responder_->poll_packet();
  return emission ? std::optional(Outgoing{*emission, true}) : std::nullopt;
}

// The parts that hold the bytes [offset, +bytes) of those in `from`. Returns their number.
std::size_t QueuePair::cut_out(std::span<const Bytes> from, std::uint64_t offset,
                               std::uint64_t bytes, std::span<Bytes> into) {
  std::size_t count = 0;
  for (const Bytes part : from) {
    const std::uint64_t skipped = std::min<std::uint64_t>(offset, part.size());
    const std::uint64_t here = std::min<std::uint64_t>(part.size() - skipped, bytes);
    if (here != 0) into[count++] = part.subspan(skipped, here);
    offset -= skipped;
    bytes -= here;
  }
  return count;
}

Outcome QueuePair::gather(const Outgoing& outgoing, const Rooms& rooms, Time now) {
  const PayloadRef& from = outgoing.emission.payload;
  const Bytes to = rooms.at(0).first(from.bytes);
  Outcome outcome{.ready_at = now};
  if (from.place == PayloadRef::Place::None) {
    std::ranges::fill(to, std::byte{0});
  } else if (from.place == PayloadRef::Place::Region) {
    outcome = memory_.read({.key = from.key,
                            .pd = domain_of(from),
                            .right = KeyRight::RemoteRead,
                            .address = from.address,
                            .bytes = from.bytes},
                           context_.qpn, to, now);
    if (!outcome) responder_->on_payload_fault(outcome.reason);
  } else if (from.place == PayloadRef::Place::SendWork) {
    const Fetched& request = fetched(from.work);
    if (!request.inline_bytes.empty()) {
      std::copy_n(request.inline_bytes.begin() + static_cast<std::ptrdiff_t>(from.offset),
                  from.bytes, to.begin());
    } else {
      if (!is_staged(from, to) && !stage(from, request.segments, rooms, now))
        outcome = read_request(request.segments, from.offset, {&to, 1}, now);
      if (!outcome) on_payload_fault(from.work, outcome.reason);
    }
  }
  note(outcome);
  return outcome;
}

Outcome QueuePair::read_request(const Segments& segments, std::uint64_t offset,
                                std::span<const Bytes> to, Time now) {
  std::uint64_t total = 0;
  for (const Bytes part : to) total += part.size();
  return each_piece(
      segments, offset, total,
      [&](wire::Key lkey, std::uint64_t address, std::uint64_t done, std::uint64_t bytes) {
        const KeyAccess access{.key = lkey,
                               .pd = context_.pd,
                               .right = KeyRight::LocalRead,
                               .address = address,
                               .bytes = bytes};
        if (to.size() == 1)
          return memory_.read(access, context_.qpn, to[0].subspan(done, bytes), now);
        std::array<Bytes, kStagedPackets> parts;
        const std::size_t count = cut_out(to, done, bytes, parts);
        return memory_.read(access, context_.qpn, std::span<const Bytes>(parts).first(count), now);
      });
}

Reason QueuePair::check_remote(transport::RemoteRight right, wire::Key key, std::uint64_t address,
                               std::uint64_t bytes) {
  const KeyRight needed = right == transport::RemoteRight::Read    ? KeyRight::RemoteRead
                          : right == transport::RemoteRight::Write ? KeyRight::RemoteWrite
                                                                   : KeyRight::RemoteAtomic;
  return memory_.check(
      {.key = key, .pd = domain_in_hand(), .right = needed, .address = address, .bytes = bytes},
      context_.qpn, now_);
}

PendingCqe QueuePair::send_cqe(const transport::SendCompletion& done, Time now) {
  if (done.status != Status::Success && done.status != Status::Flushed) last_reason_ = done.reason;
  const SendWqe& wqe = fetched(done.work).wqe;
  PendingCqe pending{.cqn = context_.send_cqn, .cqe = {}};
  Cqe& cqe = pending.cqe;
  cqe.cookie = wqe.cookie;
  cqe.qpn = context_.qpn.value;
  cqe.work = done.work;
  cqe.status = static_cast<std::uint8_t>(done.status);
  cqe.reason = static_cast<std::uint16_t>(done.reason.id);
  cqe.time_ps = static_cast<std::uint64_t>(now.ps);
  const auto opcode = static_cast<transport::WorkOpcode>(wqe.opcode);
  cqe.kind = static_cast<std::uint8_t>(kind_of(opcode));
  if (transport::brings_bytes(opcode) && done.status == Status::Success)
    for (const Segment& s : fetched(done.work).segments) cqe.byte_count += s.bytes;
  return pending;
}

PendingCqe QueuePair::receive_cqe(const transport::ReceiveCompletion& done, Time now) {
  if (receive_.elsewhere && done.status == Status::Success) start_rendezvous();
  if (done.status != Status::Success && done.status != Status::Flushed) last_reason_ = done.reason;
  Cqe cqe;
  cqe.cookie = receive_.cookie;
  cqe.qpn = context_.qpn.value;
  cqe.work = done.work;
  cqe.status = static_cast<std::uint8_t>(done.status);
  cqe.reason = static_cast<std::uint16_t>(done.reason.id);
  cqe.time_ps = static_cast<std::uint64_t>(now.ps);
  cqe.kind = static_cast<std::uint8_t>(done.is_write ? CqeKind::ReceiveWrite : CqeKind::Receive);
  cqe.byte_count = static_cast<std::uint32_t>(done.bytes) - receive_.skipped;
  if (!done.is_write && receive_.kind != CqeKind::Receive) {
    cqe.kind = static_cast<std::uint8_t>(receive_.kind);
    cqe.flags = receive_.flags;
    cqe.tag = receive_.tag;
    cqe.flow_tag = receive_.private_word;
  }
  cqe.immediate = done.immediate;
  if (done.with_immediate) cqe.flags |= static_cast<std::uint8_t>(CqeFlag::Immediate);
  if (done.solicited) cqe.flags |= static_cast<std::uint8_t>(CqeFlag::Solicited);
  if (done.invalidated) {
    cqe.flags |= static_cast<std::uint8_t>(CqeFlag::Invalidated);
    cqe.immediate = done.invalidated_key.value;
  }
  return {receive_.cqn != 0 ? receive_.cqn : context_.receive_cqn, cqe};
}

std::optional<PendingCqe> QueuePair::poll_completion(Time now) {
  if (responder_)
    if (const auto done = responder_->poll_completion()) {
      receives_.note_done();
      return receive_cqe(*done, now);
    }
  if (unreliable_)
    if (const auto done = unreliable_->poll_receive_completion()) {
      receives_.note_done();
      return receive_cqe(*done, now);
    }
  if (const auto done = poll_datagram_receive(now)) return done;
  if (!flushed_.empty()) {
    const PendingCqe front = flushed_.front();
    flushed_.pop_front();
    receives_.note_done();
    return front;
  }
  return poll_send_cqe(now);
}

// One object is returned by every way, so that it is made where it is wanted.
std::optional<PendingCqe> QueuePair::poll_send_cqe(Time now) {
  std::optional<PendingCqe> pending;
  while (const auto done = poll_send_completion()) {
    if (!rendezvous_.empty() && rendezvous_of(done->work) != nullptr) [[unlikely]] {
      pending = on_own_done(*done, now);
      if (pending) return pending;
      continue;
    }
    send_done_ = done->work + 1;
    const bool is_told = done->signaled || done->status != Status::Success;
    // Its slot may be another's after the next fetch.
    if (is_told) pending.emplace(send_cqe(*done, now));
    fetch_sends(now);
    if (is_told) return pending;
  }
  return pending;
}

std::optional<transport::ResponderFailure> QueuePair::poll_failure() {
  return responder_ ? responder_->poll_failure() : std::nullopt;
}

Time QueuePair::next_deadline() const {
  const Time at = requester_ ? earlier(requester_->next_deadline(), paced_until_) : paced_until_;
  return stalled_until_ == Time{} ? at : earlier(at, stalled_until_);
}

}  // namespace softhca::nic
