// What a modelled host has instead of a process: queues and program memory in an arena of RAM.
//
// See also  driver/address_space.h (what it stands for), sim/host.h (which divides the arena)
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/assert.h"
#include "driver/address_space.h"
#include "host/ram.h"

namespace softhca::sim {

// Where the program's memory begins, as it sees it.
inline constexpr std::uint64_t kVirtualBase = 0x5555'0000'0000;

class ArenaRings final : public driver::RingSource {
 public:
  ArenaRings(host::Ram& ram, std::uint64_t end) : ram_(ram), end_(end) {}

  Bytes allocate(std::uint64_t bytes) override {
    if (bytes > end_ - next_) return {};
    const Bytes ring(ram_.cpu_address({next_}), bytes);
    next_ += bytes;
    return ring;
  }
  void release(Bytes) override {}  // a world does not last

 private:
  host::Ram& ram_;
  std::uint64_t next_ = kPage4K;  // frame 0 stays empty, so that a forgotten address is seen
  std::uint64_t end_;
};

// The program's pages lie in RAM one after the other, from `first` on.
class ArenaSpace final : public driver::AddressSpace {
 public:
  enum class Page : std::uint8_t { Writable, ReadOnly, Gone };

  ArenaSpace(std::uint64_t first, std::uint64_t bytes)
      : first_(first), pages_(bytes / kPage4K, Page::Gone) {}

  trace::Reason probe(Range<VirtSpace> range, bool write) override {
    const std::uint64_t count = pages_touched(range, kPage4K);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t page = align_down(range.start, kPage4K).value + i * kPage4K;
      const std::uint64_t index = (page - kVirtualBase) / kPage4K;
      const bool there =
          page >= kVirtualBase && index < pages_.size() && pages_[index] != Page::Gone;
      if (!there)
        return {.id = trace::ReasonId::HoleInRange, .address = page, .length = range.length};
      if (write && pages_[index] == Page::ReadOnly)
        return {.id = trace::ReasonId::PageReadOnly, .address = page, .length = range.length};
    }
    return {};
  }
  std::vector<pcie::Span> frames(Range<VirtSpace> pages) override {
    return {{PhysAddr{first_ + (pages.start.value - kVirtualBase)}, pages.length}};
  }

  void set(VirtAddr at, std::uint64_t bytes, Page what) {
    const std::uint64_t first = (at.value - kVirtualBase) / kPage4K;
    const std::uint64_t count = pages_touched(Range<VirtSpace>{at, bytes}, kPage4K);
    ASSERT(first + count <= pages_.size());
    std::fill_n(pages_.begin() + static_cast<std::ptrdiff_t>(first), count, what);
  }
  PhysAddr frame_of(VirtAddr at) const { return {first_ + (at.value - kVirtualBase)}; }

 private:
  std::uint64_t first_;  // frame address of the first page
  std::vector<Page> pages_;
};

}  // namespace softhca::sim
