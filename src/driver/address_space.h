// AddressSpace: what registration asks about a program's virtual memory.
//
// Live it is the kernel's own answer about this process; in a simulated host that of its machine.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/range.h"
#include "host/on_demand.h"
#include "pcie/port.h"
#include "trace/reason.h"

namespace softhca::driver {

class AddressSpace {
 public:
  virtual ~AddressSpace() = default;

  // May the program read, or write, all of it? Faults the pages in.
  // FAILS WITH HoleInRange, PageReadOnly, SpecialMapping; address = first bad byte
  virtual trace::Reason probe(Range<VirtSpace> range, bool write) = 0;

  // The frames behind whole pages, in order. REQUIRES: page aligned, probe() gave None.
  virtual std::vector<pcie::Span> frames(Range<VirtSpace> pages) = 0;

  // The same memory for a device that asks for its pages one by one, also when another program
  // runs. It outlives neither this object nor what is behind it.
  virtual std::unique_ptr<host::PageSource> page_source() = 0;
  // Which of the 4 KiB pages are in memory now, in order. REQUIRES: page aligned.
  virtual std::vector<bool> present(Range<VirtSpace> pages) = 0;
  // The smallest size of page that a mapping around the range has; 0 if not all of it is mapped.
  virtual std::uint64_t smallest_page(Range<VirtSpace> range) = 0;

  // Whose calls come now: a number for each program that the engine serves. What it makes is its.
  virtual std::uint32_t program() const { return 0; }
};

// Memory for queues, which driver and device share.
class RingSource {
 public:
  virtual ~RingSource() = default;
  // Zeroed, page aligned; empty when there is none.
  virtual Bytes allocate(std::uint64_t bytes) = 0;
  virtual void release(Bytes ring) = 0;
};

}  // namespace softhca::driver
