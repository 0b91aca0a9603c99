// OnDemandRegions: memory of programs that a device uses without pins.
//
// A region has bus addresses from the start, and behind them nothing. The device's access to such
// an address fails in the IOMMU and becomes a page request: the kernel brings the page, it is
// mapped, and the access goes on. The same code serves a live process, where the kernel is the real
// one, and a modelled machine, where pages also go again (host/on_demand.h).
//
// Threads     called with the device owned
// Invariants  nothing is pinned; what is still mapped when a region goes is unmapped
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "base/result.h"
#include "driver/attributes.h"
#include "driver/engine_parts.h"
#include "host/on_demand.h"

namespace softhca::driver {

class OnDemandRegions {
 public:
  // A program's addresses, as far as a region of all of them goes.
  static constexpr Range<VirtSpace> kWholeSpace{{0}, std::uint64_t{1} << 47};

  // Answers the port's page requests from now on. OWNS nothing.
  explicit OnDemandRegions(const EngineParts& parts);
  ~OnDemandRegions();
  OnDemandRegions(const OnDemandRegions&) = delete;
  OnDemandRegions& operator=(const OnDemandRegions&) = delete;

  // The bus address of the first of these whole pages of `page_bytes`.
  // FAILS WITH AddressesExhausted, OnDemandUntranslated
  Result<BusAddr, trace::Reason> add(Range<VirtSpace> pages, bool writable,
                                     std::uint64_t page_bytes);
  // All of a program's memory, at one place for whoever asks. FAILS WITH OnDemandUntranslated
  Result<BusAddr, trace::Reason> add_whole();
  // REQUIRES: what one add() gave.
  void remove(BusAddr first, Time now);

  // Maps pages before they are asked for. REQUIRES: `part` lies in the region.
  // FAILS WITH HoleInRange, PageReadOnly and the like; not for what is present only
  trace::Reason prefetch(BusAddr first, Range<VirtSpace> part, Prefetch how, Time now);

 private:
  struct Entry {
    std::unique_ptr<host::OnDemand> pages;
    Range<BusSpace> reserved{};  // empty: not taken from the domain
    std::uint32_t users{};
  };
  Entry* find(BusAddr at);
  std::unique_ptr<host::OnDemand> make(const host::OnDemandRange& range);
  std::optional<trace::Reason> request(BusAddr at, pcie::Direction direction, Time now);
  trace::Reason prefetch_present(host::OnDemand& region, Range<VirtSpace> pages, Time now);

  EngineParts parts_;
  std::map<std::uint64_t, Entry> by_bus_;  // by first address
};

}  // namespace softhca::driver
