// The path of a translation in a machine that has more than a live device: see host/root_port.h.
#include "base/assert.h"
#include "host/dma_domain.h"
#include "host/root_port.h"

namespace softhca::host {

using trace::Counter;
using trace::EventKind;

namespace {

// No walk.
Translation bus_is_physical(BusAddr at) {
  return {.phys = {at.value},
          .leaf_bytes = kPage4K,
          .rights = BusRight::Read | BusRight::Write,
          .levels_read = 0};
}

}  // namespace

// Reads the device's context entry unless it is remembered.
std::optional<TranslationFault> RootPort::find_context(Work& work) {
  if (context_) return std::nullopt;
  const IommuMode mode = domain_ == nullptr ? IommuMode::TranslateStrict : domain_->mode();
  if (parts_.contexts == nullptr || mode == IommuMode::Off) {
    const bool same = mode == IommuMode::PassThrough || mode == IommuMode::Off;
    context_ = {.type = same               ? TranslationType::PassThrough
                        : has_device_tlb() ? TranslationType::SecondLevelWithAts
                                           : TranslationType::SecondLevel,
                .width = 2,
                .domain = 0,
                .second_level = parts_.iommu.root()};
    return std::nullopt;
  }
  const auto found = parts_.contexts->find(parts_.iommu.requester());
  const bool has_root = found || found.error().vtd != VtdReason::NoRootEntry;
  work.entries_read += has_root ? 2 : 1;
  if (!found) return found.error();  // not remembered: it may be there the next time
  context_ = *found;
  return std::nullopt;
}

bool RootPort::is_plain() const {
  const bool strict = domain_ == nullptr || domain_->mode() == IommuMode::TranslateStrict;
  return strict && context_ && context_->type == TranslationType::SecondLevel &&
         context_->second_level == parts_.iommu.root() && parts_.structures == nullptr &&
         parts_.device_tlb == nullptr && parts_.fabric == nullptr && parts_.faults == nullptr;
}

IommuView RootPort::view() const {
  ASSERT(context_);
  return {parts_.iommu.view().tables(), context_->second_level};
}

bool RootPort::reaches_directly(Range<PhysSpace> frames) const {
  if (parts_.fabric == nullptr) return false;
  const pcie::RequesterId self = parts_.iommu.requester();
  for (std::uint64_t at = 0; at < frames.length; at += kPage4K)
    if (parts_.fabric->direct_target(self, {frames.start.value + at}) == nullptr) return false;
  return frames.length != 0;
}

RootPort::Found RootPort::translate_modelled(BusAddr at, pcie::Direction direction, Time now,
                                             Work& work) {
  ASSERT(context_);
  if (parts_.fabric != nullptr) {
    if (const auto* peer = parts_.fabric->direct_target(parts_.iommu.requester(), at)) {
      const bool read = direction == pcie::Direction::Read;
      work.peer = peer;
      work.longer = read ? costs_.peer_read_latency - costs_.read_latency
                         : costs_.peer_write_latency - costs_.write_latency;
      return bus_is_physical(at);
    }
  }
  if (context_->type == TranslationType::PassThrough)
    return find_target(at, bus_is_physical(at), work);
  if (context_->type != TranslationType::SecondLevelWithAts || !has_device_tlb())
    return find_target(at, translate_by_unit(at, direction, now, work), work);
  const auto kept = parts_.device_tlb->lookup(at);
  if (kept && IommuView::allows(*kept, direction)) {
    parts_.tracer.emit(EventKind::IotlbHit, now, 0, at.value, kept->phys.value, kept->leaf_bytes,
                       1);
    watch_stale(at, direction, *kept, now);
    return find_target(at, *kept, work);
  }
  ++work.ats_requests;
  const auto asked = translate_by_unit(at, direction, now, work);
  if (asked) parts_.device_tlb->insert(at, *asked);
  return find_target(at, asked, work);
}

// What lies behind a physical address: RAM, a peer that the root complex routes to, or nothing.
RootPort::Found RootPort::find_target(BusAddr at, const Found& found, Work& work) const {
  const bool same = context_->type == TranslationType::PassThrough;
  if (!found || parts_.ram.is_process() || (!same && parts_.fabric == nullptr)) return found;
  const PhysAddr phys = found->phys;
  if (phys.value < parts_.ram.size()) {
    if (same && kInterruptRange.contains(at, 1)) return TranslationFault{VtdReason::None, false};
    return found;
  }
  const pcie::Endpoint* peer = parts_.fabric == nullptr ? nullptr : parts_.fabric->claims(phys);
  if (peer == nullptr || !parts_.fabric->shape().root_routes_peers)
    return TranslationFault{VtdReason::None, false};
  work.peer = peer;
  work.redirected = true;
  work.longer = costs_.redirect_latency;
  return found;
}

RootPort::Found RootPort::translate_by_unit(BusAddr at, pcie::Direction direction, Time now,
                                            Work& work) {
  trace::Tracer& tracer = parts_.tracer;
  if (const auto cached = parts_.iotlb.lookup(at)) {
    tracer.count(Counter::IotlbHits);
    tracer.emit(EventKind::IotlbHit, now, 0, at.value, cached->phys.value, cached->leaf_bytes);
    if (!IommuView::allows(*cached, direction)) return view().translate(at, direction);
    watch_stale(at, direction, *cached, now);
    return *cached;
  }
  ++work.walks;
  tracer.count(Counter::IotlbMisses);
  const auto walked = walk(at, direction, work);
  if (walked) {
    parts_.iotlb.insert(at, *walked);
    tracer.emit(EventKind::IotlbMiss, now, 0, at.value, walked->phys.value, walked->leaf_bytes,
                walked->levels_read);
    if (parts_.structures != nullptr) watch_stale(at, direction, *walked, now);
  }
  return walked;
}

// From the lowest table that is remembered.
RootPort::Found RootPort::walk(BusAddr at, pcie::Direction direction, Work& work) {
  WalkStart start = view().root();
  if (parts_.structures != nullptr) start = parts_.structures->lookup(at).value_or(start);
  WalkTrail trail;
  const auto found = view().translate_from(start, at, direction, &trail);
  work.entries_read += found ? found->levels_read : trail.count + 1;
  if (parts_.structures != nullptr) parts_.structures->insert(at, trail);
  return found;
}

// Says so when a remembered translation is no longer what the tables say.
void RootPort::watch_stale(BusAddr at, pcie::Direction direction, const Translation& used,
                           Time now) {
  const auto truth = view().translate(at, direction);
  if (truth && truth->phys == used.phys) return;
  const std::optional<Time> unmapped = domain_ == nullptr ? std::nullopt : domain_->unmapped_at(at);
  parts_.tracer.count(Counter::StaleTranslations);
  parts_.tracer.emit(EventKind::StaleTranslation, now, 0, at.value, used.phys.value,
                     static_cast<std::uint64_t>(unmapped.value_or(Time{0}).ps));
}

}  // namespace softhca::host
