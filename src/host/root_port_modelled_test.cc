// What only a modelled machine has: a translation cache in the device, pages on demand, peers.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "host/dma_domain.h"
#include "host/test_bench.h"
#include "pcie/tlp_header.h"

namespace softhca::host {
namespace {

using pcie::Direction;
using trace::Counter;
using trace::EventKind;
using trace::ReasonId;

constexpr std::uint64_t kRamBytes = 2 * kPage2M;
constexpr PhysAddr kGpuMemory{0x70'0000'0000};

struct PeerBench {
  explicit PeerBench(IommuMode mode = IommuMode::TranslateStrict, pcie::FabricShape shape = {})
      : fabric(shape) {
    nic.set_bus_master(true);
    gpu.place_bar(0, kGpuMemory, {});
    gpu.set_memory_space(true);
    fabric.add("nic", nic);
    fabric.add("gpu", gpu);
    ram.add_window({kGpuMemory, gpu_bytes.size()}, gpu_bytes);
    domain.emplace(DmaDomain::Parts{iommu, iova, port, bench.tracer, &contexts}, mode, 5);
  }
  pcie::Outcome write(BusAddr at, ConstBytes bytes, Time now = {}) {
    spans.clear();
    const auto resolved = port.resolve({at, bytes.size(), Direction::Write}, now, spans);
    if (!resolved) return resolved;
    const auto moved = port.write(spans.all(), bytes, now);
    return {moved.reason, moved.done_bytes, resolved.ready_at};
  }
  BusAddr map_gpu(std::uint64_t offset) {
    const std::vector<pcie::Span> frames = {{advance(kGpuMemory, offset), kPage4K}};
    return domain->map(frames, kReadWrite, PageOrder::InOrder, {})->first;
  }

  TestBench bench{64};
  Ram ram = Ram::arena(kRamBytes);
  std::vector<std::byte> gpu_bytes = std::vector<std::byte>(kPage2M);
  ContextTable contexts{bench.frames, bench.tracer};
  Iommu iommu{bench.frames, {0x0100}, bench.tracer};
  IovaSpace iova{3};
  Iotlb iotlb;
  pcie::ConfigSpace nic{{}, {0x0100}};
  pcie::ConfigSpace gpu{{.class_code = 0x030200, .bars = {pcie::BarShape{kPage2M, true}, {}, {}}},
                        {0x0200}};
  pcie::Fabric fabric;
  RootPort port{{.ram = ram,
                 .iommu = iommu,
                 .iotlb = iotlb,
                 .config = nic,
                 .tracer = bench.tracer,
                 .contexts = &contexts,
                 .fabric = &fabric},
                {.write_latency = nanoseconds(200),
                 .peer_write_latency = nanoseconds(150),
                 .redirect_latency = nanoseconds(90)}};
  std::optional<DmaDomain> domain;
  pcie::SpanList spans;
  const std::vector<std::byte> pattern = std::vector<std::byte>(64, std::byte{0xab});
};

TEST(PeerAccess, GoesUpAndIsTranslatedWithRedirectOn) {
  PeerBench b;
  const BusAddr bus = b.map_gpu(3 * kPage4K);
  EXPECT_NE(bus.value, advance(kGpuMemory, 3 * kPage4K).value);
  const auto outcome = b.write(bus, b.pattern);
  ASSERT_TRUE(outcome);
  EXPECT_TRUE(std::ranges::equal(std::span(b.gpu_bytes).subspan(3 * kPage4K, 64), b.pattern));
  EXPECT_EQ(outcome.ready_at, Time{} + nanoseconds(290));
  EXPECT_EQ(b.bench.count(Counter::IotlbMisses), 1u);
  const auto events = b.bench.events(EventKind::PeerAccess);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].object, 1u);
  EXPECT_EQ(events[0].fields, (std::array<std::uint64_t, 5>{bus.value, 64, 1, 1, 0}));
  EXPECT_EQ(b.write(BusAddr{kGpuMemory.value}, b.pattern).reason.id, ReasonId::IommuNotMapped)
      << "the BAR's own address means nothing to the IOMMU";
}

TEST(PeerAccess, GoesStraightWithRedirectOffAndNobodyAsksTheIommu) {
  PeerBench b(IommuMode::TranslateStrict, {.acs_redirect = false});
  const BusAddr bus = b.map_gpu(kPage4K);
  EXPECT_EQ(bus.value, advance(kGpuMemory, kPage4K).value);
  EXPECT_EQ(b.iommu.leaves(), 0u);
  const auto outcome = b.write(bus, b.pattern);
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome.ready_at, Time{} + nanoseconds(150));
  EXPECT_TRUE(std::ranges::equal(std::span(b.gpu_bytes).subspan(kPage4K, 64), b.pattern));
  EXPECT_EQ(b.bench.count(Counter::IotlbMisses) + b.bench.count(Counter::IotlbHits), 0u);
  const auto events = b.bench.events(EventKind::PeerAccess);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].fields[3], 0u);
  EXPECT_TRUE(b.write(BusAddr{kGpuMemory.value}, b.pattern))
      << "never mapped, reached all the same";
}

TEST(PeerAccess, IsRefusedByARootComplexThatDoesNotRoute) {
  for (const IommuMode mode : {IommuMode::TranslateStrict, IommuMode::PassThrough}) {
    PeerBench b(mode, {.root_routes_peers = false});
    const BusAddr bus = b.map_gpu(0);
    EXPECT_EQ(b.write(bus, b.pattern).reason.id, ReasonId::UnsupportedRequest);
    EXPECT_EQ(b.iommu.faults().total(), 0u) << "the IOMMU let it pass";
    EXPECT_EQ(b.bench.count(Counter::PeerAccesses), 0u);
  }
}

TEST(PeerAccess, IsRefusedWhenThePeerClaimsNothing) {
  PeerBench b(IommuMode::PassThrough);
  ASSERT_TRUE(b.write(b.map_gpu(0), b.pattern));
  b.gpu.set_memory_space(false);
  b.spans.clear();
  const auto read = b.port.resolve({{kGpuMemory.value}, 64, Direction::Read}, {}, b.spans);
  EXPECT_EQ(read.reason.id, ReasonId::UnsupportedRequest);
  const auto tlps = b.bench.events(EventKind::Tlp);
  ASSERT_GE(tlps.size(), 2u);
  EXPECT_EQ(pcie::tlp_text(*pcie::tlp_of_event(tlps[tlps.size() - 2])),
            "MRd  01:00.0 tag 0x00 addr 0x7000000000 16 DW be f/f");
  EXPECT_EQ(pcie::tlp_text(*pcie::tlp_of_event(tlps.back())),
            "Cpl  00:00.0 -> 01:00.0 tag 0x00 unsupported request, 64 bytes left");
}

TEST(PeerAccess, MixesWithRamInOneMapping) {
  PeerBench b(IommuMode::TranslateStrict, {.acs_redirect = false});
  const std::vector<pcie::Span> frames = {{{kPage4K}, kPage4K}, {kGpuMemory, kPage4K}};
  const auto mapped = b.domain->map(frames, kReadWrite, PageOrder::InOrder, {});
  ASSERT_TRUE(mapped);
  ASSERT_EQ(mapped->pages.size(), 2u);
  EXPECT_EQ(mapped->pages[1], kGpuMemory.value);
  ASSERT_TRUE(b.write({mapped->pages[0]}, b.pattern));
  EXPECT_EQ(*b.ram.cpu_address({kPage4K}), std::byte{0xab});
  b.domain->unmap(*mapped, {});
  EXPECT_FALSE(b.write({mapped->pages[0]}, b.pattern));
  EXPECT_EQ(b.iova.bytes_in_use(), 0u);
}

TEST(BlockedWrite, VanishesWithoutAnAnswer) {
  PeerBench b;
  EXPECT_FALSE(b.write({0x1000}, b.pattern));
  const auto tlps = b.bench.events(EventKind::Tlp);
  ASSERT_EQ(tlps.size(), 1u);
  EXPECT_EQ(pcie::tlp_of_event(tlps[0])->kind, pcie::TlpKind::MemoryWrite);
}

struct AtsBench {
  AtsBench() {
    config.set_bus_master(true);
    domain.emplace(DmaDomain::Parts{iommu, iova, port, bench.tracer, &contexts},
                   IommuMode::TranslateStrict, 5);
  }
  pcie::Outcome access(BusAddr at, Direction direction = Direction::Read, Time now = {}) {
    spans.clear();
    return port.resolve({at, 8, direction}, now, spans);
  }
  TestBench bench{64};
  Ram ram = Ram::arena(kPage2M);
  ContextTable contexts{bench.frames, bench.tracer};
  Iommu iommu{bench.frames, {}, bench.tracer};
  IovaSpace iova{3};
  Iotlb iotlb;
  Iotlb kept;
  pcie::ConfigSpace config;
  RootPort port{{.ram = ram,
                 .iommu = iommu,
                 .iotlb = iotlb,
                 .config = config,
                 .tracer = bench.tracer,
                 .contexts = &contexts,
                 .device_tlb = &kept},
                {.ats_request = nanoseconds(700)}};
  std::optional<DmaDomain> domain;
  pcie::SpanList spans;
};

TEST(DeviceTlb, AsksOnceAndThenSkipsTheUnit) {
  AtsBench b;
  const std::vector<pcie::Span> frames = {{{5 * kPage4K}, kPage4K}};
  const DmaMapping mapping = *b.domain->map(frames, kReadWrite, PageOrder::InOrder, {});
  EXPECT_EQ(b.contexts.find({})->type, TranslationType::SecondLevelWithAts);
  const Time asked = Time{} + nanoseconds(700);
  EXPECT_EQ(b.access(mapping.first).ready_at, asked);
  EXPECT_EQ(b.access(mapping.first, Direction::Read, asked).ready_at, asked);
  EXPECT_EQ(b.spans.all()[0].start.value, 5 * kPage4K);
  EXPECT_EQ(b.bench.count(Counter::IotlbMisses), 1u);
  EXPECT_EQ(b.bench.count(Counter::IotlbHits), 0u);
  b.domain->unmap(mapping, {});
  EXPECT_EQ(b.access(mapping.first).reason.id, ReasonId::IommuNotMapped) << "invalidated there too";
  EXPECT_EQ(b.bench.count(Counter::StaleTranslations), 0u);
}

TEST(DeviceTlb, ReachesAFrameThatIsNoLongerItsOwnUnlessInvalidated) {
  AtsBench b;
  const BusAddr bus{std::uint64_t{1} << 47};
  ASSERT_TRUE(b.iommu.map(bus, {kPage4K}, kPage4K, kReadWrite, {}));
  ASSERT_TRUE(b.access(bus));
  b.iommu.unmap(bus, kPage4K, {});
  b.iotlb.invalidate({bus, kPage4K});  // the unit forgets; nobody told the device
  EXPECT_TRUE(b.access(bus));
  EXPECT_EQ(b.bench.count(Counter::StaleTranslations), 1u);
  b.port.invalidate({bus, kPage4K});
  EXPECT_FALSE(b.access(bus));
}

TEST(DeviceTlb, AsksAgainForARightThatItDoesNotHold) {
  AtsBench b;
  const BusAddr bus{std::uint64_t{1} << 47};
  ASSERT_TRUE(b.iommu.map(bus, {0}, kPage4K, BusRight::Read, {}));
  ASSERT_TRUE(b.access(bus));
  EXPECT_EQ(b.access(bus, Direction::Write).reason.id, ReasonId::IommuNoWrite);
}

TEST(OnDemand, TriesAgainWhenThePageIsThereNow) {
  AtsBench b;
  const BusAddr bus{std::uint64_t{1} << 47};
  std::vector<std::pair<BusAddr, Direction>> asked;
  std::optional<trace::Reason> answer = trace::Reason{};
  b.port.set_on_demand([&](BusAddr at, Direction direction, Time) {
    asked.emplace_back(at, direction);
    if (answer && asked.size() == 1) {
      EXPECT_TRUE(b.iommu.map(align_down(at, kPage4K), {kPage4K}, kPage4K, kReadWrite, {}));
    }
    return answer;
  });
  EXPECT_TRUE(b.access(advance(bus, 24), Direction::Write));
  EXPECT_EQ(asked,
            (std::vector<std::pair<BusAddr, Direction>>{{advance(bus, 24), Direction::Write}}));
  EXPECT_EQ(b.iommu.faults().total(), 0u);
  EXPECT_TRUE(b.access(bus));
  EXPECT_EQ(asked.size(), 1u);
  EXPECT_FALSE(b.access(advance(bus, kPage4K))) << "said yes, but mapped nothing";
  answer = std::nullopt;
  EXPECT_EQ(b.access(advance(bus, kPage4K)).reason.id, ReasonId::IommuNotMapped);
  EXPECT_EQ(asked.size(), 3u);
  EXPECT_EQ(b.iommu.faults().total(), 2u);
  answer = trace::Reason{.id = ReasonId::HoleInRange};
  EXPECT_EQ(b.access(advance(bus, kPage4K)).reason.id, ReasonId::HoleInRange);
  EXPECT_EQ(b.iommu.faults().total(), 2u) << "the kernel refused, not the unit";
}

TEST(Msix, LeavesAsAMemoryWriteAndWaitsWhileMasked) {
  TestBench bench;
  Ram ram = Ram::arena(kPage2M);
  Iommu iommu(bench.frames, {0x0100}, bench.tracer);
  Iotlb iotlb;
  pcie::ConfigSpace config({.vectors = 4});
  config.set_bus_master(true);
  config.enable_msix(true, false, {});
  pcie::MsixTable table(config, 4);
  table.set(3, {0xfee0'2000, 0x55});
  RootPort port({.ram = ram,
                 .iommu = iommu,
                 .iotlb = iotlb,
                 .config = config,
                 .tracer = bench.tracer,
                 .msix = &table});
  int arrived = 0;
  port.set_interrupt_sink([&](std::uint32_t vector, Time) { arrived += vector == 3 ? 1 : 100; });
  port.interrupt(3, {});
  EXPECT_EQ(arrived, 0);
  EXPECT_TRUE(table.pending(3));
  port.set_masked(3, false, {});
  EXPECT_EQ(arrived, 1);
  port.interrupt(3, {});
  EXPECT_EQ(arrived, 2);
  const auto tlps = bench.events(EventKind::Tlp);
  ASSERT_EQ(tlps.size(), 2u);
  EXPECT_EQ(pcie::tlp_text(*pcie::tlp_of_event(tlps[0])),
            "MWr  01:00.0 addr 0xfee02000 1 DW be f/0");
}

TEST(RamWindow, IsReachedLikeFrames) {
  Ram ram = Ram::arena(kPage4K);
  std::vector<std::byte> memory(2 * kPage4K);
  const PhysAddr at{kPage1G};
  ram.add_window({at, memory.size()}, memory);
  EXPECT_TRUE(ram.reaches({at, memory.size()}));
  EXPECT_FALSE(ram.reaches({at, memory.size() + 1}));
  EXPECT_FALSE(ram.reaches({{kPage4K}, 1}));
  EXPECT_EQ(ram.cpu_address(advance(at, 9)), memory.data() + 9);
  EXPECT_EQ(ram.frame_of(memory.data() + 9), advance(at, 9));
  const std::vector<std::byte> bytes(100, std::byte{7});
  const std::vector<pcie::Span> spans = {{advance(at, kPage4K), 60}, {{16}, 40}};
  ASSERT_TRUE(ram.write(spans, bytes));
  EXPECT_EQ(memory[kPage4K + 59], std::byte{7});
  EXPECT_EQ(*ram.cpu_address({55}), std::byte{7});
  std::vector<std::byte> back(100);
  ASSERT_TRUE(ram.read(spans, back));
  EXPECT_EQ(back, bytes);
}

}  // namespace
}  // namespace softhca::host
