#include "host/context_table.h"

#include <gtest/gtest.h>

#include "host/root_port.h"
#include "host/test_bench.h"

namespace softhca::host {
namespace {

using pcie::Direction;
using trace::ReasonId;

constexpr RequesterId kDevice{0x0300};
constexpr RequesterId kNeighbour{0x0301};

TEST(ContextTable, FindsWhatWasSetForADevice) {
  TestBench bench;
  ContextTable table(bench.frames, bench.tracer);
  EXPECT_EQ(table.find(kDevice).error().vtd, VtdReason::NoRootEntry);
  const ContextEntry entry{
      .type = TranslationType::SecondLevel, .width = 2, .domain = 9, .second_level = 17};
  ASSERT_TRUE(table.set(kDevice, entry));
  EXPECT_EQ(*table.find(kDevice), entry);
  EXPECT_EQ(table.find(kNeighbour).error().vtd, VtdReason::NoContextEntry);
  EXPECT_EQ(table.find({0x0400}).error().vtd, VtdReason::NoRootEntry);
  table.clear(kDevice);
  EXPECT_EQ(table.find(kDevice).error().vtd, VtdReason::NoContextEntry);
}

TEST(ContextTable, RefusesAnEntryThatTheUnitCannotFollow) {
  TestBench bench;
  ContextTable table(bench.frames, bench.tracer);
  ASSERT_TRUE(table.set(kDevice, {.width = 1}));
  EXPECT_EQ(table.find(kDevice).error().vtd, VtdReason::BadContextEntry) << "39 bits";
  ASSERT_TRUE(table.set(kDevice, {.type = static_cast<TranslationType>(3)}));
  EXPECT_EQ(table.find(kDevice).error().vtd, VtdReason::BadContextEntry);
}

TEST(ContextTable, GivesItsFramesBack) {
  TestBench bench(2);
  {
    ContextTable table(bench.frames, bench.tracer);
    ASSERT_TRUE(table.set(kDevice, {}));
    const auto full = table.set({0x0400}, {});
    ASSERT_FALSE(full);
    EXPECT_EQ(full.error().id, ReasonId::AddressesExhausted);
  }
  EXPECT_EQ(bench.frames.in_use(), 0u);
}

TEST(ContextTable, IsReadOnceAndAgainAfterAnInvalidation) {
  TestBench bench;
  Ram ram = Ram::arena(kPage2M);
  ContextTable table(bench.frames, bench.tracer);
  Iommu iommu(bench.frames, kDevice, bench.tracer);
  Iotlb iotlb;
  pcie::ConfigSpace config;
  config.set_bus_master(true);
  RootPort port({ram, iommu, iotlb, config, bench.tracer, &table}, {.table_read = nanoseconds(10)});
  const BusAddr bus{std::uint64_t{1} << 47};
  ASSERT_TRUE(iommu.map(bus, {0}, kPage4K, kReadWrite, {}));
  pcie::SpanList spans;
  const auto access = [&] { return port.resolve({bus, 8, Direction::Read}, {}, spans); };

  EXPECT_EQ(access().reason.id, ReasonId::IommuNoContext);
  ASSERT_TRUE(table.set(kDevice, {.second_level = iommu.root()}));
  const auto first = access();
  ASSERT_TRUE(first) << "an absent entry is not remembered";
  EXPECT_EQ(first.ready_at, Time{} + nanoseconds(60)) << "root, context and four levels";
  table.clear(kDevice);
  EXPECT_TRUE(access()) << "remembered";
  port.invalidate_context();
  EXPECT_EQ(access().reason.id, ReasonId::IommuNoContext);
  ASSERT_EQ(iommu.faults().total(), 2u);
  EXPECT_EQ(iommu.faults().records()[0].vtd, VtdReason::NoRootEntry);
  EXPECT_EQ(iommu.faults().records()[1].vtd, VtdReason::NoContextEntry);
}

}  // namespace
}  // namespace softhca::host
