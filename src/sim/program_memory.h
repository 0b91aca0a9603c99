// What a modelled host has instead of a process: rings in RAM, and memory of programs by its
// kernel.
//
// See also  driver/address_space.h (what it stands for), sim/host.h (which divides the RAM)
#pragma once
#include <cstdint>
#include <vector>

#include "driver/address_space.h"
#include "host/kernel.h"
#include "host/ram.h"

namespace softhca::sim {

class ArenaRings final : public driver::RingSource {
 public:
  ArenaRings(host::Ram& ram, Range<PhysSpace> range) : ram_(ram), range_(range) {}

  Bytes allocate(std::uint64_t bytes) override {
    if (bytes > range_.length - used_) return {};
    const Bytes ring(ram_.cpu_address(advance(range_.start, used_)), bytes);
    used_ += bytes;
    return ring;
  }
  void release(Bytes) override {}  // a world does not last

 private:
  host::Ram& ram_;
  Range<PhysSpace> range_;
  std::uint64_t used_ = 0;
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
