#include "sim/host.h"

#include <algorithm>
#include <map>

#include "base/assert.h"
#include "driver/table_memory.h"
#include "sim/arena.h"

namespace softhca::sim {
namespace {

using trace::Reason;
using trace::ReasonId;

// RAM is divided: queues of driver and device first, then the program's memory.
constexpr std::uint64_t kRingShare = 2;
constexpr std::size_t kKeys = 4096;
constexpr std::size_t kTranslations = 65536;
constexpr std::size_t kQps = 64;
constexpr std::size_t kIommuFrames = 512;
constexpr std::uint32_t kFirstQpn = 0x4000;

}  // namespace

struct Host::Machine {
  Machine(const HostSettings& s)
      : counters(trace::kCounterCount),
        tracer(trace::Counters(counters), s.journal, s.number),
        ram(host::Ram::arena(s.ram_bytes)),
        keys(kKeys),
        translations(kTranslations),
        qps(kQps),
        iommu_memory(kIommuFrames * kPage4K),
        pins(nullptr, {}, tracer),
        frames(iommu_memory),
        contexts(frames, tracer),
        iommu(frames, {}, tracer),
        iova(s.seed ^ 0x696f7661),
        port({.ram = ram,
              .iommu = iommu,
              .iotlb = iotlb,
              .config = config,
              .tracer = tracer,
              .contexts = &contexts},
             s.costs),
        dma({.iommu = iommu, .iova = iova, .port = port, .tracer = tracer, .contexts = &contexts},
            host::IommuMode::TranslateStrict, s.seed ^ 0x646d61),
        rings(ram, s.ram_bytes / kRingShare),
        space(s.ram_bytes / kRingShare, s.ram_bytes - s.ram_bytes / kRingShare) {}

  std::vector<std::uint64_t> counters;
  trace::Tracer tracer;
  host::Ram ram;
  std::vector<nic::KeyRecord> keys;
  std::vector<std::uint64_t> translations;
  std::vector<nic::QpRecord> qps;
  std::vector<std::byte> iommu_memory;
  host::Pins pins;
  host::TableFrames frames;
  host::ContextTable contexts;
  host::Iommu iommu;
  host::IovaSpace iova;
  host::Iotlb iotlb;
  pcie::ConfigSpace config;
  host::RootPort port;
  host::DmaDomain dma;
  ArenaRings rings;
  ArenaSpace space;
  std::uint64_t next_virtual = kVirtualBase;
};

Host::Host(const HostSettings& settings, const wire::Gid& gid, link::Link& link)
    : machine_(std::make_unique<Machine>(settings)), gid_(gid) {
  Machine& m = *machine_;
  engine_ = std::make_unique<driver::Engine>(driver::EngineParts{
      .ram = m.ram,
      .pins = m.pins,
      .dma = m.dma,
      .port = m.port,
      .config = m.config,
      .space = m.space,
      .rings = m.rings,
      .link = link,
      .tracer = m.tracer,
      .tables = tables(),
      .first_qpn = kFirstQpn,
      .seed = settings.seed,
      .scatter = settings.scatter,
      .open_path = [](const wire::Gid&, wire::Qpn qpn) -> Result<std::uint16_t, Reason> {
        return static_cast<std::uint16_t>(0xc000 | (qpn.value & 0x3fff));
      }});
  engine_->set_port({.state = driver::PortState::Active,
                     .max_mtu = 4096,
                     .active_mtu = settings.mtu,
                     .interface_mtu = 9000,
                     .gid_table_length = nic::kGidTableLength,
                     .speed_mbps = 100'000,
                     .max_message_bytes = nic::kMaxMessageBytes,
                     .down = {}},
                    {{0, gid}});
}

Host::~Host() = default;

VirtAddr Host::allocate(std::uint64_t bytes, std::uint64_t offset) {
  Machine& m = *machine_;
  const VirtAddr at{m.next_virtual + offset};
  const std::uint64_t pages = pages_touched(Range<VirtSpace>{at, bytes}, kPage4K);
  m.space.set({m.next_virtual}, pages * kPage4K, ArenaSpace::Page::Writable);
  m.next_virtual += pages * kPage4K;
  return at;
}

Bytes Host::memory(VirtAddr at, std::uint64_t bytes) {
  return {machine_->ram.cpu_address(machine_->space.frame_of(at)), bytes};
}
void Host::unmap(VirtAddr at, std::uint64_t bytes) {
  machine_->space.set(at, bytes, ArenaSpace::Page::Gone);
}
void Host::protect(VirtAddr at, std::uint64_t bytes) {
  machine_->space.set(at, bytes, ArenaSpace::Page::ReadOnly);
}

host::Iommu& Host::iommu() { return machine_->iommu; }
host::Pins& Host::pins() { return machine_->pins; }
host::IovaSpace& Host::iova() { return machine_->iova; }
pcie::ConfigSpace& Host::config() { return machine_->config; }
nic::Tables Host::tables() {
  return {.keys = machine_->keys, .translations = machine_->translations, .qps = machine_->qps};
}
std::uint64_t Host::counter(trace::Counter counter) const {
  return machine_->tracer.counters().get(counter);
}

}  // namespace softhca::sim
