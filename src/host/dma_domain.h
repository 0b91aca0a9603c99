// DmaDomain: the kernel's DMA interface for one device: frames in, bus addresses out.
//
// It chooses the addresses (host/iova), maps them for the device (host/iommu), and decides when
// the device forgets them: the policy.
//
//   TranslateStrict    unmap clears the leaf, invalidates what is cached, then frees the address:
//                      an access afterwards is certain to fault
//   TranslateDeferred  unmap clears the leaf and queues the rest: one flush for 256 unmaps, or 10
//   ms
//                      after the first of them. Until then a cached translation still answers: a
//                      window in which the device reaches frames that are no longer its own. The
//                      address is not given out again inside the window.
//   PassThrough        the bus address is the physical one; that the device has a context entry is
//                      checked, nothing is walked, and all of RAM can be reached
//   Off                the same, and nothing at all is checked
//
// Memory of another device (pcie/fabric) whose requests do not pass the root complex is reached by
// its BAR address in every mode.
//
// Spec        Intel VT-d, 6.5 (invalidation); 256 entries and 10 ms are Linux's flush queue
// Threads     owned by the device's owner
// Invariants  an address is given out again only when no cache remembers it
// See also    driver/registration.h, which asks; host/root_port.h, which calls flush_due()
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "host/context_table.h"
#include "host/iommu.h"
#include "host/iova.h"
#include "host/root_port.h"

namespace softhca::host {

enum class IommuMode : std::uint8_t { TranslateStrict, TranslateDeferred, PassThrough, Off };

// InOrder: one stretch in the order of the frames, by the largest leaves that they allow.
// Permuted: 4 KiB leaves in an order that is not theirs.
enum class PageOrder : std::uint8_t { InOrder, Permuted };

struct DmaMapping {
  BusAddr first;                     // of the first page
  std::vector<std::uint64_t> pages;  // bus address of each page; empty: they follow each other
  Range<BusSpace> stretch;           // taken from the domain; empty where none was needed
};

class DmaDomain {
 public:
  static constexpr std::size_t kFlushEntries = 256;
  static constexpr Duration kFlushAfter = milliseconds(10);

  struct Parts {
    Iommu& iommu;
    IovaSpace& iova;
    RootPort& port;
    trace::Tracer& tracer;
    ContextTable* contexts = nullptr;  // null: the device is not looked up
  };
  // Attaches the device: its context entry, and the port asks this object from now on. OWNS
  // nothing; the parts outlive this.
  DmaDomain(const Parts& parts, IommuMode mode, std::uint64_t seed, std::uint16_t domain = 1);
  ~DmaDomain();
  DmaDomain(const DmaDomain&) = delete;
  DmaDomain& operator=(const DmaDomain&) = delete;

  // REQUIRES: whole pages, at least one, rights. FAILS WITH AddressesExhausted: nothing is mapped.
  Result<DmaMapping, trace::Reason> map(std::span<const pcie::Span> frames, BusRights rights,
                                        PageOrder order, Time now);
  // REQUIRES: what map() gave (`pages` may be missing).
  void unmap(const DmaMapping& mapping, Time now);

  // Addresses behind which nothing is mapped yet, for pages that come and go one by one, whatever
  // the policy. REQUIRES (all): translates(), whole pages; what IovaSpace::allocate() asks for.
  std::optional<BusAddr> reserve(std::uint64_t bytes, std::uint64_t alignment,
                                 std::uint64_t phase) {
    return allocate(bytes, alignment, phase);
  }
  // FAILS WITH AddressesExhausted. REQUIRES: reserved, and nothing is mapped there.
  trace::Reason map_at(BusAddr bus, PhysAddr phys, std::uint64_t bytes, BusRights rights, Time now);
  // Nobody remembers the pages afterwards.
  void unmap_at(Range<BusSpace> pages, Time now);
  // REQUIRES: exactly what reserve() gave, and nothing is mapped there.
  void give_back(Range<BusSpace> reserved) { parts_.iova.release(reserved.start, reserved.length); }

  // Deferred: invalidates and frees what is queued; due when 10 ms have passed since the first.
  void flush(Time now);
  void flush_due(Time now) {
    if (now >= next_deadline_) flush(next_deadline_);
  }
  Time next_deadline() const { return next_deadline_; }

  // Deferred: when the page was unmapped that the device may still reach.
  std::optional<Time> unmapped_at(BusAddr at) const;

  IommuMode mode() const { return mode_; }
  bool translates() const { return mode_ <= IommuMode::TranslateDeferred; }
  std::size_t waiting() const { return queue_.size(); }
  std::uint64_t leaves() const { return parts_.iommu.leaves(); }

 private:
  struct Unmapped {
    Range<BusSpace> stretch;
    Time at;
  };

  bool is_direct(const pcie::Span& span) const;
  std::optional<BusAddr> allocate(std::uint64_t bytes, std::uint64_t leaf, std::uint64_t phase);
  Result<DmaMapping, trace::Reason> map_in_order(std::span<const pcie::Span> frames,
                                                 BusRights rights, std::uint64_t bytes, Time now);
  Result<DmaMapping, trace::Reason> map_pages(std::span<const pcie::Span> frames, BusRights rights,
                                              std::uint64_t bytes, PageOrder order, Time now);
  // Everything: after a map() that failed and gave tables back by itself.
  enum class Forget : std::uint8_t { LeavesIfTablesStay, Everything };
  void take_back(Range<BusSpace> stretch, Time now, Forget what);

  Parts parts_;
  IommuMode mode_;
  Prng prng_;
  std::vector<Unmapped> queue_;
  Time next_deadline_ = Time::never();
  Time latest_{};  // that anybody told
};

}  // namespace softhca::host
