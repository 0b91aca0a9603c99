#include "driver/engine.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"
#include "driver/engine_state.h"

namespace softhca::driver {

using trace::Reason;
using trace::ReasonId;
using transport::QpState;

EngineState::EngineState(const EngineParts& p)
    : parts(p),
      device({.memory = p.port,
              .interrupts = p.port,
              .link = p.link,
              .tracer = p.tracer,
              .tables = p.tables,
              .frames = p.frames,
              .first_qpn = p.first_qpn,
              .qpn_start = static_cast<std::uint32_t>(p.seed >> 16),
              .faults = p.faults,
              .congestion = p.congestion,
              .neighbours = p.neighbours}),
      registrations(parts, device.keys()),
      pds(1, nic::kMaxPds) {
  parts.config.set_bus_master(true);
}

Engine::Engine(EngineParts parts) : state_(std::make_unique<EngineState>(parts)) {
  EngineState& s = *state_;
  auto ring = s.registrations.add_ring(std::uint64_t{kEventSlots} * sizeof(nic::Eqe), Time{0});
  ASSERT(ring);
  s.event_ring = std::move(*ring);
  s.device.set_event_queue({s.event_ring.bus(), kEventSlots});
  s.parts.port.set_interrupt_sink(
      [&s](std::uint32_t, Time arrives_at) { s.on_interrupt(arrives_at, arrives_at); });
  s.device.set_management_listener([this](const nic::Device::ManagementDatagram& datagram,
                                          Time now) { connections().on_datagram(datagram, now); });
  s.device.set_failure_listener([&s](wire::Qpn qpn, const Reason& reason) {
    const auto qp = s.qps.find(qpn.value);
    s.tell(name_of(qpn), reason, qp == s.qps.end() ? nullptr : qp->second.get());
  });
  s.device.set_silence_listener([&s](wire::Qpn qpn, const nic::Silence& silence) {
    const auto qp = s.qps.find(qpn.value);
    if (qp == s.qps.end() || !s.listener) return;
    s.listener(trace::Telling::Warning, name_of(qpn), {.id = ReasonId::PeerSilent},
               silence_of(s, *qp->second, silence));
  });
}

Engine::~Engine() {
  state_->device.set_management_listener({});
  state_->parts.port.set_interrupt_sink({});
  state_->parts.config.set_bus_master(false);
}

void EngineState::on_interrupt(Time arrives_at, Time now) {
  if (arrives_at <= now)
    read_events();
  else
    interrupts.push_back(arrives_at);
}

// The interrupt routine: reads the event ring as far as it is filled.
void EngineState::read_events() {
  for (;; ++events_read) {
    const auto eqe =
        load_le<nic::Eqe>(event_ring.bytes(), events_read % kEventSlots * sizeof(nic::Eqe));
    if (eqe.lap != static_cast<std::uint32_t>(1 + events_read / kEventSlots)) return;
    deliver(eqe);
  }
}

namespace {

AsyncEventType event_type(nic::EqeKind kind) {
  switch (kind) {
    case nic::EqeKind::Completion:  // is no such event
    case nic::EqeKind::CqError:
      return AsyncEventType::CqError;
    case nic::EqeKind::QpRequestError:
      return AsyncEventType::QpRequestError;
    case nic::EqeKind::QpAccessError:
      return AsyncEventType::QpAccessError;
    case nic::EqeKind::QpLastWqe:
      return AsyncEventType::LastWqeReached;
    case nic::EqeKind::SrqError:
      return AsyncEventType::SrqError;
    case nic::EqeKind::SrqLimit:
      return AsyncEventType::SrqLimitReached;
    case nic::EqeKind::Established:
      return AsyncEventType::CommunicationEstablished;
    case nic::EqeKind::SqDrained:
      return AsyncEventType::SqDrained;
    case nic::EqeKind::QpFatal:
      break;
  }
  return AsyncEventType::QpFatal;
}

}  // namespace

void EngineState::deliver(const nic::Eqe& eqe) {
  const auto reason = Reason{.id = static_cast<ReasonId>(eqe.reason), .object = eqe.object};
  const auto kind = static_cast<nic::EqeKind>(eqe.kind);
  switch (kind) {
    case nic::EqeKind::Completion:
    case nic::EqeKind::CqError: {
      const auto cq = cqs.find(eqe.object);
      if (cq == cqs.end() || cq->second->events() == nullptr) return;
      EventSink& sink = *cq->second->events();
      if (kind == nic::EqeKind::Completion) return sink.completion_event(*cq->second);
      return sink.async_event(event_type(kind), nullptr, cq->second.get(), reason);
    }
    case nic::EqeKind::SrqError:
    case nic::EqeKind::SrqLimit: {
      const auto srq = srqs.find(eqe.object);
      if (srq != srqs.end() && srq->second->events() != nullptr)
        srq->second->events()->srq_event(event_type(kind), *srq->second, reason);
      return;
    }
    default: {
      const auto qp = qps.find(eqe.object);
      if (qp == qps.end()) return;
      if (kind == nic::EqeKind::Established && connections) established.push_back({eqe.object});
      for (EventSink* const sink : qp->second->holders())
        if (sink != nullptr) sink->async_event(event_type(kind), qp->second.get(), nullptr, reason);
    }
  }
}

void EngineState::tell(std::string_view what, const Reason& reason, const QueuePair* qp,
                       trace::Telling how) const {
  if (!listener) return;
  std::string text = particulars_of(*this, reason, qp);
  // A failure that no fault caused directly may follow from one.
  if (parts.faults != nullptr && reason.id != ReasonId::InjectedFault)
    text += parts.faults->so_far_text();
  listener(how, what, reason, text);
}

Reason EngineState::refused(std::string_view call, const Reason& reason, const QueuePair* qp) {
  const bool is_first = told_calls.insert(reason.id).second;
  if (is_first || parts.tracer.recording())
    tell(call, reason, qp, is_first ? trace::Telling::Cause : trace::Telling::Again);
  return reason;
}

void EngineState::open_for_frames() {
  if (const auto opened = device.open_for_frames(); !opened)
    refused("opening the interface for raw packets", opened.error());
}

void Engine::tell_refused(std::string_view call, const Reason& reason) {
  state_->refused(call, reason);
}

void Engine::warn(std::string_view what, const Reason& reason, std::string_view particulars) const {
  if (state_->listener) state_->listener(trace::Telling::Warning, what, reason, particulars);
}

Result<std::uint32_t, Reason> Engine::alloc_pd() {
  const auto pd = state_->pds.take();
  if (!pd) return Reason{.id = ReasonId::LimitExceeded, .high = nic::kMaxPds};
  state_->pds_in_use.emplace(*pd, state_->parts.space.program());
  return *pd;
}

Result<void, Reason> Engine::dealloc_pd(std::uint32_t pd) {
  EngineState& s = *state_;
  const bool busy =
      s.registrations.uses_pd(pd) || !s.device.keys().windows_of(pd).empty() ||
      std::ranges::any_of(s.qps, [&](const auto& entry) { return entry.second->pd() == pd; }) ||
      std::ranges::any_of(s.srqs, [&](const auto& entry) { return entry.second->pd() == pd; });
  if (busy)
    return s.refused("destroying a protection domain", {.id = ReasonId::ObjectBusy, .object = pd});
  if (s.pds_in_use.erase(pd) != 0) s.pds.give_back(pd);
  return {};
}

Result<Region, Reason> Engine::register_memory(std::uint32_t pd, VirtAddr start,
                                               std::uint64_t length, WireAddr io_address,
                                               AccessFlags access, Time now, std::uint64_t caller) {
  auto region = state_->registrations.add({pd, {start, length}, io_address, access, caller}, now);
  if (!region) {
    state_->parts.tracer.emit(region.error(), now);
    state_->tell("memory registration", region.error());
  }
  return region;
}

Result<void, Reason> Engine::deregister_memory(wire::Key key, Time now) {
  return state_->registrations.remove(key, now);
}

Result<void, Reason> Engine::change_memory(wire::Key key, const RegionChange& change, Time now) {
  auto changed = state_->registrations.change(key, change, now);
  if (!changed) {
    state_->parts.tracer.emit(changed.error(), now);
    state_->tell("memory re-registration", changed.error());
  }
  return changed;
}

Result<wire::Key, Reason> Engine::register_nothing(std::uint32_t pd) {
  return state_->registrations.add_nothing(pd);
}

Result<wire::Key, Reason> Engine::alloc_window(std::uint32_t pd, nic::WindowType type) {
  return state_->device.keys().insert_window(pd, type);
}

void Engine::dealloc_window(wire::Key window) { state_->device.keys().remove_window(window); }

void Engine::unbind_windows(wire::Key region) { state_->device.keys().unbind_all(region); }

std::optional<Engine::RegionExample> Engine::first_region() const {
  return state_->registrations.first();
}

namespace {

Reason check_entries(std::uint32_t entries, std::uint32_t most = nic::kMaxCqes) {
  if (entries != 0 && entries <= most) return {};
  return {.id = ReasonId::AttributeOutOfRange, .length = entries, .high = most};
}

std::uint64_t cq_bytes(std::uint32_t slots) {
  return std::uint64_t{slots} * sizeof(nic::Cqe) + nic::kCqDoorbellRecordBytes;
}

}  // namespace

std::uint64_t Engine::ring_bytes(const CompletionQueueSpec& spec) {
  return check_entries(spec.entries) ? 0 : ring_pages(cq_bytes(std::bit_ceil(spec.entries)));
}

Result<CompletionQueue*, Reason> Engine::create_cq(const CompletionQueueSpec& spec, Time now) {
  EngineState& s = *state_;
  if (const Reason bad = check_entries(spec.entries, s.parts.profile.cqes)) return bad;
  if (s.cqs.size() >= nic::kMaxCqs)
    return Reason{.id = ReasonId::LimitExceeded, .high = nic::kMaxCqs};
  const std::uint32_t slots = std::bit_ceil(spec.entries);
  auto ring = s.registrations.add_ring(cq_bytes(slots), now, spec.lent);
  if (!ring) return ring.error();
  const std::uint32_t cqn = s.device.take_cqn();
  using Overrun = nic::CompletionQueue::Overrun;
  s.device.create_cq(cqn, {ring->bus(), slots},
                     spec.loses_overrun ? Overrun::Loses : Overrun::Fails);
  auto cq = std::make_unique<CompletionQueue>(cqn, slots, std::move(*ring), spec.events);
  if (s.parts.profile.frees_when_polled) cq->remember();
  CompletionQueue* raw = cq.get();
  s.cqs.emplace(cqn, std::move(cq));
  s.cq_programs.emplace(cqn, s.parts.space.program());
  return raw;
}

Result<void, Reason> Engine::destroy_cq(CompletionQueue& cq, Time now) {
  (void)now;
  EngineState& s = *state_;
  const bool busy =
      std::ranges::any_of(s.qps,
                          [&](const auto& entry) {
                            return entry.second->send_cq() == &cq ||
                                   entry.second->receive_cq() == &cq;
                          }) ||
      std::ranges::any_of(s.srqs, [&](const auto& entry) { return entry.second->cq() == &cq; });
  if (busy)
    return s.refused("destroying a completion queue",
                     {.id = ReasonId::ObjectBusy, .object = cq.cqn()});
  s.device.destroy_cq(cq.cqn());
  s.cq_programs.erase(cq.cqn());
  s.cqs.erase(cq.cqn());
  return {};
}

Result<void, Reason> Engine::resize_cq(CompletionQueue& cq, std::uint32_t entries, Time now) {
  EngineState& s = *state_;
  if (const Reason bad = check_entries(entries, s.parts.profile.cqes)) return bad;
  const std::uint32_t slots = std::bit_ceil(entries);
  if (slots == cq.capacity()) return {};
  auto ring = s.registrations.add_ring(cq_bytes(slots), now);
  if (!ring) return ring.error();
  const nic::RingPlace place{ring->bus(), slots};
  const auto filled = cq.move_to(slots, std::move(*ring));
  if (!filled)
    return Reason{.id = ReasonId::CompletionsUnpolled, .object = cq.cqn(), .length = entries};
  s.device.move_cq(cq.cqn(), place, *filled);
  return {};
}

void Engine::moderate_cq(CompletionQueue& cq, const nic::Moderation& rule, Time now) {
  state_->device.moderate_cq(cq.cqn(), rule, now);
}

void Engine::arm_cq(CompletionQueue& cq, bool solicited_only, Time now) {
  state_->device.mmio_write(nic::doorbell_offset(nic::Doorbell::ArmCq, cq.cqn()),
                            solicited_only ? 2 : 1, now);
}

void Engine::release_program(std::uint32_t program, Time now) {
  EngineState& s = *state_;
  const auto undone = [](const Result<void, Reason>& result) { ASSERT(result); };
  const auto numbers_of = [program](const std::map<std::uint32_t, std::uint32_t>& owners) {
    std::vector<std::uint32_t> numbers;
    for (const auto& [number, owner] : owners)
      if (owner == program) numbers.push_back(number);
    return numbers;
  };
  const std::vector<std::uint32_t> its_pds = numbers_of(s.pds_in_use);
  std::vector<std::uint32_t> its_xrcds;
  for (const auto& [number, xrcd] : s.xrcds)
    if (xrcd.program == program) its_xrcds.push_back(number);
  const auto is_its = [&](const auto& object) {
    return std::ranges::binary_search(its_pds, object->pd()) ||
           std::ranges::binary_search(its_xrcds, object->xrcd());
  };
  std::vector<QueuePair*> its_qps;
  for (const auto& [qpn, qp] : s.qps)
    if (is_its(qp)) its_qps.push_back(qp.get());
  for (QueuePair* qp : its_qps) {
    s.device.steering().remove_all(qp->qpn());
    detach_all(*qp);
    undone(destroy_qp(*qp, now));
  }
  std::vector<SharedReceiveQueue*> its_srqs;
  for (const auto& [srqn, srq] : s.srqs)
    if (is_its(srq)) its_srqs.push_back(srq.get());
  for (SharedReceiveQueue* srq : its_srqs) undone(destroy_srq(*srq, now));
  for (const std::uint32_t pd : its_pds)
    for (const wire::Key window : s.device.keys().windows_of(pd)) dealloc_window(window);
  for (const std::uint32_t pd : its_pds)
    for (const wire::Key key : s.registrations.of_pd(pd)) undone(deregister_memory(key, now));
  std::vector<std::uint32_t> its_memory;
  for (const auto& [handle, dm] : s.device_memory)
    if (dm.program == program) its_memory.push_back(handle);
  for (const std::uint32_t handle : its_memory) undone(free_dm(handle));
  for (const std::uint32_t cqn : numbers_of(s.cq_programs)) undone(destroy_cq(*s.cqs.at(cqn), now));
  for (const std::uint32_t xrcd : its_xrcds)
    for (std::uint32_t left = s.xrcds.at(xrcd).opened; left != 0; --left) undone(close_xrcd(xrcd));
  for (const std::uint32_t pd : its_pds) undone(dealloc_pd(pd));
}

bool Engine::progress(Time now, nic::Caller caller) {
  EngineState& s = *state_;
  if (!s.interrupts.empty() && std::erase_if(s.interrupts, [&](Time at) { return at <= now; }) != 0)
    s.read_events();
  bool worked = s.device.progress(now, caller);
  if (s.connections) {
    for (const wire::Qpn qpn : std::exchange(s.established, {}))
      s.connections->on_traffic(qpn, now);
    worked |= s.connections->progress(now);
  }
  return worked;
}

Connections& Engine::connections() {
  EngineState& s = *state_;
  if (!s.connections) {
    s.connections = std::make_unique<Connections>(
        s.parts, s.device,
        [&s](std::string_view what, const Reason& reason) { s.tell(what, reason); });
    s.connections->set_port(s.port, s.gids);
  }
  return *s.connections;
}

bool Engine::has_connections() const { return state_->connections != nullptr; }

void Engine::send_owed(Time now) { state_->device.send_owed(now); }

Time Engine::next_deadline() const {
  Time at = state_->device.next_deadline();
  for (const Time interrupt : state_->interrupts) at = earlier(at, interrupt);
  if (state_->connections) at = earlier(at, state_->connections->next_deadline());
  return at;
}

void Engine::set_port(const PortAttributes& port, std::vector<GidEntry> gids) {
  std::vector<wire::Gid> addresses;
  for (const GidEntry& entry : gids) addresses.push_back(entry.gid);
  EngineState& s = *state_;
  s.device.set_addresses(std::move(addresses));
  s.device.set_line_rate(port.speed_mbps);
  const bool is_other_state = s.port.state != port.state;
  const bool is_other_table = !std::ranges::equal(s.gids, gids);
  s.port = port;
  s.gids = std::move(gids);
  if (s.connections) s.connections->set_port(s.port, s.gids);
  if (is_other_state)
    s.tell_all(
        port.state == PortState::Active ? AsyncEventType::PortActive : AsyncEventType::PortError,
        port.down);
  if (is_other_table) s.tell_all(AsyncEventType::GidChange, {});
}
const PortAttributes& Engine::port() const { return state_->port; }
std::span<const GidEntry> Engine::gids() const { return state_->gids; }

void Engine::stop(const Reason& why, Time now) {
  EngineState& s = *state_;
  if (s.stopped) return;
  s.stopped = true;
  s.device.stop(why, now);
  if (s.connections) s.connections->tell_removal(why);
  s.tell_all(AsyncEventType::DeviceFatal, why);
}
bool Engine::stopped() const { return state_->stopped; }

void Engine::add_sink(EventSink& sink) { state_->sinks.push_back(&sink); }
void Engine::remove_sink(EventSink& sink) { std::erase(state_->sinks, &sink); }
void Engine::set_reason_listener(ReasonListener listener) {
  state_->listener = std::move(listener);
}

}  // namespace softhca::driver
