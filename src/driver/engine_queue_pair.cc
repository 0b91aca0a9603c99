// The engine's verbs on queue pairs: create, modify, query, destroy, post.
#include <algorithm>
#include <atomic>
#include <bit>
#include <string>

#include "base/assert.h"
#include "driver/engine.h"
#include "driver/engine_state.h"
#include "transport/qp_state.h"

namespace softhca::driver {

using trace::Counter;
using trace::Reason;
using trace::ReasonId;
using transport::QpAttribute;
using transport::QpState;
using transport::WorkOpcode;

namespace {

constexpr std::uint32_t round_up(std::uint32_t n, std::uint32_t to) {
  return (n + to - 1) / to * to;
}

Reason check_capacity(const QueueCapacity& c, std::uint32_t sges = nic::kMaxSges) {
  const auto over = [](std::uint32_t asked, std::uint32_t limit) {
    return Reason{.id = ReasonId::LimitExceeded, .length = asked, .high = limit};
  };
  if (c.send_requests > nic::kMaxQueueEntries) return over(c.send_requests, nic::kMaxQueueEntries);
  if (c.receive_requests > nic::kMaxQueueEntries)
    return over(c.receive_requests, nic::kMaxQueueEntries);
  if (c.send_sges > sges) return over(c.send_sges, sges);
  if (c.receive_sges > sges) return over(c.receive_sges, sges);
  if (c.inline_bytes > nic::kMaxInlineBytes) return over(c.inline_bytes, nic::kMaxInlineBytes);
  return {};
}

std::vector<wire::Qpn> qpns_of(std::span<QueuePair* const> pairs) {
  std::vector<wire::Qpn> numbers;
  for (const QueuePair* pair : pairs) numbers.push_back(pair->qpn());
  return numbers;
}

// What a frame has besides what the interface's MTU counts.
constexpr std::uint32_t kFrameOverhead = wire::kEthernetBytes + wire::kVlanTagBytes;

// What stands between a send request and its segments.
constexpr std::uint32_t address_bytes(transport::QpType type) {
  return type == transport::QpType::Ud ? sizeof(nic::AddressSegment) : 0;
}

// What a queue pair has no queue for is 0, whatever was asked for.
QueueCapacity granted_capacity(const Engine::QueuePairSpec& spec) {
  QueueCapacity c = spec.capacity;
  if (spec.type == transport::QpType::XrcReceive || !spec.spread_over.empty()) return {};
  c.send_sges = std::max(1u, c.send_sges);
  c.receive_sges = std::max(1u, c.receive_sges);
  // Bytes take the place of segments, as in other devices: rdma_xclient asks for none and sends
  // some.
  c.inline_bytes =
      std::max(c.inline_bytes, c.send_sges * static_cast<std::uint32_t>(sizeof(nic::Segment)));
  // An excess is refused as it was asked for.
  if (c.send_requests <= nic::kMaxQueueEntries)
    c.send_requests = std::bit_ceil(std::max(1u, c.send_requests));
  if (c.receive_requests <= nic::kMaxQueueEntries)
    c.receive_requests = std::bit_ceil(std::max(1u, c.receive_requests));
  if (spec.srq != nullptr || spec.type == transport::QpType::XrcSend)
    c.receive_requests = c.receive_sges = 0;
  return c;
}

std::uint32_t send_stride(transport::QpType type, const QueueCapacity& granted) {
  return round_up(static_cast<std::uint32_t>(sizeof(nic::SendWqe)) + address_bytes(type) +
                      std::max(granted.send_sges * static_cast<std::uint32_t>(sizeof(nic::Segment)),
                               granted.inline_bytes),
                  64);
}

Result<WorkRing, Reason> send_ring(transport::QpType type, const QueueCapacity& granted,
                                   Registrations& memory, Time now, Bytes lent) {
  WorkRing ring;
  ring.slots = granted.send_requests;
  ring.segments = granted.send_sges;
  ring.stride = send_stride(type, granted);
  auto bytes = memory.add_ring(std::uint64_t{ring.slots} * ring.stride, now, lent);
  if (!bytes) return bytes.error();
  ring.memory = std::move(*bytes);
  return ring;
}

// What the request would be as a whole.
std::uint64_t total_bytes(std::span<const Sge> sges) {
  std::uint64_t sum = 0;
  for (const Sge& s : sges) sum += s.length;
  return sum;
}

std::uint8_t wqe_flags(const SendRequest& request, bool signal_all) {
  const auto bit = [](bool on, nic::WqeFlag flag) { return on ? static_cast<unsigned>(flag) : 0u; };
  return static_cast<std::uint8_t>(
      bit(request.flags.has(SendFlag::Fence), nic::WqeFlag::Fence) |
      bit(signal_all || request.flags.has(SendFlag::Signaled), nic::WqeFlag::Signaled) |
      bit(request.flags.has(SendFlag::Solicited), nic::WqeFlag::Solicited) |
      bit(request.flags.has(SendFlag::Inline), nic::WqeFlag::Inline));
}

constexpr std::uint32_t kBindFlags = 1 | 2 | 4 | 8 | 32;  // local write says nothing of a window

// What the device does not look at in a request on its own keys, and what a bind may ask for.
Reason check_local(const SendRequest& request) {
  const auto refuse = [&](ReasonId id) { return Reason{.id = id, .object = request.rkey.value}; };
  if (request.flags.has(SendFlag::Inline) || !request.sges.empty())
    return refuse(ReasonId::TooManySges);
  if (request.opcode != WorkOpcode::BindWindow) return {};
  if ((request.bind.access.bits & ~kBindFlags) != 0)
    return {.id = ReasonId::BadAccessFlags, .object = request.bind.access.bits};
  if (request.bind.new_key.index() != request.bind.window.index())
    return {.id = ReasonId::BindKeyIndex, .object = request.bind.new_key.value};
  return {};
}

void describe(const WindowBind& bind, nic::SendWqe& wqe) {
  wqe.remote_address = bind.address;
  wqe.rkey = bind.new_key.value;
  wqe.immediate = bind.region.value;
  wqe.swap_or_add = bind.length;
  wqe.compare = std::uint64_t{bind.window.value} << 32 | bind.access.bits;
}

// What is refused before anything is written: `bytes` are those of all segments.
Reason check_send(const QueuePair& qp, const SendRequest& request, std::uint64_t bytes) {
  const QueueCapacity& capacity = qp.capacity();
  const QpState state = qp.state();
  const auto refuse = [&](ReasonId id, std::uint64_t length = 0, std::uint64_t limit = 0) {
    return Reason{.id = id, .object = qp.qpn().value, .length = length, .high = limit};
  };
  if (state == QpState::Reset || state == QpState::Init || state == QpState::Rtr)
    return refuse(ReasonId::QpNotReady);
  if (!transport::is_offered(qp.type(), request.opcode))
    return refuse(ReasonId::OpcodeNotSupported);
  if (transport::is_local(request.opcode)) return check_local(request);
  if (request.sges.size() > capacity.send_sges)
    return refuse(ReasonId::TooManySges, request.sges.size(), capacity.send_sges);
  if (bytes > nic::kMaxMessageBytes)
    return refuse(ReasonId::MessageTooLong, bytes, nic::kMaxMessageBytes);
  // An atomic WRITE carries its word in the request however the queue was created.
  const std::uint32_t room = request.opcode == WorkOpcode::AtomicWrite
                                 ? std::max(capacity.inline_bytes, transport::kAtomicBytes)
                                 : capacity.inline_bytes;
  if (request.flags.has(SendFlag::Inline) &&
      (bytes > room || transport::brings_bytes(request.opcode)))
    return refuse(ReasonId::InlineTooLong, bytes, room);
  return {};
}

}  // namespace

QpState QueuePair::state() const { return static_cast<QpState>(published(record_->state)); }

// Whether its kind and what it shares fit each other.
Reason Engine::check_spec(const QueuePairSpec& spec) const {
  using transport::QpType;
  switch (spec.type) {
    case QpType::Rc:
    case QpType::Uc:
    case QpType::Ud:
      break;
    case QpType::RawPacket:
      if (!state_->parts.profile.has(Feature::RawPackets)) return {.id = ReasonId::NotInProfile};
      if (!spec.is_work_queue && !state_->parts.may_use_raw_packets())
        return {.id = ReasonId::RawNotPermitted};
      break;
    case QpType::XrcSend:
    case QpType::XrcReceive:
      if (spec.srq != nullptr) return {.id = ReasonId::SharedQueueKind};
      break;
    default:
      return {.id = ReasonId::OpcodeNotSupported, .object = static_cast<std::uint32_t>(spec.type)};
  }
  if (spec.srq == nullptr) return {};
  const bool matches = spec.srq->capacity().tags != 0;
  if (spec.srq->xrcd() != 0 || (matches && spec.type != QpType::Rc))
    return {.id = ReasonId::SharedQueueKind, .object = spec.srq->srqn()};
  if (spec.srq->pd() != spec.pd)
    return {.id = ReasonId::SharedQueueOtherDomain, .object = spec.srq->srqn()};
  return {};
}

Engine::RingBytes Engine::ring_bytes(const QueuePairSpec& spec) {
  const QueueCapacity granted = granted_capacity(spec);
  if (check_capacity(granted)) return {};
  return {
      .send = ring_pages(std::uint64_t{granted.send_requests} * send_stride(spec.type, granted)),
      .receive =
          ring_pages(WorkRing::receive_bytes(granted.receive_requests, granted.receive_sges))};
}

Result<QueuePair*, Reason> Engine::create_qp(const QueuePairSpec& spec, Time now) {
  EngineState& s = *state_;
  const QueueCapacity granted = granted_capacity(spec);
  Reason bad = check_spec(spec);
  if (!bad) bad = check_capacity(granted, s.parts.profile.sges);
  if (bad) return s.refused("creating a queue pair", bad);

  std::unique_ptr<QueuePair> qp(new QueuePair);
  if (granted.send_requests != 0) {
    auto send = send_ring(spec.type, granted, s.registrations, now, spec.lent.send);
    if (!send) return send.error();
    qp->send_ = std::move(*send);
  }
  auto receive = WorkRing::for_receives(granted.receive_requests, granted.receive_sges,
                                        s.registrations, now, spec.lent.receive);
  if (!receive) return receive.error();
  qp->receive_ = std::move(*receive);
  const auto qpn = s.device.take_qpn();
  if (!qpn) return Reason{.id = ReasonId::LimitExceeded, .high = nic::kMaxQps};
  qp->qpn_ = *qpn;
  qp->pd_ = spec.pd;
  qp->type_ = spec.type;
  qp->capacity_ = granted;
  qp->send_cq_ = spec.send_cq;
  qp->receive_cq_ = spec.receive_cq;
  qp->srq_ = spec.srq;
  qp->xrcd_ = spec.xrcd;
  qp->signal_all_ = spec.signal_all;
  qp->holders_.push_back(spec.events);
  qp->record_ = &s.parts.tables.qps[qpn->value - s.parts.first_qpn];
  s.device.create_qp({.qpn = *qpn,
                      .pd = spec.pd,
                      .type = spec.type,
                      .srqn = spec.srq != nullptr ? spec.srq->srqn() : 0,
                      .xrcd = spec.xrcd,
                      .send_cqn = spec.send_cq != nullptr ? spec.send_cq->cqn() : 0,
                      .receive_cqn = spec.receive_cq != nullptr ? spec.receive_cq->cqn() : 0,
                      .send = qp->send_.place(),
                      .receive = qp->receive_.place(),
                      .max_inline = granted.inline_bytes,
                      .max_frame_bytes = s.port.interface_mtu + kFrameOverhead,
                      .spread_over = qpns_of(spec.spread_over),
                      .spreading = spec.spreading});
  QueuePair* raw = qp.get();
  s.qps.emplace(qpn->value, std::move(qp));
  return raw;
}

Result<void, Reason> Engine::destroy_qp(QueuePair& qp, Time now) {
  EngineState& s = *state_;
  const wire::Qpn qpn = qp.qpn();
  if (s.device.steering().has_rules(qpn) || !s.device.multicast().groups_of(qpn).empty())
    return s.refused("destroying " + name_of(qp.qpn()),
                     {.id = ReasonId::ObjectBusy, .object = qpn.value});
  s.device.destroy_qp(qpn, now);
  if (qp.type() == transport::QpType::RawPacket) s.open_for_frames();
  s.device.give_back_qpn(qpn);
  for (CompletionQueue* const cq : {qp.send_cq(), qp.receive_cq()})
    if (cq != nullptr) cq->forget(qpn);
  s.qps.erase(qpn.value);
  return {};
}

QueuePair* Engine::open_qp(std::uint32_t xrcd, wire::Qpn qpn, EventSink* events) {
  const auto found = state_->qps.find(qpn.value);
  if (found == state_->qps.end() || xrcd == 0 || found->second->xrcd() != xrcd) return nullptr;
  found->second->holders_.push_back(events);
  return found->second.get();
}

Result<void, Reason> Engine::close_qp(QueuePair& qp, EventSink* events, Time now) {
  if (qp.holders_.size() <= 1) return destroy_qp(qp, now);
  const auto one = std::ranges::find(qp.holders_, events);
  ASSERT(one != qp.holders_.end());
  qp.holders_.erase(one);
  return {};
}

transport::QpAttributes Engine::query_qp(const QueuePair& qp) const {
  transport::QpAttributes out = qp.attributes_;
  out.state = state_->device.qp_state(qp.qpn());
  out.draining = state_->device.is_draining(qp.qpn());
  return out;
}

Result<nic::Steering::Id, Reason> Engine::create_flow(const QueuePair& qp, nic::FlowRule rule) {
  if (qp.type() != transport::QpType::RawPacket)
    return Reason{.id = ReasonId::FlowNotRaw, .object = qp.qpn().value};
  nic::Steering& steering = state_->device.steering();
  if (steering.size() >= nic::kMaxFlows)
    return Reason{
        .id = ReasonId::LimitExceeded, .length = nic::kMaxFlows + 1, .high = nic::kMaxFlows};
  rule.qpn = qp.qpn();
  const nic::Steering::Id flow = steering.add(rule);
  state_->open_for_frames();
  return flow;
}

void Engine::destroy_flow(nic::Steering::Id flow) {
  state_->device.steering().remove(flow);
  state_->open_for_frames();
}

Result<void, Reason> Engine::post_send(QueuePair& qp, const SendRequest& request, bool more,
                                       Time now) {
  const std::uint64_t bytes = total_bytes(request.sges);
  if (const Reason bad = check_send(qp, request, bytes))
    return state_->refused("posting a send to " + name_of(qp.qpn()), bad, &qp);
  const bool is_inline = request.flags.has(SendFlag::Inline);
  WorkRing& ring = qp.send_;
  if (const Reason full = check_room(qp)) return full;

  // In the ring itself: what is copied right after it was written waits for those writes.
  const Bytes slot = ring.slot(ring.posted);
  nic::SendWqe& wqe = *std::construct_at(reinterpret_cast<nic::SendWqe*>(slot.data()));
  wqe.cookie = request.wr_id;
  wqe.remote_address = request.remote_address;
  wqe.rkey = request.rkey.value;
  wqe.immediate = request.immediate;
  if (qp.type_ == transport::QpType::XrcSend) wqe.xrc_srqn = request.xrc_srqn;
  wqe.swap_or_add = request.swap_or_add;
  wqe.compare = request.compare;
  if (request.opcode == WorkOpcode::BindWindow) describe(request.bind, wqe);
  wqe.index = ring.posted;
  wqe.opcode = static_cast<std::uint8_t>(request.opcode);
  wqe.flags = wqe_flags(request, qp.signal_all_);
  if ((wqe.flags & static_cast<unsigned>(nic::WqeFlag::Signaled)) != 0)
    ring.signaled = ring.posted + 1;
  std::size_t at = sizeof wqe;
  if (qp.type_ == transport::QpType::Ud) {
    const auto stored = store_address(qp, request.target, slot.subspan(at));
    if (!stored) return stored.error();
    at += *stored;
  }
  if (is_inline) {
    wqe.inline_bytes = static_cast<std::uint32_t>(bytes);
    for (const Sge& s : request.sges) {
      // The program's own memory, read by the program's own call, as a provider would.
      if (s.length != 0)
        std::memcpy(slot.data() + at, reinterpret_cast<const void*>(s.address), s.length);
      at += s.length;
    }
    state_->parts.tracer.count(Counter::CpuCopies);
    state_->parts.tracer.count(Counter::CpuCopyBytes, bytes);
  } else {
    wqe.segments = static_cast<std::uint16_t>(request.sges.size());
    for (const Sge& s : request.sges) {
      store_le(slot, at, nic::Segment{s.address, s.length, s.lkey});
      at += sizeof(nic::Segment);
    }
  }
  ++ring.posted;
  if (!more) ring_send_doorbell(qp, now);
  return {};
}

// Whether the send queue has a slot for one more.
Reason Engine::check_room(const QueuePair& qp) {
  const WorkRing& ring = qp.send_;
  if (ring.posted - slots_given_back(qp, CompletionQueue::Side::Send) < ring.slots) return {};
  const bool is_for_good = state_->parts.profile.frees_when_polled &&
                           ring.posted - ring.signaled >= ring.slots && qp.state() == QpState::Rts;
  Reason full{.id = is_for_good ? ReasonId::SlotsNeverFree : ReasonId::QueueFull,
              .object = qp.qpn().value,
              .high = ring.slots};
  return is_for_good ? state_->refused("posting a send to " + name_of(qp.qpn()), full, &qp) : full;
}

// Of how many requests of a queue the slots are free again: as the profile has it.
std::uint32_t Engine::slots_given_back(const QueuePair& qp, CompletionQueue::Side side) const {
  const bool sends = side == CompletionQueue::Side::Send;
  CompletionQueue* const cq = sends ? qp.send_cq_ : qp.receive_cq_;
  if (state_->parts.profile.frees_when_polled && cq != nullptr) return cq->taken(qp.qpn(), side);
  return published(sends ? qp.record_->send_done : qp.record_->receive_done);
}

// The kernel's part of an address handle: where packets to it leave from.
Result<std::size_t, Reason> Engine::store_address(const QueuePair& qp, const DatagramTarget& to,
                                                  Bytes slot) const {
  const EngineState& s = *state_;
  const transport::AddressVector& address = to.address;
  if (const Reason bad = check_address(address)) return bad;
  const wire::Gid source =
      std::ranges::find(s.gids, address.source_gid_index, &GidEntry::index)->gid;
  const auto port = s.parts.open_path(source, qp.qpn());
  if (!port) return port.error();
  nic::AddressSegment segment;
  std::ranges::copy(source.bytes, segment.source);
  std::ranges::copy(address.destination.bytes, segment.destination);
  segment.qpn = to.qpn.value;
  segment.qkey = to.qkey;
  segment.flow_label = address.flow_label;
  segment.pd = to.pd;
  segment.source_port = *port;
  segment.hop_limit = hop_limit_of(address);
  segment.traffic_class = address.traffic_class;
  store_le(slot, 0, segment);
  return sizeof segment;
}

Result<void, Reason> Engine::post_receive(QueuePair& qp, const ReceiveRequest& request, bool more,
                                          Time now) {
  const auto refuse = [&](ReasonId id) {
    return state_->refused("posting a receive to " + name_of(qp.qpn()),
                           {.id = id, .object = qp.qpn().value}, &qp);
  };
  if (qp.state() == QpState::Reset) return refuse(ReasonId::QpNotReady);
  if (qp.receive_.slots == 0) return refuse(ReasonId::ReceivesAreShared);
  const auto posted = qp.receive_.post_receive(
      request, slots_given_back(qp, CompletionQueue::Side::Receive), qp.qpn().value);
  if (posted && !more) ring_receive_doorbell(qp, now);
  return posted;
}

void Engine::ring_send_doorbell(QueuePair& qp, Time now) {
  if (qp.send_.take_doorbell())
    state_->device.mmio_write(nic::doorbell_offset(nic::Doorbell::Send, qp.qpn().value),
                              qp.send_.posted, now);
}

void Engine::ring_receive_doorbell(QueuePair& qp, Time now) {
  if (qp.receive_.take_doorbell())
    state_->device.mmio_write(nic::doorbell_offset(nic::Doorbell::Receive, qp.qpn().value),
                              qp.receive_.posted, now);
}

}  // namespace softhca::driver
