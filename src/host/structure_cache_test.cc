#include "host/structure_cache.h"

#include <gtest/gtest.h>

#include "host/dma_domain.h"
#include "host/test_bench.h"

namespace softhca::host {
namespace {

using pcie::Direction;
using trace::EventKind;

constexpr BusAddr kRegion{(std::uint64_t{1} << 47) + kPage1G};

class StructureCacheTest : public testing::Test {
 protected:
  StructureCacheTest() {
    config_.set_bus_master(true);
    for (std::uint64_t i = 0; i < 4; ++i) map(i * kPage4K);
  }
  void map(std::uint64_t offset) {
    ASSERT_TRUE(iommu_.map(advance(kRegion, offset), {0}, kPage4K, kReadWrite, {}));
  }
  // Entries that the access reads; nothing if it is blocked.
  std::optional<std::uint64_t> entries_read(std::uint64_t offset) {
    pcie::SpanList spans;
    const auto outcome = port_.resolve({advance(kRegion, offset), 8, Direction::Read}, now_, spans);
    const auto took = static_cast<std::uint64_t>((outcome.ready_at - now_).ps);
    now_ = now_ + seconds(1);
    return outcome ? std::optional(took) : std::nullopt;
  }

  TestBench bench_{64};
  Ram ram_ = Ram::arena(kPage2M);
  Iommu iommu_{bench_.frames, {}, bench_.tracer};
  Iotlb iotlb_{{.pages_4k = {1, 1}, .pages_2m = {1, 1}, .pages_1g = {1, 1}}};
  StructureCache structures_{{.level1 = 2, .level2 = 2, .level3 = 1}};
  pcie::ConfigSpace config_;
  RootPort port_{{.ram = ram_,
                  .iommu = iommu_,
                  .iotlb = iotlb_,
                  .config = config_,
                  .tracer = bench_.tracer,
                  .structures = &structures_},
                 {.table_read = picoseconds(1)}};
  Time now_{};
};

TEST_F(StructureCacheTest, ShortensAWalkToWhatIsNotKnown) {
  EXPECT_EQ(entries_read(0), 4u);
  EXPECT_EQ(entries_read(kPage4K), 1u) << "the same table of leaves";
  map(kPage2M);
  EXPECT_EQ(entries_read(kPage2M), 2u) << "the same table of level 2";
  map(kPage1G);
  EXPECT_EQ(entries_read(kPage1G), 3u);
  const auto misses = bench_.events(EventKind::IotlbMiss);
  ASSERT_EQ(misses.size(), 4u);
  EXPECT_EQ(misses[1].fields[3], 1u);
}

TEST_F(StructureCacheTest, ForgetsTheLeastRecentlyUsedTable) {
  map(kPage2M);
  map(2 * kPage2M);
  EXPECT_EQ(entries_read(0), 4u);
  EXPECT_EQ(entries_read(kPage2M), 2u);
  EXPECT_EQ(entries_read(kPage4K), 1u);
  EXPECT_EQ(entries_read(2 * kPage2M), 2u) << "in the place of the second";
  EXPECT_EQ(entries_read(2 * kPage4K), 1u);
  EXPECT_EQ(entries_read(kPage2M), 2u);
}

TEST_F(StructureCacheTest, SurvivesAnInvalidationOfLeavesOnly) {
  ASSERT_EQ(entries_read(0), 4u);
  iommu_.unmap(kRegion, kPage4K, {});
  port_.invalidate({kRegion, kPage4K}, InvalidationHint::LeafOnly);
  EXPECT_EQ(entries_read(kPage4K), 1u);
  EXPECT_EQ(entries_read(0), std::nullopt);
  port_.invalidate({kRegion, kPage4K});
  EXPECT_EQ(entries_read(2 * kPage4K), 4u);
}

TEST_F(StructureCacheTest, MisleadsAWalkWhenATableWentWithoutAFullInvalidation) {
  ASSERT_EQ(entries_read(0), 4u);
  iommu_.unmap(kRegion, 4 * kPage4K, {});
  port_.invalidate({kRegion, 4 * kPage4K}, InvalidationHint::LeafOnly);  // wrong: tables went
  // Three frames that another part of the space uses now, as the same levels.
  ASSERT_TRUE(iommu_.map(advance(kRegion, 600 * kPage1G), {kPage4K}, kPage4K, kReadWrite, {}));
  EXPECT_TRUE(entries_read(0).has_value()) << "nothing is mapped there";
  EXPECT_EQ(bench_.count(trace::Counter::StaleTranslations), 1u);
}

}  // namespace
}  // namespace softhca::host
