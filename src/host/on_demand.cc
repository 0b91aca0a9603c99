#include "host/on_demand.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace softhca::host {

OnDemand::OnDemand(Kernel& kernel, const OnDemandRange& range, DeviceMapping mapping)
    : kernel_(kernel), range_(range), mapping_(std::move(mapping)) {
  ASSERT(range.pages.length != 0 && !range.pages.wraps());
  ASSERT(offset_in(range.pages.start, kPage4K) == 0 && range.pages.length % kPage4K == 0);
  ASSERT(offset_in(range.bus, kPage4K) == 0);
  kernel_.watch(range_.pid, range_.pages, *this);
}

OnDemand::~OnDemand() { kernel_.unwatch(range_.pid, *this); }

trace::Reason OnDemand::resolve(BusAddr at, std::uint64_t bytes, bool write, Time now) {
  const Range<BusSpace> whole{range_.bus, range_.pages.length};
  if (!whole.contains(at, bytes))
    return {.id = trace::ReasonId::OutOfBounds,
            .address = at.value,
            .length = bytes,
            .low = whole.start.value,
            .high = advance(whole.start, whole.length).value};
  if (write && !range_.writable)
    return {.id = trace::ReasonId::IommuNoWrite, .address = at.value, .length = bytes};
  if (bytes == 0) return {};
  if (!kernel_.is_running(range_.pid))
    return {
        .id = trace::ReasonId::HoleInRange, .address = range_.pages.start.value, .length = bytes};
  ++faults_;
  const std::uint64_t offset = distance(range_.bus, at);
  const std::uint64_t first = offset / kPage4K;
  const std::uint64_t count = pages_touched(Range<BusSpace>{at, bytes}, kPage4K);
  const Range<VirtSpace> pages{advance(range_.pages.start, first * kPage4K), count * kPage4K};
  if (const trace::Reason reason = kernel_.fault_in(range_.pid, pages, write, now)) return reason;
  std::uint64_t page = first;
  for (const pcie::Span& span : kernel_.frames_of(range_.pid, pages))
    for (std::uint64_t done = 0; done < span.bytes; done += kPage4K, ++page) {
      const auto known = mapped_.find(page);
      if (known != mapped_.end() && (known->second || !write)) continue;
      if (known != mapped_.end()) drop(page, page + 1, now);
      const BusAddr bus = advance(range_.bus, page * kPage4K);
      if (const trace::Reason reason =
              mapping_.map(bus, advance(span.start, done), kPage4K, write, now))
        return reason;
      mapped_.emplace(page, write);
    }
  return {};
}

void OnDemand::before_change(Pid pid, Range<VirtSpace> range, Time now) {
  if (pid != range_.pid || !range.overlaps(range_.pages)) return;
  const VirtAddr start = std::max(range.start, range_.pages.start);
  const VirtAddr end = std::min(advance(range.start, range.length),
                                advance(range_.pages.start, range_.pages.length));
  const std::size_t before = mapped_.size();
  drop(distance(range_.pages.start, start) / kPage4K,
       (distance(range_.pages.start, end) + kPage4K - 1) / kPage4K, now);
  invalidations_ += before - mapped_.size();
}

void OnDemand::unmap_all(Time now) { drop(0, range_.pages.length / kPage4K, now); }

// Stretch by stretch.
void OnDemand::drop(std::uint64_t first, std::uint64_t end, Time now) {
  auto page = mapped_.lower_bound(first);
  while (page != mapped_.end() && page->first < end) {
    const std::uint64_t start = page->first;
    std::uint64_t count = 0;
    for (; page != mapped_.end() && page->first == start + count && page->first < end; ++count)
      page = mapped_.erase(page);
    mapping_.unmap(advance(range_.bus, start * kPage4K), count * kPage4K, now);
  }
}

}  // namespace softhca::host
