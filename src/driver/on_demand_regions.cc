#include "driver/on_demand_regions.h"

#include <utility>

#include "base/assert.h"

namespace softhca::driver {

using trace::Counter;
using trace::EventKind;
using trace::Reason;
using trace::ReasonId;

namespace {

VirtAddr address_behind(const host::OnDemandRange& range, BusAddr at) {
  return advance(range.pages.start, distance(range.bus, at));
}
BusAddr bus_of(const host::OnDemandRange& range, VirtAddr at) {
  return advance(range.bus, distance(range.pages.start, at));
}

host::BusRights rights(bool writable) {
  host::BusRights granted = host::BusRight::Read;
  if (writable) granted |= host::BusRight::Write;
  return granted;
}

}  // namespace

OnDemandRegions::OnDemandRegions(const EngineParts& parts) : parts_(parts) {
  parts_.port.set_on_demand([this](BusAddr at, pcie::Direction direction, Time now) {
    return request(at, direction, now);
  });
}

OnDemandRegions::~OnDemandRegions() {
  parts_.port.set_on_demand({});
  while (!by_bus_.empty()) {
    by_bus_.begin()->second.users = 1;
    remove({by_bus_.begin()->first}, Time{0});
  }
}

std::unique_ptr<host::OnDemand> OnDemandRegions::make(const host::OnDemandRange& range) {
  host::DmaDomain& dma = parts_.dma;
  return std::make_unique<host::OnDemand>(
      parts_.space.page_source(), range,
      host::DeviceMapping{
          .map = [&dma](BusAddr bus, PhysAddr frame, std::uint64_t bytes, bool writable,
                        Time now) { return dma.map_at(bus, frame, bytes, rights(writable), now); },
          .unmap =
              [&dma](BusAddr bus, std::uint64_t bytes, Time now) {
                dma.unmap_at({bus, bytes}, now);
              }});
}

Result<BusAddr, Reason> OnDemandRegions::add(Range<VirtSpace> pages, bool writable,
                                             std::uint64_t page_bytes) {
  if (!parts_.dma.translates()) return Reason{.id = ReasonId::OnDemandUntranslated};
  const auto bus = parts_.dma.reserve(pages.length, page_bytes, 0);
  if (!bus) return Reason{.id = ReasonId::AddressesExhausted, .length = pages.length};
  by_bus_.emplace(
      bus->value,
      Entry{.pages =
                make({.pages = pages, .bus = *bus, .writable = writable, .page_bytes = page_bytes}),
            .reserved = {*bus, pages.length},
            .users = 1});
  return *bus;
}

Result<BusAddr, Reason> OnDemandRegions::add_whole() {
  if (!parts_.whole_space || !parts_.dma.translates())
    return Reason{.id = ReasonId::OnDemandUntranslated};
  const BusAddr bus = *parts_.whole_space;
  const auto known = by_bus_.find(bus.value);
  if (known != by_bus_.end()) {
    ++known->second.users;
    return bus;
  }
  by_bus_.emplace(
      bus.value,
      Entry{.pages = make({.pages = kWholeSpace, .bus = bus, .writable = true}), .users = 1});
  return bus;
}

void OnDemandRegions::remove(BusAddr first, Time now) {
  const auto found = by_bus_.find(first.value);
  ASSERT(found != by_bus_.end());
  Entry& entry = found->second;
  if (--entry.users != 0) return;
  entry.pages->unmap_all(now);
  if (entry.reserved.length != 0) parts_.dma.give_back(entry.reserved);
  by_bus_.erase(found);
}

OnDemandRegions::Entry* OnDemandRegions::find(BusAddr at) {
  auto above = by_bus_.upper_bound(at.value);
  if (above == by_bus_.begin()) return nullptr;
  Entry& entry = std::prev(above)->second;
  const host::OnDemandRange& range = entry.pages->range();
  return Range<BusSpace>{range.bus, range.pages.length}.contains(at, 1) ? &entry : nullptr;
}

std::optional<Reason> OnDemandRegions::request(BusAddr at, pcie::Direction direction, Time now) {
  Entry* const entry = find(at);
  if (entry == nullptr) return std::nullopt;
  const host::OnDemandRange& range = entry->pages->range();
  const BusAddr page = align_down(at, range.page_bytes);
  const bool write = direction == pcie::Direction::Write;
  const Reason answer = entry->pages->resolve(page, range.page_bytes, write, now);
  parts_.tracer.count(answer ? Counter::PageRequestsRefused : Counter::PageRequests);
  parts_.tracer.emit(EventKind::PageRequest, now, 0, page.value, address_behind(range, page).value,
                     range.page_bytes, write ? 1 : 0, static_cast<std::uint64_t>(answer.id));
  return answer;
}

Reason OnDemandRegions::prefetch(BusAddr first, Range<VirtSpace> part, Prefetch how, Time now) {
  host::OnDemand& region = *by_bus_.at(first.value).pages;
  const std::uint64_t page_bytes = region.range().page_bytes;
  const Range<VirtSpace> pages{align_down(part.start, page_bytes),
                               pages_touched(part, page_bytes) * page_bytes};
  if (how == Prefetch::PresentOnly) return prefetch_present(region, pages, now);
  return region.resolve(bus_of(region.range(), pages.start), pages.length,
                        how == Prefetch::ForWriting, now);
}

// Stretch by stretch of what is in memory. What is not, or goes meanwhile, is no failure.
Reason OnDemandRegions::prefetch_present(host::OnDemand& region, Range<VirtSpace> pages, Time now) {
  if (region.range().page_bytes != kPage4K) return {};
  const std::vector<bool> present = parts_.space.present(pages);
  for (std::size_t page = 0; page < present.size();) {
    std::size_t end = page;
    while (end < present.size() && present[end]) ++end;
    if (end != page) {
      const VirtAddr start = advance(pages.start, page * kPage4K);
      const Reason gone =
          region.resolve(bus_of(region.range(), start), (end - page) * kPage4K, false, now);
      if (gone.id == ReasonId::AddressesExhausted) return gone;
    }
    page = end + 1;
  }
  return {};
}

}  // namespace softhca::driver
