#include "host/dma_domain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "host/test_bench.h"

namespace softhca::host {
namespace {

using pcie::Direction;
using trace::Counter;
using trace::EventKind;
using trace::ReasonId;

constexpr std::uint64_t kRamPages = 4096;

struct DomainBench {
  explicit DomainBench(IommuMode mode, IovaSpace iova_space = IovaSpace(3),
                       std::size_t table_frames = 256)
      : bench(table_frames), iova(std::move(iova_space)) {
    config.set_bus_master(true);
    domain.emplace(DmaDomain::Parts{iommu, iova, port, bench.tracer, &contexts}, mode, 5);
  }

  trace::ReasonId access(BusAddr at, std::uint64_t bytes, Direction direction, Time now = {}) {
    spans.clear();
    return port.resolve({at, bytes, direction}, now, spans).reason.id;
  }
  DmaMapping map(std::vector<pcie::Span> frames, PageOrder order = PageOrder::InOrder,
                 Time now = {}) {
    auto mapped = domain->map(frames, kReadWrite, order, now);
    EXPECT_TRUE(mapped);
    return *mapped;
  }

  TestBench bench;
  Ram ram = Ram::arena(kRamPages * kPage4K);
  ContextTable contexts{bench.frames, bench.tracer};
  Iommu iommu{bench.frames, {}, bench.tracer};
  IovaSpace iova;
  Iotlb iotlb;
  pcie::ConfigSpace config;
  RootPort port{{ram, iommu, iotlb, config, bench.tracer, &contexts}};
  std::optional<DmaDomain> domain;
  pcie::SpanList spans;
};

TEST(DmaDomain, MapsScatteredFramesAsOneStretch) {
  DomainBench b(IommuMode::TranslateStrict);
  const DmaMapping mapping = b.map({{{8 * kPage4K}, kPage4K}, {{3 * kPage4K}, 2 * kPage4K}});
  EXPECT_TRUE(mapping.pages.empty());
  EXPECT_EQ(mapping.stretch, (Range<BusSpace>{mapping.first, 3 * kPage4K}));
  EXPECT_EQ(b.access(mapping.first, 3 * kPage4K, Direction::Write), ReasonId::None);
  const std::vector<pcie::Span> expected = {{{8 * kPage4K}, kPage4K}, {{3 * kPage4K}, 2 * kPage4K}};
  EXPECT_TRUE(std::ranges::equal(b.spans.all(), expected));
}

TEST(DmaDomain, AlignsTheStretchForTheLargestLeafOfAnySpan) {
  DomainBench b(IommuMode::TranslateStrict);
  const DmaMapping mapping = b.map({{{kPage2M - kPage4K}, kPage4K}, {{2 * kPage2M}, kPage2M}});
  EXPECT_EQ(b.iommu.leaves(), 2u) << "4 KiB and 2 MiB";
  EXPECT_EQ(offset_in(mapping.first, kPage2M), kPage2M - kPage4K);
}

TEST(DmaDomain, GivesEachPageItsOwnAddressWhenPermuted) {
  DomainBench b(IommuMode::TranslateStrict);
  const DmaMapping mapping = b.map({{{0}, 16 * kPage4K}}, PageOrder::Permuted);
  ASSERT_EQ(mapping.pages.size(), 16u);
  EXPECT_FALSE(std::ranges::is_sorted(mapping.pages));
  EXPECT_EQ(mapping.first.value, mapping.pages[0]);
  for (std::size_t i = 0; i < 16; ++i) {
    ASSERT_EQ(b.access({mapping.pages[i]}, 8, Direction::Read), ReasonId::None);
    EXPECT_EQ(b.spans.all()[0].start.value, i * kPage4K);
  }
}

TEST(DmaDomain, StrictUnmapIsCertainToFaultAfterwards) {
  DomainBench b(IommuMode::TranslateStrict);
  const DmaMapping mapping = b.map({{{0}, kPage4K}});
  ASSERT_EQ(b.access(mapping.first, 8, Direction::Write), ReasonId::None);
  b.domain->unmap(mapping, Time{7});
  EXPECT_EQ(b.access(mapping.first, 8, Direction::Write), ReasonId::IommuNotMapped);
  EXPECT_EQ(b.iova.bytes_in_use(), 0u);
  const auto events = b.bench.events(EventKind::IotlbInvalidate);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].fields,
            (std::array<std::uint64_t, 5>{mapping.first.value, kPage4K, 0, 0, 0}));
}

TEST(DmaDomain, DeferredUnmapLeavesAWindowThatCanBeSeen) {
  DomainBench b(IommuMode::TranslateDeferred);
  const DmaMapping mapping = b.map({{{5 * kPage4K}, kPage4K}});
  ASSERT_EQ(b.access(mapping.first, 8, Direction::Write), ReasonId::None);
  const Time unmapped{1000};
  b.domain->unmap(mapping, unmapped);
  EXPECT_EQ(b.iommu.leaves(), 0u);
  EXPECT_EQ(b.iova.bytes_in_use(), kPage4K) << "not given out again inside the window";

  const Time deadline = unmapped + milliseconds(10);
  EXPECT_EQ(b.domain->next_deadline(), deadline);
  EXPECT_EQ(b.access(mapping.first, 8, Direction::Write, {deadline.ps - 1}), ReasonId::None);
  EXPECT_EQ(b.bench.count(Counter::StaleTranslations), 1u);
  const auto stale = b.bench.events(EventKind::StaleTranslation);
  ASSERT_EQ(stale.size(), 1u);
  EXPECT_EQ(stale[0].fields,
            (std::array<std::uint64_t, 5>{mapping.first.value, 5 * kPage4K, 1000, 0, 0}));

  EXPECT_EQ(b.access(mapping.first, 8, Direction::Write, deadline), ReasonId::IommuNotMapped);
  EXPECT_EQ(b.iova.bytes_in_use(), 0u);
  const auto closed = b.bench.events(EventKind::IotlbInvalidate);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].time_ps, deadline.ps);
  EXPECT_EQ(closed[0].fields, (std::array<std::uint64_t, 5>{mapping.first.value, kPage4K, 1,
                                                            milliseconds(10).ps, 0}));
}

TEST(DmaDomain, DeferredFlushesWhenTheQueueIsFull) {
  DomainBench b(IommuMode::TranslateDeferred);
  for (std::size_t i = 0; i <= DmaDomain::kFlushEntries; ++i) {
    EXPECT_EQ(b.domain->waiting(), i);
    b.domain->unmap(b.map({{{i * kPage4K}, kPage4K}}), Time{1});
  }
  EXPECT_EQ(b.domain->waiting(), 1u);
  EXPECT_EQ(b.bench.events(EventKind::IotlbInvalidate).size(), DmaDomain::kFlushEntries);
}

TEST(DmaDomain, DeferredFlushesWhenOnlyWaitingAddressesAreLeft) {
  DomainBench b(IommuMode::TranslateDeferred, IovaSpace(1, {{std::uint64_t{1} << 47}, kPage4K}));
  const DmaMapping first = b.map({{{0}, kPage4K}});
  EXPECT_FALSE(
      b.domain->map(std::vector<pcie::Span>{{{0}, kPage4K}}, kReadWrite, PageOrder::InOrder, {}));
  b.domain->unmap(first, {});
  EXPECT_EQ(b.map({{{kPage4K}, kPage4K}}).first, first.first);
}

TEST(DmaDomain, UndoesAMappingThatRunsOutOfTables) {
  for (const PageOrder order : {PageOrder::InOrder, PageOrder::Permuted}) {
    // Two roots, a table of contexts; three tables of one path; the next level 1 does not fit.
    DomainBench b(IommuMode::TranslateStrict, IovaSpace(3), 6);
    const std::vector<pcie::Span> frames = {{{kPage4K}, kPage4K}, {{0}, 1025 * kPage4K}};
    const auto failed = b.domain->map(frames, kReadWrite, order, {});
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().id, ReasonId::AddressesExhausted);
    EXPECT_EQ(b.iommu.leaves(), 0u);
    EXPECT_EQ(b.iova.bytes_in_use(), 0u);
    EXPECT_EQ(b.bench.frames.in_use(), 3u);
  }
}

TEST(DmaDomain, PassThroughReachesAllOfRamByPhysicalAddress) {
  DomainBench b(IommuMode::PassThrough);
  const DmaMapping one = b.map({{{4 * kPage4K}, kPage4K}, {{5 * kPage4K}, kPage4K}});
  EXPECT_EQ(one.first, BusAddr{4 * kPage4K});
  EXPECT_TRUE(one.pages.empty());
  const DmaMapping two = b.map({{{9 * kPage4K}, kPage4K}, {{2 * kPage4K}, kPage4K}});
  EXPECT_EQ(two.pages, (std::vector<std::uint64_t>{9 * kPage4K, 2 * kPage4K}));
  EXPECT_EQ(b.iommu.leaves(), 0u);
  EXPECT_EQ(b.access({100 * kPage4K - 8}, 16, Direction::Write), ReasonId::None)
      << "never mapped, reached all the same";
  EXPECT_EQ(b.spans.all()[0], (pcie::Span{{100 * kPage4K - 8}, 16}));
  EXPECT_EQ(b.access({kRamPages * kPage4K}, 8, Direction::Write), ReasonId::UnsupportedRequest);
  EXPECT_EQ(b.iommu.faults().total(), 0u);
  EXPECT_EQ(b.bench.count(Counter::IotlbMisses), 0u);
}

TEST(DmaDomain, PassThroughStillNeedsAContextEntry) {
  DomainBench b(IommuMode::PassThrough);
  b.contexts.clear({});
  ASSERT_EQ(b.access({0}, 8, Direction::Read), ReasonId::IommuNoContext);
  EXPECT_EQ(fault_text(b.iommu.faults().records()[0]),
            "DMAR: [DMA Read] Request device [01:00.0] fault addr 0x0 [fault reason 0x02] Present "
            "bit in context entry is clear");
}

TEST(DmaDomain, OffChecksNothing) {
  DomainBench b(IommuMode::Off);
  EXPECT_EQ(b.access({77}, 8, Direction::Write), ReasonId::None);
  EXPECT_EQ(b.contexts.find({}).error().vtd, VtdReason::NoRootEntry);
}

TEST(DmaDomain, DetachesTheDeviceWhenItGoes) {
  DomainBench b(IommuMode::TranslateDeferred);
  b.domain->unmap(b.map({{{0}, kPage4K}}), {});
  b.domain.reset();
  EXPECT_EQ(b.iova.bytes_in_use(), 0u);
  EXPECT_EQ(b.contexts.find({}).error().vtd, VtdReason::NoContextEntry);
  EXPECT_EQ(b.access({0}, 8, Direction::Read), ReasonId::IommuNoContext);
}

}  // namespace
}  // namespace softhca::host
