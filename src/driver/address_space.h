// AddressSpace: what registration asks about a program's virtual memory.
//
// Live it is the kernel's own answer about this process; in a simulated host that of its machine.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
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

  // Those of the pages around a region's buffer. What the program does there may differ from now
  // on, until they are released.
  virtual std::vector<pcie::Span> hold_frames(Range<VirtSpace> buffer) {
    return frames({align_down(buffer.start, kPage4K), pages_touched(buffer, kPage4K) * kPage4K});
  }
  // REQUIRES: what hold_frames() gave; no device reaches it any more.
  virtual void release_frames(std::span<const pcie::Span>) {}

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
