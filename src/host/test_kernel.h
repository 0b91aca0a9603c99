// What tests of the kernel need around it: RAM, pins, a journal, and memory written as numbers.
#pragma once
#include <cstring>
#include <vector>

#include "host/kernel.h"
#include "host/pin.h"
#include "host/test_bench.h"

namespace softhca::host {

inline constexpr PageRights kLoadStore = PageRight::Read | PageRight::Write;

struct KernelBench : TestBench {
  explicit KernelBench(std::uint64_t bytes = 8 * kPage2M, const KernelSettings& settings = {})
      : ram(Ram::arena(bytes)),
        pins(nullptr, {}, tracer),
        kernel(ram, pins, with_memory(settings, bytes), tracer) {}

  static KernelSettings with_memory(KernelSettings settings, std::uint64_t bytes) {
    settings.memory = {{kPage4K}, bytes - kPage4K};
    return settings;
  }

  Pid spawn(std::string_view name = "database") { return *kernel.spawn(name); }
  VirtAddr map(Pid pid, std::uint64_t pages, std::uint64_t page_bytes = kPage4K) {
    return *kernel.map_memory(pid, pages * page_bytes, page_bytes, kLoadStore);
  }
  MemoryError put(Pid pid, VirtAddr at, std::uint64_t value) {
    const auto stored = kernel.store(pid, at, bytes_of(value), {});
    return stored ? MemoryError::None : stored.error().error;
  }
  std::uint64_t get(Pid pid, VirtAddr at) {
    std::uint64_t value = 0;
    const auto loaded = kernel.load(pid, at, writable_bytes_of(value), {});
    return loaded ? value : ~std::uint64_t{0};
  }
  PhysAddr frame(Pid pid, VirtAddr at) const { return kernel.walk(pid, at).phys; }
  std::uint64_t in_frame(PhysAddr at) const {
    std::uint64_t value;
    std::memcpy(&value, ram.cpu_address(at), sizeof value);
    return value;
  }
  // As a registration does it.
  std::vector<PinId> pin(Pid pid, VirtAddr at, std::uint64_t pages) {
    std::vector<PinId> ids;
    if (kernel.fault_in(pid, {at, pages * kPage4K}, true, {})) return ids;
    for (const pcie::Span& span : kernel.frames_of(pid, {at, pages * kPage4K}))
      ids.push_back(pins.pin({span.start, span.bytes}, {})->id);
    return ids;
  }
  void unpin(const std::vector<PinId>& ids) {
    for (const PinId id : ids) pins.unpin(id, {});
  }
  bool is_empty() {
    kernel.reap_orphans();
    return kernel.frames().free_frames() == kernel.frames().frames() &&
           kernel.swap_slots_used() == 0 && kernel.programs() == 0 &&
           kernel.mmu().tlb().entries() == 0;
  }

  Ram ram;
  Pins pins;
  Kernel kernel;
};

}  // namespace softhca::host
