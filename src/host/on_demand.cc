#include "host/on_demand.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace softhca::host {

namespace {

class KernelPages final : public PageSource {
 public:
  KernelPages(Kernel& kernel, Pid pid) : kernel_(kernel), pid_(pid) {}

  bool is_there() const override { return kernel_.is_running(pid_); }
  trace::Reason fault_in(Range<VirtSpace> pages, bool write, Time now) override {
    return kernel_.fault_in(pid_, pages, write, now);
  }
  std::vector<pcie::Span> frames(Range<VirtSpace> pages) override {
    return kernel_.frames_of(pid_, pages);
  }
  void watch(Range<VirtSpace> pages, TranslationWatcher& watcher) override {
    kernel_.watch(pid_, pages, watcher);
  }
  void unwatch(const TranslationWatcher& watcher) override { kernel_.unwatch(pid_, watcher); }

 private:
  Kernel& kernel_;
  Pid pid_;
};

}  // namespace

std::unique_ptr<PageSource> pages_of(Kernel& kernel, Pid pid) {
  return std::make_unique<KernelPages>(kernel, pid);
}

OnDemand::OnDemand(std::unique_ptr<PageSource> source, const OnDemandRange& range,
                   DeviceMapping mapping)
    : source_(std::move(source)), range_(range), mapping_(std::move(mapping)) {
  ASSERT(range.pages.length != 0 && !range.pages.wraps());
  ASSERT(offset_in(range.pages.start, range.page_bytes) == 0);
  ASSERT(range.pages.length % range.page_bytes == 0);
  ASSERT(offset_in(range.bus, range.page_bytes) == 0);
  source_->watch(range_.pages, *this);
}

OnDemand::~OnDemand() { source_->unwatch(*this); }

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
  if (!source_->is_there())
    return {
        .id = trace::ReasonId::HoleInRange, .address = range_.pages.start.value, .length = bytes};
  ++faults_;
  const std::uint64_t page_bytes = range_.page_bytes;
  const std::uint64_t first = distance(range_.bus, at) / page_bytes;
  const std::uint64_t count = pages_touched(Range<BusSpace>{at, bytes}, page_bytes);
  const Range<VirtSpace> pages{advance(range_.pages.start, first * page_bytes), count * page_bytes};
  if (const trace::Reason reason = source_->fault_in(pages, write, now)) return reason;
  std::uint64_t page = first;
  for (const pcie::Span& span : source_->frames(pages))
    for (std::uint64_t done = 0; done < span.bytes; done += page_bytes, ++page) {
      const auto known = mapped_.find(page);
      if (known != mapped_.end() && (known->second || !write)) continue;
      if (known != mapped_.end()) drop(page, page + 1, now);
      const BusAddr bus = advance(range_.bus, page * page_bytes);
      if (const trace::Reason reason =
              mapping_.map(bus, advance(span.start, done), page_bytes, write, now))
        return reason;
      mapped_.emplace(page, write);
    }
  return {};
}

// Watched is one program's memory, so the change is of that.
void OnDemand::before_change(Pid, Range<VirtSpace> range, Time now) {
  if (!range.overlaps(range_.pages)) return;
  const VirtAddr start = std::max(range.start, range_.pages.start);
  const VirtAddr end = std::min(advance(range.start, range.length),
                                advance(range_.pages.start, range_.pages.length));
  const std::size_t before = mapped_.size();
  drop(distance(range_.pages.start, start) / range_.page_bytes,
       (distance(range_.pages.start, end) + range_.page_bytes - 1) / range_.page_bytes, now);
  invalidations_ += before - mapped_.size();
}

void OnDemand::unmap_all(Time now) { drop(0, range_.pages.length / range_.page_bytes, now); }

// Stretch by stretch.
void OnDemand::drop(std::uint64_t first, std::uint64_t end, Time now) {
  const std::uint64_t page_bytes = range_.page_bytes;
  auto page = mapped_.lower_bound(first);
  while (page != mapped_.end() && page->first < end) {
    const std::uint64_t start = page->first;
    std::uint64_t count = 0;
    for (; page != mapped_.end() && page->first == start + count && page->first < end; ++count)
      page = mapped_.erase(page);
    mapping_.unmap(advance(range_.bus, start * page_bytes), count * page_bytes, now);
  }
}

}  // namespace softhca::host
