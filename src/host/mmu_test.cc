#include "host/mmu.h"

#include <gtest/gtest.h>

#include "host/test_bench.h"

namespace softhca::host {
namespace {

using trace::EventKind;

struct MmuBench : TestBench {
  Ram ram = Ram::arena(1024 * kPage4K);
  FrameAllocator allocator{ram, {{0}, 1024 * kPage4K}, 1, 0};
  PageTable table{ram, allocator, {9}};
  Mmu mmu{ram, 4, {}, tracer};
  CpuContext context{{9}, 1, table.root()};

  Result<CpuTranslation, PageFault> access(std::uint64_t at, CpuAccess kind) {
    return mmu.access(context, {at}, kind, {});
  }
  PageEntry entry(std::uint64_t at) { return *table.find({at}); }
};

TEST(Mmu, WalksOnceAndThenKnows) {
  MmuBench bench;
  ASSERT_TRUE(bench.table.map({0x4000}, {0x9000}, kPage4K, PageRight::Read));
  const auto first = bench.access(0x4010, CpuAccess::Load);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->phys, PhysAddr{0x9010});
  EXPECT_EQ(first->levels_read, 4u);
  EXPECT_EQ(bench.access(0x4020, CpuAccess::Load)->levels_read, 0u);
  EXPECT_EQ(bench.mmu.counts().walks, 1u);
  EXPECT_EQ(bench.mmu.counts().tlb_hits, 1u);
  const auto walks = bench.events(EventKind::MmuWalk);
  ASSERT_EQ(walks.size(), 1u);
  EXPECT_EQ(walks[0].object, 9u);
  EXPECT_EQ(walks[0].fields, (std::array<std::uint64_t, 5>{0x4010, 0x9010, kPage4K, 4, 0}));
  ASSERT_EQ(bench.events(EventKind::TlbHit).size(), 1u);
}

TEST(Mmu, SetsAccessedAndDirtyInTheTable) {
  MmuBench bench;
  ASSERT_TRUE(bench.table.map({0}, {0}, kPage2M, PageRight::Read | PageRight::Write));
  EXPECT_FALSE(bench.entry(0).accessed());
  ASSERT_TRUE(bench.access(5, CpuAccess::Load));
  EXPECT_TRUE(bench.entry(0).accessed());
  EXPECT_FALSE(bench.entry(0).dirty());
  ASSERT_TRUE(bench.access(5, CpuAccess::Store));
  EXPECT_TRUE(bench.entry(0).dirty());
  EXPECT_EQ(bench.mmu.counts().walks, 2u) << "the D bit has to be set";
  ASSERT_TRUE(bench.access(6, CpuAccess::Store));
  EXPECT_EQ(bench.mmu.counts().walks, 2u);
}

// Intel SDM 3A, figure 4-12.
TEST(Mmu, SaysInTheErrorCodeWhatWasWrong) {
  MmuBench bench;
  ASSERT_TRUE(bench.table.map({0x1000}, {0x9000}, kPage4K, PageRight::Read));
  EXPECT_EQ(bench.access(0x2000, CpuAccess::Load).error().error_code, 4u);
  EXPECT_EQ(bench.access(0x2000, CpuAccess::Store).error().error_code, 6u);
  EXPECT_EQ(bench.access(0x1000, CpuAccess::Store).error().error_code, 7u);
  EXPECT_EQ(bench.access(0x1000, CpuAccess::Fetch).error().error_code, 21u);
  EXPECT_EQ(bench.access(0x1008, CpuAccess::Store).error().at, VirtAddr{0x1008});
  const std::uint64_t nowhere = std::uint64_t{1} << 50 | 7;
  std::memcpy(bench.ram.cpu_address(bench.entry(0x1000).entry_at), &nowhere, sizeof nowhere);
  EXPECT_EQ(bench.access(0x1000, CpuAccess::Load).error().error_code, 13u);
  EXPECT_EQ(bench.mmu.counts().faults, 6u);
}

TEST(Mmu, ReachesTheOldFrameUntilTheTlbIsToldAndNeverFaultsOnARightThatWasGranted) {
  MmuBench bench;
  ASSERT_TRUE(bench.table.map({0x1000}, {0x9000}, kPage4K, PageRight::Read));
  ASSERT_TRUE(bench.access(0x1000, CpuAccess::Load));
  bench.table.protect(bench.entry(0x1000), PageRight::Read | PageRight::Write);
  EXPECT_TRUE(bench.access(0x1000, CpuAccess::Store)) << "more rights need no shoot-down";
  bench.table.replace_frame(bench.entry(0x1000), {0x8000});
  EXPECT_EQ(bench.access(0x1000, CpuAccess::Load)->phys, PhysAddr{0x9000}) << "stale";
  EXPECT_EQ(bench.mmu.shoot_down(bench.context, {{0x1000}, kPage4K}, {}), 1u);
  EXPECT_EQ(bench.access(0x1000, CpuAccess::Load)->phys, PhysAddr{0x8000});
  const auto told = bench.events(EventKind::TlbShootdown);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].fields[2], 1u);
}

}  // namespace
}  // namespace softhca::host
