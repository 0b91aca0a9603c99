// IovaSpace: chooses bus addresses for a domain.
//
// Addresses lie in the upper half of the 48-bit space, where no user program has memory, behind a
// random start: a bus address never equals a virtual or physical one, so a device that skips a
// translation fails at once. The search goes on where the last one ended, so that an address that
// was released is used again as late as possible.
//
// Invariants  (1) what was allocated overlaps nothing else that is, nor the interrupt range
//             (2) when all is released, one free stretch is left
#pragma once
#include <cstdint>
#include <map>
#include <optional>

#include "base/address.h"
#include "base/range.h"
#include "host/iommu.h"

namespace softhca::host {

// The largest leaf (4 KiB, 2 MiB, 1 GiB) that fits somewhere into the range if bus and physical
// address agree modulo its size.
std::uint64_t best_leaf(Range<PhysSpace> range);

class IovaSpace {
 public:
  static constexpr Range<BusSpace> kUpperHalf{{std::uint64_t{1} << 47}, std::uint64_t{1} << 47};

  // REQUIRES: `window` is page aligned and within 48 bits.
  explicit IovaSpace(std::uint64_t seed, Range<BusSpace> window = kUpperHalf);

  // `bytes` (rounded up to pages) whose start equals `phase` modulo `alignment`; nothing if no free
  // stretch is long enough. For the largest leaves: allocate(n, best_leaf(r), r.start.value).
  // REQUIRES: bytes > 0; alignment a power of two, at least 4 KiB; phase page aligned.
  std::optional<BusAddr> allocate(std::uint64_t bytes, std::uint64_t alignment = kPage4K,
                                  std::uint64_t phase = 0);

  // REQUIRES: exactly what one allocate() gave.
  void release(BusAddr start, std::uint64_t bytes);

  std::uint64_t bytes_in_use() const { return in_use_; }
  std::size_t free_stretches() const { return free_.size(); }

 private:
  using Free = std::map<std::uint64_t, std::uint64_t>;  // start -> end; no two touch

  void carve(Free::iterator stretch, std::uint64_t start, std::uint64_t end);
  void exclude(Range<BusSpace> range);

  Free free_;
  std::uint64_t next_;  // where the next search starts
  std::uint64_t in_use_ = 0;
};

}  // namespace softhca::host
