// Iommu: one device's translation domain: which frames it may reach, by which bus addresses.
//
// Everything else is blocked. The key table of the NIC is checked before and does not know of this
// one: a bug in either is caught by the other.
//
// Threads     owned by the device's owner; readers use view() (host/iommu_table.h)
// Invariants  (1) a table without entries is given back, except the root
//                 (or kept until prune())
//             (2) 0xFEE00000-0xFEEFFFFF (interrupt messages) is never mapped
// See also    host/iova.h chooses the addresses, host/iotlb.h caches the answers
#pragma once
#include <cstdint>

#include "base/address.h"
#include "base/clock.h"
#include "base/range.h"
#include "base/result.h"
#include "host/iommu_fault.h"
#include "host/iommu_table.h"
#include "host/table_frames.h"
#include "trace/journal.h"

namespace softhca::host {

// Memory writes to these addresses are interrupts.
inline constexpr Range<BusSpace> kInterruptRange{{0xfee0'0000}, 0x10'0000};

class Iommu {
 public:
  // OWNS nothing; `frames` and `tracer` outlive this. REQUIRES: a frame for the root is free.
  Iommu(TableFrames& frames, RequesterId requester, trace::Tracer& tracer);
  ~Iommu();
  Iommu(const Iommu&) = delete;
  Iommu& operator=(const Iommu&) = delete;

  // Maps [bus, +bytes) to [phys, +bytes) with the largest leaves that both addresses and the length
  // allow, and says how many that took. Single pages one after the other are as cheap as a run.
  // REQUIRES: 4 KiB aligned, bytes > 0, rights, nothing mapped there, within the address widths.
  // FAILS WITH AddressesExhausted: no table frame left; then nothing is mapped.
  Result<std::uint64_t, trace::Reason> map(BusAddr bus, PhysAddr phys, std::uint64_t bytes,
                                           BusRights rights, Time now);

  // Clears all leaves in the range, gives empty tables back, says how many leaves there were.
  // The caller invalidates what caches remember (RootPort::invalidate). If that comes later, it
  // keeps the empty tables until then and prunes them: a cache may still point at them.
  // REQUIRES: 4 KiB aligned; no leaf lies across an end of the range.
  enum class EmptyTables : std::uint8_t { GiveBack, Keep };
  std::uint64_t unmap(BusAddr bus, std::uint64_t bytes, Time now,
                      EmptyTables empty = EmptyTables::GiveBack);

  // Gives back the empty tables that unmap() kept in the range.
  void prune(Range<BusSpace> range);

  Result<Translation, TranslationFault> translate(BusAddr at, pcie::Direction direction) const {
    return view().translate(at, direction);
  }
  IommuView view() const { return {frames_.storage(), root_}; }
  FrameIndex root() const { return root_; }  // for a peer's IommuView

  // Records that `bytes` from `at` on were blocked, and gives the reason for the device's user.
  trace::Reason record_fault(TranslationFault fault, BusAddr at, std::uint64_t bytes,
                             pcie::Direction direction, Time now);
  const FaultLog& faults() const { return faults_; }
  RequesterId requester() const { return requester_; }

  std::uint64_t leaves() const { return leaves_; }
  std::uint32_t table_frames() const { return tables_; }  // the root included

 private:
  // A table that holds leaves, remembered between calls: the last one that was written to.
  struct LastTable {
    bool valid = false;
    unsigned level = 0;
    std::uint64_t region = 0;  // bus address >> bits that the whole table covers
    FrameIndex frame = 0;
  };

  bool find_table(BusAddr bus, unsigned level, FrameIndex& frame);
  std::uint64_t clear(FrameIndex table, unsigned level, std::uint64_t first, std::uint64_t last,
                      EmptyTables empty = EmptyTables::GiveBack);
  void prune(FrameIndex table, unsigned level, std::uint64_t first, std::uint64_t last);
  void drop_table(FrameIndex above, std::size_t index, FrameIndex empty);

  TableFrames& frames_;
  RequesterId requester_;
  trace::Tracer& tracer_;
  FrameIndex root_;
  LastTable last_;
  FaultLog faults_;
  std::uint64_t leaves_ = 0;
  std::uint32_t tables_ = 1;
};

}  // namespace softhca::host
