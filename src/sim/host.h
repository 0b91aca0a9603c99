// Host: one machine of a simulated world: RAM, IOMMU, bus and a device with its driver.
//
// The same engine, device and transport as live. A program of this host has virtual addresses that
// differ from its frames, and from every bus address.
//
// Threads  one for the whole world
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "driver/engine.h"
#include "driver/engine_parts.h"
#include "link/sim_link.h"

namespace softhca::sim {

struct HostSettings {
  std::uint64_t ram_bytes = std::uint64_t{16} << 20;
  std::uint64_t seed = 1;
  host::HostCosts costs;  // zeros: free
  bool scatter = true;
  std::uint16_t number = 0;
  std::uint32_t mtu = 4096;  // the largest path MTU
  trace::Journal* journal = nullptr;
};

class Host {
 public:
  // `link` and the journal outlive this. `gid` is what the link is attached with.
  Host(const HostSettings& settings, const wire::Gid& gid, link::Link& link);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  driver::Engine& engine() { return *engine_; }
  const wire::Gid& gid() const { return gid_; }

  // Zeroed memory of the program; gives its virtual address. `offset` of it in its page.
  // REQUIRES: there is room.
  VirtAddr allocate(std::uint64_t bytes, std::uint64_t offset = 0);
  // The program's own view of it.
  Bytes memory(VirtAddr at, std::uint64_t bytes);
  // Pages that the program gives back: they are not there any more.
  void unmap(VirtAddr at, std::uint64_t bytes);
  // Pages that it may only read from now on, as far as registration is concerned.
  void protect(VirtAddr at, std::uint64_t bytes);

  host::Iommu& iommu();
  host::Pins& pins();
  host::IovaSpace& iova();
  pcie::ConfigSpace& config();
  nic::Tables tables();
  std::uint64_t counter(trace::Counter counter) const;

 private:
  struct Machine;
  std::unique_ptr<Machine> machine_;
  std::unique_ptr<driver::Engine> engine_;
  wire::Gid gid_;
};

}  // namespace softhca::sim
