#include "sim/host.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"
#include "driver/table_memory.h"
#include "link/faulty_link.h"
#include "sim/program_memory.h"

namespace softhca::sim {
namespace {

using trace::Reason;

// RAM, from the bottom: what nothing may use, so that a forgotten address is seen; the tables of
// the IOMMU; the rings of driver and device; the kernel's frames.
constexpr host::FrameIndex kFirstTable = 16;
constexpr std::uint64_t kSmallestRam = std::uint64_t{16} << 20;
constexpr std::uint64_t kRingBytes = std::uint64_t{6} << 20;

// Enough for all of RAM in pages of 4 KiB, and for tables that are not full.
Range<PhysSpace> table_memory(std::uint64_t ram_bytes) {
  const std::uint64_t bytes = ram_bytes / 512 + kPage2M;
  return {{0}, (bytes + kPage2M - 1) / kPage2M * kPage2M};
}
Range<PhysSpace> ring_memory(std::uint64_t ram_bytes) {
  const Range<PhysSpace> tables = table_memory(ram_bytes);
  return {advance(tables.start, tables.length), kRingBytes};
}
Range<PhysSpace> kernel_memory(std::uint64_t ram_bytes) {
  const Range<PhysSpace> rings = ring_memory(ram_bytes);
  const PhysAddr first = advance(rings.start, rings.length);
  return {first, ram_bytes - first.value};
}

constexpr std::size_t kKeys = 4096;
constexpr std::size_t kTranslations = 65536;
constexpr std::size_t kQps = 64;
constexpr std::size_t kSrqs = 64;
constexpr std::uint32_t kFirstQpn = 0x4000;

// Far above RAM, as firmware places large BARs.
constexpr PhysAddr kGpuBar{0x38'0000'0000};
constexpr std::size_t kGpuMemoryBar = 1;
constexpr pcie::RequesterId kNicId{0x0100};  // 01:00.0
constexpr pcie::RequesterId kGpuId{0x0200};  // 02:00.0

// The doorbells: 32 bytes for each of 2^24 queue pairs (nic/ring_format.h).
constexpr PhysAddr kNicBar{0x30'0000'0000};
constexpr std::uint64_t kNicBarBytes = std::uint64_t{1} << 29;
constexpr std::size_t kDoorbellBar = 0;
constexpr std::uint16_t kVectors = 4;
constexpr std::uint64_t kLocalInterrupts = 0xfee0'0000;
// Assumed: nobody publishes how large they are.
constexpr host::StructureCacheShape kStructures{.level1 = 32, .level2 = 16, .level3 = 8};

pcie::FunctionShape nic_shape() {
  pcie::FunctionShape shape;
  shape.bars[kDoorbellBar] = {.bytes = kNicBarBytes, .prefetchable = false};
  shape.vectors = kVectors;
  return shape;
}

pcie::FunctionShape gpu_shape(std::uint64_t bytes) {
  pcie::FunctionShape shape;
  shape.device = 2;
  shape.class_code = 0x030200;  // 3D controller
  if (bytes != 0) shape.bars[kGpuMemoryBar] = {.bytes = std::bit_ceil(bytes), .prefetchable = true};
  return shape;
}

constexpr host::PageRights kReadWrite = host::PageRight::Read | host::PageRight::Write;

host::KernelSettings kernel_settings(const HostSettings& s) {
  host::KernelSettings settings;
  settings.memory = kernel_memory(s.ram_bytes);
  settings.seed = s.seed ^ 0x6b65726e;
  settings.fragmentation = s.fragmentation;
  settings.copy_pinned_at_fork = s.copy_pinned_at_fork;
  return settings;
}

host::PinPolicy pin_policy(const HostSettings& s) {
  return {.strict = s.memlock_limit != UINT64_MAX, .memlock_limit = s.memlock_limit};
}

}  // namespace

struct Host::Machine {
  Machine(const HostSettings& s, const Time& clock)
      : counters(trace::kCounterCount),
        tracer(trace::Counters(counters), s.journal, s.number),
        faults(s.faults.faults.empty() ? nullptr
                                       : std::make_unique<faults::Injector>(s.faults, tracer)),
        ram(host::Ram::arena(s.ram_bytes)),
        keys(kKeys),
        translations(s.ram_bytes / kPage4K + kTranslations),
        qps(kQps),
        srqs(kSrqs),
        pins(nullptr, pin_policy(s), tracer),
        no_pins(nullptr, {}, tracer),
        kernel(ram, s.kernel_knows_pins ? pins : no_pins, kernel_settings(s), tracer),
        frames({ram.cpu_address({0}), table_memory(s.ram_bytes).length}, kFirstTable),
        contexts(frames, tracer),
        iommu(frames, kNicId, tracer),
        iova(s.seed ^ 0x696f7661),
        structures(kStructures),
        config(nic_shape(), kNicId, &tracer),
        msix(config, kVectors),
        gpu_config(gpu_shape(s.gpu_bytes), kGpuId, &tracer),
        gpu_memory(s.gpu_bytes == 0 ? 0 : std::bit_ceil(s.gpu_bytes)),
        fabric({.has_switch = true, .acs_redirect = s.acs_redirect, .root_routes_peers = true}),
        port({.ram = ram,
              .iommu = iommu,
              .iotlb = iotlb,
              .config = config,
              .tracer = tracer,
              .contexts = &contexts,
              .structures = s.structure_caches ? &structures : nullptr,
              .fabric = s.gpu_bytes != 0 ? &fabric : nullptr,
              .msix = &msix,
              .faults = faults.get()},
             s.costs),
        dma({.iommu = iommu, .iova = iova, .port = port, .tracer = tracer, .contexts = &contexts},
            s.iommu, s.seed ^ 0x646d61),
        rings(ram, ring_memory(s.ram_bytes)),
        memory(kernel, clock) {
    start_nic(clock);
    fabric.add("NIC", config);
    if (s.gpu_bytes == 0) return;
    fabric.add("GPU", gpu_config);
    gpu_config.place_bar(kGpuMemoryBar, kGpuBar, clock);
    gpu_config.set_memory_space(true, clock);
    const Range<PhysSpace> bar{kGpuBar, gpu_memory.size()};
    ram.add_window(bar, gpu_memory);
    memory.set_gpu(bar);
  }

  // What firmware and driver do before anything else; the bus master bit is the engine's.
  void start_nic(Time now) {
    config.place_bar(kDoorbellBar, kNicBar, now);
    config.set_memory_space(true, now);
    for (std::uint32_t vector = 0; vector < kVectors; ++vector) {
      msix.set(vector, {.address = kLocalInterrupts, .payload = vector});
      msix.set_masked(vector, false);
    }
    config.enable_msix(true, false, now);
  }

  std::vector<std::uint64_t> counters;
  trace::Tracer tracer;
  std::unique_ptr<faults::Injector> faults;  // null: nothing is planned
  std::unique_ptr<link::FaultyLink> faulty;
  host::Ram ram;
  std::vector<nic::KeyRecord> keys;
  std::vector<std::uint64_t> translations;
  std::vector<nic::QpRecord> qps;
  std::vector<nic::SrqRecord> srqs;
  host::Pins pins;
  host::Pins no_pins;
  host::Kernel kernel;
  host::TableFrames frames;
  host::ContextTable contexts;
  host::Iommu iommu;
  host::IovaSpace iova;
  host::Iotlb iotlb;
  host::StructureCache structures;
  pcie::ConfigSpace config;
  pcie::MsixTable msix;
  pcie::ConfigSpace gpu_config;
  std::vector<std::byte> gpu_memory;
  pcie::Fabric fabric;
  host::RootPort port;
  host::DmaDomain dma;
  ArenaRings rings;
  ProgramMemory memory;
  std::uint64_t gpu_used = 0;
};

Host::Host(const HostSettings& settings, const wire::Gid& gid, link::Link& link, const Time& clock)
    : machine_(std::make_unique<Machine>(settings, clock)),
      gid_(gid),
      number_(settings.number),
      clock_(clock) {
  ASSERT(settings.ram_bytes >= kSmallestRam);
  Machine& m = *machine_;
  if (m.faults != nullptr) m.faulty = std::make_unique<link::FaultyLink>(link, *m.faults);
  link::Link& cable = m.faulty != nullptr ? *m.faulty : link;
  engine_ = std::make_unique<driver::Engine>(driver::EngineParts{
      .ram = m.ram,
      .pins = m.pins,
      .dma = m.dma,
      .port = m.port,
      .config = m.config,
      .space = m.memory,
      .rings = m.rings,
      .link = cable,
      .tracer = m.tracer,
      .tables = tables(),
      .first_qpn = kFirstQpn,
      .seed = settings.seed,
      .scatter = settings.scatter,
      .open_path = [](const wire::Gid&, wire::Qpn qpn) -> Result<std::uint16_t, Reason> {
        return static_cast<std::uint16_t>(0xc000 | (qpn.value & 0x3fff));
      },
      .join_group = [on_group = settings.on_group](const wire::Gid& group) -> Result<void, Reason> {
        if (on_group) on_group(group, true);
        return {};
      },
      .leave_group =
          [on_group = settings.on_group](const wire::Gid& group) {
            if (on_group) on_group(group, false);
          },
      .watch_process = settings.watch_process,
      .ended_processes = settings.ended_processes,
      .frames = settings.frames,
      .faults = m.faults.get(),
      .congestion = settings.congestion});
  engine_->set_port({.state = driver::PortState::Active,
                     .max_mtu = 4096,
                     .active_mtu = settings.mtu,
                     .interface_mtu = 9000,
                     .gid_table_length = nic::kGidTableLength,
                     .speed_mbps = 100'000,
                     .max_message_bytes = nic::kMaxMessageBytes,
                     .down = {}},
                    {{0, gid}});
  run(spawn("application"));
}

Host::~Host() = default;

host::Pid Host::spawn(std::string_view name) {
  const auto pid = kernel().spawn(name);
  ASSERT(pid);
  return *pid;
}
void Host::exit(host::Pid pid) {
  kernel().exit(pid, clock_);
  close_device_of(pid);
}
void Host::close_device_of(host::Pid gone) {
  ASSERT(!kernel().is_running(gone));
  engine_->release_program(gone.value, clock_);
  kernel().reap_orphans();
}
void Host::run(host::Pid pid) { machine_->memory.run(pid); }
host::Pid Host::running() const { return machine_->memory.running(); }

VirtAddr Host::allocate(std::uint64_t bytes, std::uint64_t offset, std::uint64_t page_bytes) {
  const auto at = kernel().map_memory(running(), offset + bytes, page_bytes, kReadWrite);
  ASSERT(at);
  return advance(*at, offset);
}

VirtAddr Host::allocate_on_gpu(std::uint64_t bytes, std::uint64_t offset) {
  Machine& m = *machine_;
  const VirtAddr at = advance(kGpuWindow, m.gpu_used + offset);
  m.gpu_used += (offset + bytes + kPage4K - 1) / kPage4K * kPage4K;
  ASSERT(m.gpu_used <= m.gpu_memory.size());
  return at;
}
bool Host::is_on_gpu(VirtAddr at) const { return machine_->memory.is_on_gpu(at); }
Range<PhysSpace> Host::gpu_bar() const { return machine_->memory.gpu(); }

std::vector<std::byte> Host::load(VirtAddr at, std::uint64_t bytes) {
  std::vector<std::byte> loaded(bytes);
  load_into(at, loaded);
  return loaded;
}

void Host::load_into(VirtAddr at, Bytes to) {
  if (is_on_gpu(at)) {
    const pcie::Span span{machine_->memory.on_gpu(at), to.size()};
    const auto read = ram().read({&span, 1}, to);
    ASSERT(read);
    return;
  }
  const auto done = kernel().load(running(), at, to, clock_);
  ASSERT(done);
}

void Host::store(VirtAddr at, ConstBytes bytes) {
  if (is_on_gpu(at)) {
    const pcie::Span span{machine_->memory.on_gpu(at), bytes.size()};
    const auto written = ram().write({&span, 1}, bytes);
    ASSERT(written);
    return;
  }
  const auto done = kernel().store(running(), at, bytes, clock_);
  ASSERT(done);
}

void Host::fill(VirtAddr at, std::uint64_t bytes, std::byte with) {
  store(at, std::vector<std::byte>(bytes, with));
}

void Host::unmap(VirtAddr at, std::uint64_t bytes) {
  const auto done = kernel().unmap(running(), {at, bytes}, clock_);
  ASSERT(done);
}
void Host::protect(VirtAddr at, std::uint64_t bytes) {
  const auto done = kernel().protect(running(), {at, bytes}, host::PageRight::Read, clock_);
  ASSERT(done);
}

host::Kernel& Host::kernel() { return machine_->kernel; }
host::Ram& Host::ram() { return machine_->ram; }
host::DmaDomain& Host::dma() { return machine_->dma; }
host::Iotlb& Host::iotlb() { return machine_->iotlb; }
host::RootPort& Host::port() { return machine_->port; }
trace::Tracer& Host::tracer() { return machine_->tracer; }
host::Iommu& Host::iommu() { return machine_->iommu; }
host::Pins& Host::pins() { return machine_->pins; }
host::IovaSpace& Host::iova() { return machine_->iova; }
Range<PhysSpace> Host::nic_bar() const { return *machine_->config.bar(kDoorbellBar); }
pcie::ConfigSpace& Host::config() { return machine_->config; }
nic::Tables Host::tables() {
  return {.keys = machine_->keys,
          .translations = machine_->translations,
          .qps = machine_->qps,
          .srqs = machine_->srqs};
}
std::uint64_t Host::ring_bytes() const { return machine_->rings.bytes_in_use(); }
std::uint64_t Host::counter(trace::Counter counter) const {
  return machine_->tracer.counters().get(counter);
}
Host::Counts Host::counted_since(const Counts& before) const {
  Counts counts{};
  for (std::size_t i = 0; i < counts.size(); ++i)
    counts[i] = counter(static_cast<trace::Counter>(i)) - before[i];
  return counts;
}

}  // namespace softhca::sim
