// Program: what the kernel of a modelled machine knows of one program: its regions and its table.
//
// See also  host/kernel.h, which is the only one that changes it
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/address.h"
#include "base/range.h"
#include "host/mmu.h"
#include "host/page_table.h"

namespace softhca::host {

// Told before pages of a program come to lie elsewhere, or lose a right (an MMU notifier).
class TranslationWatcher {
 public:
  virtual ~TranslationWatcher() = default;
  // When this returns, no device may reach the pages of `range` by what it knew of them.
  virtual void before_change(Pid pid, Range<VirtSpace> range, Time now) = 0;
};

// A stretch of addresses that the program asked for. Its pages come when they are first used.
struct Region {
  std::uint64_t end{};
  std::uint64_t page_bytes = kPage4K;
  PageRights rights;
  bool inherited = true;  // a child of fork gets it
};

struct Program {
  Program(Ram& ram, FrameAllocator& frames, Pid pid_, Pcid pcid_, unsigned levels)
      : pid(pid_), pcid(pcid_), table(ram, frames, pid_, levels) {}

  CpuContext context() const { return {pid, pcid, table.root()}; }
  // Null where the program has nothing.
  const Region* region_at(VirtAddr at) const {
    auto next = regions.upper_bound(at.value);
    if (next == regions.begin()) return nullptr;
    --next;
    return at.value < next->second.end ? &next->second : nullptr;
  }

  Pid pid;
  Pcid pcid;
  PageTable table;
  std::map<std::uint64_t, Region> regions;  // by first address; no two overlap
  std::uint64_t next_address{};             // where the next region may begin
  std::vector<std::pair<Range<VirtSpace>, TranslationWatcher*>> watchers;
};

}  // namespace softhca::host
