// Host: one machine of a simulated world: processor and kernel, RAM, IOMMU, bus, and a device with
// its driver.
//
// The same engine, device and transport as live. A program of this host has virtual addresses that
// differ from its frames, and from every bus address.
//
// Threads  one for the whole world
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "driver/engine.h"
#include "driver/engine_parts.h"
#include "faults/plan.h"
#include "host/dma_domain.h"
#include "host/kernel.h"
#include "link/frame_port.h"
#include "link/sim_link.h"

namespace softhca::sim {

struct HostSettings {
  std::uint64_t ram_bytes = std::uint64_t{32} << 20;  // at least 16 MiB
  std::uint64_t seed = 1;
  unsigned fragmentation = 0;  // percent: how scattered free frames are
  host::HostCosts costs;       // zeros: free
  bool scatter = true;
  host::IommuMode iommu = host::IommuMode::TranslateStrict;
  std::uint16_t number = 0;
  std::uint32_t mtu = 4096;  // the largest path MTU
  std::uint64_t memlock_limit = UINT64_MAX;
  bool copy_pinned_at_fork = true;
  bool kernel_knows_pins = true;  // false: a driver that maps what it did not pin
  std::uint64_t gpu_bytes = 0;    // of a GPU beside the NIC, behind one switch; 0: there is none
  bool structure_caches = false;  // the IOMMU remembers where its tables lie
  bool acs_redirect = true;  // the switch sends requests between the two up to the root complex
  faults::Plan faults;       // none: nothing fails that is not wrong
  transport::CongestionSettings congestion;
  trace::Journal* journal = nullptr;
  std::function<void(const wire::Gid& group, bool joined)> on_group;  // of the host's link
  // Other processes of the host, as driver/engine_parts.h has them; empty: there are none.
  std::function<bool(std::uint32_t block)> watch_process;
  std::function<std::vector<std::uint32_t>()> ended_processes;
  link::FramePort* frames = nullptr;  // for raw packets; null: there is none
};

class Host {
 public:
  // `link`, `clock` and the journal outlive this. `gid` is what the link is attached with. One
  // program, "application", runs.
  Host(const HostSettings& settings, const wire::Gid& gid, link::Link& link, const Time& clock);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  driver::Engine& engine() { return *engine_; }
  const wire::Gid& gid() const { return gid_; }
  std::uint16_t number() const { return number_; }

  // Another program. REQUIRES: there is memory for it.
  host::Pid spawn(std::string_view name);
  // The program ends with everything open, in a kernel's order: its memory goes (what is pinned
  // becomes orphans), then the driver destroys what was its, then orphans without a pin are freed.
  // REQUIRES: it runs.
  void exit(host::Pid pid);
  // The second half, for one whose memory went earlier: it may lie in between that the device
  // goes on working for a program that is no more.
  void close_device_of(host::Pid gone);
  // The program that runs now: whose memory the engine and the calls below mean, and whose is
  // what the engine makes.
  void run(host::Pid pid);
  host::Pid running() const;
  host::Kernel& kernel();

  // Zeroed memory of the program; gives its virtual address. `offset` of it in its page.
  // REQUIRES: there is room.
  VirtAddr allocate(std::uint64_t bytes, std::uint64_t offset = 0,
                    std::uint64_t page_bytes = kPage4K);
  // The same in the memory of the GPU, where the CPU sees it. REQUIRES: there is room.
  VirtAddr allocate_on_gpu(std::uint64_t bytes, std::uint64_t offset = 0);
  bool is_on_gpu(VirtAddr at) const;
  // Where the CPU finds the GPU's memory: its BAR; empty if there is none.
  Range<PhysSpace> gpu_bar() const;
  Range<PhysSpace> nic_bar() const;  // the doorbells

  // What the program itself reads and writes there. REQUIRES: it may.
  std::vector<std::byte> load(VirtAddr at, std::uint64_t bytes);
  void load_into(VirtAddr at, Bytes to);
  void store(VirtAddr at, ConstBytes bytes);
  void fill(VirtAddr at, std::uint64_t bytes, std::byte with);
  // Pages that the program gives back: they are not there any more.
  void unmap(VirtAddr at, std::uint64_t bytes);
  // Pages that it may only read from now on.
  void protect(VirtAddr at, std::uint64_t bytes);

  host::Ram& ram();
  host::Iommu& iommu();
  host::DmaDomain& dma();
  host::Iotlb& iotlb();
  host::RootPort& port();
  host::Pins& pins();
  host::IovaSpace& iova();
  pcie::ConfigSpace& config();
  nic::Tables tables();
  trace::Tracer& tracer();
  std::uint64_t counter(trace::Counter counter) const;
  // All of them; and what has been added to each since.
  using Counts = std::array<std::uint64_t, trace::kCounterCount>;
  Counts counts() const { return counted_since({}); }
  Counts counted_since(const Counts& before) const;
  std::uint64_t ring_bytes() const;  // that the driver has for queues

 private:
  struct Machine;
  std::unique_ptr<Machine> machine_;
  std::unique_ptr<driver::Engine> engine_;
  wire::Gid gid_;
  std::uint16_t number_;
  const Time& clock_;
};

}  // namespace softhca::sim
