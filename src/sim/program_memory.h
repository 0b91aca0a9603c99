// What a modelled host has instead of a process: rings in RAM, and memory of programs by its
// kernel.
//
// See also  driver/address_space.h (what it stands for), sim/host.h (which divides the RAM)
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "driver/address_space.h"
#include "host/kernel.h"
#include "host/ram.h"

namespace softhca::sim {

class ArenaRings final : public driver::RingSource {
 public:
  ArenaRings(host::Ram& ram, Range<PhysSpace> range) : ram_(ram), range_(range) {}

  Bytes allocate(std::uint64_t bytes) override {
    // The first stretch that was given back and is long enough; else what was never used.
    const auto stretch =
        std::ranges::find_if(free_, [&](const auto& free) { return free.second >= bytes; });
    std::uint64_t at = fresh_;
    const bool used_before = stretch != free_.end();
    if (used_before) {
      const std::uint64_t rest = stretch->second - bytes;
      at = stretch->first;
      free_.erase(stretch);
      if (rest != 0) free_.emplace(at + bytes, rest);
    } else if (bytes <= range_.length - fresh_) {
      fresh_ += bytes;
    } else {
      return {};
    }
    in_use_ += bytes;
    const Bytes ring(ram_.cpu_address(advance(range_.start, at)), bytes);
    if (used_before) std::ranges::fill(ring, std::byte{0});
    return ring;
  }

  void release(Bytes ring) override {
    const std::uint64_t at = distance(range_.start, ram_.frame_of(ring.data()));
    std::uint64_t end = at + ring.size();
    in_use_ -= ring.size();
    auto next = free_.lower_bound(at);
    if (next != free_.end() && next->first == end) {
      end += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == at)
      std::prev(next)->second = end - std::prev(next)->first;
    else
      free_.emplace(at, end - at);
  }

  std::uint64_t bytes_in_use() const { return in_use_; }

 private:
  host::Ram& ram_;
  Range<PhysSpace> range_;
  std::map<std::uint64_t, std::uint64_t> free_;  // offset -> bytes of what came back; none touch
  std::uint64_t fresh_ = 0;                      // from this offset on nothing was ever used
  std::uint64_t in_use_ = 0;
};

// Where programs see the memory of a GPU: its BAR, as its driver maps it for them.
inline constexpr VirtAddr kGpuWindow{0x7e00'0000'0000};

// The memory of the program that runs now.
class ProgramMemory final : public driver::AddressSpace {
 public:
  ProgramMemory(host::Kernel& kernel, const Time& clock) : kernel_(kernel), clock_(clock) {}

  void set_gpu(Range<PhysSpace> bar) { gpu_ = bar; }
  const Range<PhysSpace>& gpu() const { return gpu_; }
  bool is_on_gpu(VirtAddr at) const {
    return Range<VirtSpace>{kGpuWindow, gpu_.length}.contains(at, 1);
  }
  PhysAddr on_gpu(VirtAddr at) const { return advance(gpu_.start, distance(kGpuWindow, at)); }

  void run(host::Pid pid) { pid_ = pid; }
  host::Pid running() const { return pid_; }

  trace::Reason probe(Range<VirtSpace> range, bool write) override {
    if (!is_on_gpu(range.start)) return kernel_.fault_in(pid_, range, write, clock_);
    if (Range<VirtSpace>{kGpuWindow, gpu_.length}.contains(range.start, range.length)) return {};
    return {.id = trace::ReasonId::HoleInRange,
            .address = kGpuWindow.value + gpu_.length,
            .length = range.length};
  }
  std::uint32_t program() const override { return pid_.value; }
  std::unique_ptr<host::PageSource> page_source() override { return host::pages_of(kernel_, pid_); }
  // Asked for nothing but advice; what is not known to be there is asked for when it is used.
  std::vector<bool> present(Range<VirtSpace> pages) override {
    return std::vector<bool>(pages.length / kPage4K);
  }
  std::uint64_t smallest_page(Range<VirtSpace>) override { return kPage4K; }
  std::vector<pcie::Span> frames(Range<VirtSpace> pages) override {
    if (is_on_gpu(pages.start)) return {{on_gpu(pages.start), pages.length}};
    return kernel_.frames_of(pid_, pages);
  }

 private:
  host::Kernel& kernel_;
  const Time& clock_;
  host::Pid pid_;
  Range<PhysSpace> gpu_;
};

}  // namespace softhca::sim
