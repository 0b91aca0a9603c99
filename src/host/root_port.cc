#include "host/root_port.h"

#include <algorithm>

#include "base/assert.h"
#include "host/dma_domain.h"
#include "pcie/tlp_header.h"

namespace softhca::host {

using trace::Counter;
using trace::EventKind;

namespace {

pcie::Outcome outcome_of(const Moved& moved, Time now) {
  return {.reason = moved.reason, .done_bytes = moved.done_bytes, .ready_at = now};
}

}  // namespace

RootPort::RootPort(Parts parts, const HostCosts& costs, const pcie::LinkLimits& limits)
    : parts_(parts), costs_(costs), is_free_(costs == HostCosts{}), limits_(limits) {}

inline RootPort::Place RootPort::place_of(const Translation& found, BusAddr at) {
  return {.phys = found.phys, .bytes = found.leaf_bytes - offset_in(at, found.leaf_bytes)};
}

inline RootPort::Place RootPort::place_of(const Found& found, BusAddr at) {
  return found ? place_of(*found, at) : Place{.phys = {}, .bytes = 0, .fault = found.error()};
}

// The common part of both paths; `translate` says where a page is, and adds to `work`. Inline, or
// every hit pays for a second call (measured: 53 instead of 44 ns).
template <class Translate>
[[gnu::always_inline]] inline pcie::Outcome RootPort::resolve_by(const pcie::Access& access,
                                                                 Time now, pcie::SpanList& spans,
                                                                 Work& work, Translate translate) {
  const std::size_t spans_before = spans.all().size();
  std::uint64_t done = 0;
  while (done < access.bytes) {
    const BusAddr at = advance(access.at, done);
    const std::uint64_t left = access.bytes - done;
    Place place = translate(at);
    if (place.bytes == 0) [[unlikely]] {
      if (const auto answer = request_page(at, access.direction, now)) {
        if (*answer) return refuse(*answer, done, now);
        work.leaves.level = 0;  // the tables have changed
        place = translate(at);
      }
      if (place.bytes == 0) return block(place.fault, access, done, now);
    }
    const std::uint64_t bytes = std::min(left, place.bytes);
    ASSERT(spans.append({place.phys, bytes}));
    done += bytes;
  }

  const bool reading = access.direction == pcie::Direction::Read;
  const pcie::TlpCount tlps = pcie::count_tlps(access, limits_);
  const Time ready_at = is_free_ ? now : charge(access, tlps, work, now);
  trace::Tracer& tracer = parts_.tracer;
  tracer.count(reading ? Counter::DmaReads : Counter::DmaWrites);
  tracer.count(reading ? Counter::DmaReadBytes : Counter::DmaWriteBytes, access.bytes);
  if (reading) {
    tracer.count(Counter::TlpMemoryReads, tlps.reads);
    tracer.count(Counter::TlpCompletions, tlps.completions);
  } else {
    tracer.count(Counter::TlpMemoryWrites, tlps.writes);
  }
  if (tracer.recording()) {
    tracer.emit(reading ? EventKind::DmaRead : EventKind::DmaWrite, now, 0, access.at.value,
                access.bytes, spans.all().size() - spans_before, tlps.total(),
                static_cast<std::uint64_t>(ready_at.ps));
    pcie::emit_tlps(tracer, access, limits_, parts_.iommu.requester(), next_tag_, now);
  }
  return {.reason = {}, .done_bytes = done, .ready_at = ready_at};
}

// The plain path; a hit is inline.
[[gnu::always_inline]] inline RootPort::Place RootPort::translate(BusAddr at,
                                                                  pcie::Direction direction,
                                                                  Time now, Work& work) {
  const auto cached = parts_.iotlb.lookup(at);
  if (!cached) return walk_plain(at, direction, now, work);
  parts_.tracer.count(Counter::IotlbHits);
  parts_.tracer.emit(EventKind::IotlbHit, now, 0, at.value, cached->phys.value, cached->leaf_bytes);
  if (IommuView::allows(*cached, direction)) return place_of(*cached, at);
  // The cache knows the leaf's rights; the tables decide, and name the fault.
  return place_of(parts_.iommu.translate(at, direction), at);
}

pcie::Outcome RootPort::resolve(const pcie::Access& access, Time now, pcie::SpanList& spans) {
  if (access.bytes == 0) return {.reason = {}, .done_bytes = 0, .ready_at = now};
  if (!parts_.config.bus_master())
    return refuse({.id = trace::ReasonId::BusMasterOff,
                   .object = 0,
                   .address = access.at.value,
                   .length = access.bytes,
                   .low = 0,
                   .high = 0},
                  0, now);

  if (!plain_) [[unlikely]]
    return resolve_modelled(access, now, spans);
  Work work;
  return resolve_by(access, now, spans, work,
                    [&](BusAddr at) { return translate(at, access.direction, now, work); });
}

// What a live device passes only the first time.
pcie::Outcome RootPort::resolve_modelled(const pcie::Access& access, Time now,
                                         pcie::SpanList& spans) {
  if (domain_ != nullptr) domain_->flush_due(now);
  Work work;
  if (const auto fault = find_context(work)) return block(*fault, access, 0, now);
  plain_ = is_plain();
  faults::Injector::AccessFate fate;
  if (parts_.faults != nullptr) {
    const bool writes = access.direction == pcie::Direction::Write;
    fate = parts_.faults->on_access(writes ? faults::Side::Out : faults::Side::In,
                                    {access.at, access.bytes}, now);
    if (fate.reason) return block_by_plan(fate.reason, access, now);
  }
  pcie::Outcome outcome = resolve_by(access, now, spans, work, [&](BusAddr at) {
    return place_of(translate_modelled(at, access.direction, now, work), at);
  });
  outcome.ready_at = outcome.ready_at + fate.late;
  if (outcome && work.peer != nullptr) {
    parts_.tracer.count(Counter::PeerAccesses);
    parts_.tracer.emit(EventKind::PeerAccess, now, work.peer->number, access.at.value, access.bytes,
                       access.direction == pcie::Direction::Write ? 1 : 0, work.redirected ? 1 : 0);
  }
  return outcome;
}

pcie::Outcome RootPort::read(std::span<const pcie::Span> from, Bytes to, Time now) {
  return outcome_of(parts_.ram.read(from, to), now);
}

pcie::Outcome RootPort::write(std::span<const pcie::Span> to, ConstBytes from, Time now) {
  return outcome_of(parts_.ram.write(to, from), now);
}

pcie::Outcome RootPort::read(std::span<const pcie::Span> from, std::span<const Bytes> to,
                             Time now) {
  if (!parts_.ram.moves_parts(from)) return DmaPort::read(from, to, now);
  return outcome_of(parts_.ram.read(from, to), now);
}

pcie::Outcome RootPort::write(std::span<const pcie::Span> to, std::span<const ConstBytes> from,
                              Time now) {
  if (!parts_.ram.moves_parts(to)) return DmaPort::write(to, from, now);
  return outcome_of(parts_.ram.write(to, from), now);
}

void RootPort::attach(DmaDomain* domain) {
  domain_ = domain;
  invalidate_context();
}

void RootPort::invalidate(Range<BusSpace> range, InvalidationHint hint) {
  parts_.iotlb.invalidate(range);
  if (parts_.device_tlb != nullptr) parts_.device_tlb->invalidate(range);
  if (parts_.structures != nullptr && hint == InvalidationHint::Full)
    parts_.structures->invalidate(range);
}

void RootPort::invalidate_all() {
  parts_.iotlb.invalidate_all();
  if (parts_.device_tlb != nullptr) parts_.device_tlb->invalidate_all();
  if (parts_.structures != nullptr) parts_.structures->invalidate_all();
}

void RootPort::invalidate_context() {
  context_.reset();
  plain_ = false;
}

void RootPort::interrupt(std::uint32_t vector, Time now) {
  if (!parts_.config.bus_master()) {
    parts_.tracer.emit(trace::Reason{.id = trace::ReasonId::BusMasterOff,
                                     .object = vector,
                                     .address = 0,
                                     .length = 0,
                                     .low = 0,
                                     .high = 0},
                       now);
    return;
  }
  if (parts_.msix == nullptr) {
    send_message(vector, now, nullptr);
    return;
  }
  if (const auto message = parts_.msix->signal(vector)) send_message(vector, now, &*message);
}

void RootPort::set_masked(std::uint32_t vector, bool masked, Time now) {
  ASSERT(parts_.msix != nullptr);
  const auto message = parts_.msix->set_masked(vector, masked);
  if (message && parts_.config.bus_master()) send_message(vector, now, &*message);
}

// The message is a posted write like those before it, and arrives behind them.
void RootPort::send_message(std::uint32_t vector, Time now, const pcie::MsixMessage* message) {
  upstream_busy_ = later(now, upstream_busy_) + costs_.tlp_overhead;
  parts_.tracer.count(Counter::Interrupts);
  if (message != nullptr && parts_.tracer.recording())
    pcie::emit_tlps(parts_.tracer,
                    {{message->address}, sizeof message->payload, pcie::Direction::Write}, limits_,
                    parts_.iommu.requester(), next_tag_, now);
  parts_.tracer.emit(EventKind::Interrupt, now, vector);
  if (sink_) sink_(vector, upstream_busy_ + costs_.write_latency);
}

RootPort::Place RootPort::walk_plain(BusAddr at, pcie::Direction direction, Time now, Work& work) {
  trace::Tracer& tracer = parts_.tracer;
  ++work.walks;
  tracer.count(Counter::IotlbMisses);
  // The pages of a long access lie side by side in one table, which is not looked for again. What
  // is told and charged is a whole walk.
  const IommuView tables = parts_.iommu.view();
  const bool is_near = work.leaves.level == 1 && work.leaves_of == at.value / kPage2M;
  WalkTrail trail;
  const Found walked = is_near ? tables.translate_from(work.leaves, at, direction, nullptr)
                               : tables.translate_from(tables.root(), at, direction, &trail);
  if (trail.count == trail.tables.size()) {
    work.leaves = trail.tables.back();
    work.leaves_of = at.value / kPage2M;
  }
  if (walked) {
    const std::uint64_t levels_read = is_near ? std::uint64_t{kIommuLevels} : walked->levels_read;
    work.entries_read += levels_read;
    parts_.iotlb.insert(at, *walked);
    tracer.emit(EventKind::IotlbMiss, now, 0, at.value, walked->phys.value, walked->leaf_bytes,
                levels_read);
  }
  return place_of(walked, at);
}

std::optional<trace::Reason> RootPort::request_page(BusAddr at, pcie::Direction direction,
                                                    Time now) {
  if (!on_demand_) return std::nullopt;
  return on_demand_(at, direction, now);
}

// When the access is done: the device's question first, then the walker, then the link.
Time RootPort::charge(const pcie::Access& access, const pcie::TlpCount& tlps, const Work& work,
                      Time now) {
  const auto times = [](Duration each, std::uint64_t count) {
    return each * static_cast<std::int64_t>(count);
  };
  Time start = now + times(costs_.ats_request, work.ats_requests);
  if (work.walks != 0 || work.entries_read != 0) {
    walker_busy_ = later(start, walker_busy_) + times(costs_.iotlb_miss, work.walks) +
                   times(costs_.table_read, work.entries_read);
    start = walker_busy_;
  }
  const Duration payload =
      picoseconds(costs_.ps_per_byte) * static_cast<std::int64_t>(access.bytes);
  const auto headers = [&](std::uint64_t count) { return times(costs_.tlp_overhead, count); };
  upstream_busy_ = later(start, upstream_busy_);
  if (access.direction == pcie::Direction::Write) {
    upstream_busy_ = upstream_busy_ + payload + headers(tlps.writes);
    return upstream_busy_ + costs_.write_latency + work.longer;
  }
  upstream_busy_ = upstream_busy_ + headers(tlps.reads);
  downstream_busy_ = later(upstream_busy_ + costs_.read_latency + work.longer, downstream_busy_) +
                     payload + headers(tlps.completions);
  return downstream_busy_;
}

// Nothing of the access is moved. A read is answered with Unsupported Request; a posted write
// vanishes.
pcie::Outcome RootPort::block(const TranslationFault& fault, const pcie::Access& access,
                              std::uint64_t done, Time now) {
  const BusAddr at = advance(access.at, done);
  const std::uint64_t left = access.bytes - done;
  if (parts_.tracer.recording())
    pcie::emit_refused(parts_.tracer, {at, left, access.direction}, limits_,
                       parts_.iommu.requester(), next_tag_, now);
  if (fault.vtd == VtdReason::None) return refuse(reason_of(fault, at, left), done, now);
  return refuse(parts_.iommu.record_fault(fault, at, left, access.direction, now), done, now);
}

// As if the page were not mapped; who is told, is told why.
pcie::Outcome RootPort::block_by_plan(const trace::Reason& why, const pcie::Access& access,
                                      Time now) {
  const bool reads = access.direction == pcie::Direction::Read;
  pcie::Outcome outcome =
      block({reads ? VtdReason::NoRead : VtdReason::NoWrite, false}, access, 0, now);
  outcome.reason.id = why.id;
  outcome.reason.object = why.object;
  return outcome;
}

pcie::Outcome RootPort::refuse(const trace::Reason& reason, std::uint64_t done_bytes, Time now) {
  return {.reason = reason, .done_bytes = done_bytes, .ready_at = now};
}

}  // namespace softhca::host
