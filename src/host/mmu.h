// Mmu: what the processor does with a program's address: TLB, else a walk, else a page fault.
//
// It sets the A and D bits of the leaf, as hardware does, and remembers in the TLB what it found.
// Where the TLB's rights do not suffice it walks before it faults: the table may say more by now.
//
// Spec  Intel SDM 3A, 4.7 (page-fault error code), 4.8 (A and D), 4.10.2 (TLB)
#pragma once
#include <cstdint>

#include "base/address.h"
#include "base/clock.h"
#include "base/result.h"
#include "host/page_table.h"
#include "host/tlb.h"
#include "trace/journal.h"

namespace softhca::host {

// Bits of a page fault's error code.
namespace fault_code {
inline constexpr std::uint32_t kPresent = 1;  // a right is missing; else the page is not present
inline constexpr std::uint32_t kWrite = 2;
inline constexpr std::uint32_t kUser = 4;
inline constexpr std::uint32_t kReserved = 8;  // an entry makes no sense
inline constexpr std::uint32_t kFetch = 16;
}  // namespace fault_code

enum class CpuAccess : std::uint8_t { Load, Store, Fetch };

// Which address space the processor is in: CR3, and whose it is.
struct CpuContext {
  Pid pid;
  Pcid pcid{};
  PhysAddr root;
};

struct CpuTranslation {
  PhysAddr phys;  // of the byte asked for
  std::uint64_t leaf_bytes{};
  unsigned levels_read{};  // 0: the TLB knew it
};

struct PageFault {
  VirtAddr at;
  std::uint32_t error_code{};
};

struct MmuCounts {
  std::uint64_t tlb_hits{};
  std::uint64_t walks{};
  std::uint64_t levels_read{};
  std::uint64_t faults{};
};

class Mmu {
 public:
  // OWNS nothing; `ram` and `tracer` outlive this.
  Mmu(Ram& ram, unsigned levels, const TlbShape& shape, trace::Tracer& tracer)
      : ram_(ram), levels_(levels), tlb_(shape), tracer_(tracer) {}

  // An access of the program (CPL 3) to one byte.
  Result<CpuTranslation, PageFault> access(const CpuContext& context, VirtAddr at, CpuAccess kind,
                                           Time now);

  // Forgets what the range's translations were. Says how many pages that were.
  std::uint32_t shoot_down(const CpuContext& context, Range<VirtSpace> range, Time now);

  Tlb& tlb() { return tlb_; }
  const MmuCounts& counts() const { return counts_; }

 private:
  PageFault fault(VirtAddr at, CpuAccess kind, std::uint32_t code);

  Ram& ram_;
  unsigned levels_;
  Tlb tlb_;
  trace::Tracer& tracer_;
  MmuCounts counts_;
};

}  // namespace softhca::host
