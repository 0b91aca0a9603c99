// OnDemand: a registered range without pins (on-demand paging).
//
// The device's table starts empty. A device fault asks the kernel for the page and maps it; when
// the kernel is about to move or take a page, the device's mapping goes first. What maps and
// unmaps is given as callbacks, so that this knows no IOMMU; whose memory it is, is behind an
// interface: a program of a modelled machine, or this process (driver/on_demand_regions.h).
//
// Invariants  no page stays mapped for the device over a change of the program's translation
// See also    host/kernel.h (watch), host/pin.h (the other way)
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/address.h"
#include "base/range.h"
#include "host/kernel.h"
#include "trace/reason.h"

namespace softhca::host {

// The memory of one program.
class PageSource {
 public:
  virtual ~PageSource() = default;
  virtual bool is_there() const = 0;  // the program runs
  // Makes every page present, with `write` also writable. FAILS WITH why the first one cannot be.
  virtual trace::Reason fault_in(Range<VirtSpace> pages, bool write, Time now) = 0;
  // REQUIRES: they are present.
  virtual std::vector<pcie::Span> frames(Range<VirtSpace> pages) = 0;
  // `watcher` is told before a page of the range changes, until unwatch() or the program's end.
  virtual void watch(Range<VirtSpace> pages, TranslationWatcher& watcher) = 0;
  virtual void unwatch(const TranslationWatcher& watcher) = 0;
};

struct OnDemandRange {
  Range<VirtSpace> pages;  // whole pages
  BusAddr bus;             // of the first page
  bool writable{};
  std::uint64_t page_bytes = kPage4K;
};

struct DeviceMapping {
  // Maps one page for the device (so that each can go alone); a reason if it could not.
  std::function<trace::Reason(BusAddr, PhysAddr, std::uint64_t bytes, bool writable, Time)> map;
  // Unmaps pages that follow each other, and waits until the device has let go of it.
  std::function<void(BusAddr, std::uint64_t bytes, Time)> unmap;
};

class OnDemand final : public TranslationWatcher {
 public:
  OnDemand(std::unique_ptr<PageSource> source, const OnDemandRange& range, DeviceMapping mapping);
  ~OnDemand() override;
  OnDemand(const OnDemand&) = delete;
  OnDemand& operator=(const OnDemand&) = delete;

  // A device fault: makes the pages of an access present and maps those that are not mapped yet.
  // FAILS WITH OutOfBounds, and as Kernel::fault_in and the map callback do. What was mapped
  // before the failure stays.
  trace::Reason resolve(BusAddr at, std::uint64_t bytes, bool write, Time now);
  const OnDemandRange& range() const { return range_; }

  void before_change(Pid pid, Range<VirtSpace> range, Time now) override;

  // Unmaps everything; the range begins anew. The destructor does not call back: unmap_all() first.
  void unmap_all(Time now);

  std::uint64_t mapped_pages() const { return mapped_.size(); }
  std::uint64_t faults() const { return faults_; }
  std::uint64_t invalidations() const { return invalidations_; }  // pages

 private:
  void drop(std::uint64_t first, std::uint64_t end, Time now);

  std::unique_ptr<PageSource> source_;
  OnDemandRange range_;
  DeviceMapping mapping_;
  std::map<std::uint64_t, bool> mapped_;  // number of the page within the range -> for writes too
  std::uint64_t faults_ = 0;
  std::uint64_t invalidations_ = 0;
};

// The memory of a program of a modelled machine. OWNS nothing; `kernel` outlives this.
std::unique_ptr<PageSource> pages_of(Kernel& kernel, Pid pid);

}  // namespace softhca::host
