#include "host/iommu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "host/test_bench.h"

namespace softhca::host {
namespace {

using pcie::Direction;
using trace::Counter;
using trace::ReasonId;

constexpr BusAddr kFirstBus{std::uint64_t{1} << 47};  // aligned for every leaf

class IommuTest : public testing::Test {
 protected:
  std::uint64_t map(BusAddr bus, std::uint64_t phys, std::uint64_t bytes,
                    BusRights rights = kReadWrite) {
    const auto leaves = iommu_.map(bus, {phys}, bytes, rights, {});
    return leaves ? *leaves : 0;
  }
  // The physical address, or nothing if a read is blocked.
  std::optional<std::uint64_t> read_at(BusAddr bus) {
    const auto found = iommu_.translate(bus, Direction::Read);
    return found ? std::optional(found->phys.value) : std::nullopt;
  }

  TestBench bench_;
  Iommu iommu_{bench_.frames, {}, bench_.tracer};
};

TEST_F(IommuTest, MapsWithTheLargestLeavesThatBothAddressesAllow) {
  // From 4 KiB below a 1 GiB boundary to 2 MiB + 4 KiB behind the end of that gibibyte.
  const std::uint64_t bytes = kPage4K + kPage1G + kPage2M + kPage4K;
  const BusAddr bus{kFirstBus.value + kPage1G - kPage4K};
  EXPECT_EQ(map(bus, 3 * kPage1G - kPage4K, bytes), 4u);
  const auto events = bench_.events(trace::EventKind::IommuMap);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1].fields,
            (std::array<std::uint64_t, 5>{kFirstBus.value + kPage1G, 3 * kPage1G, kPage1G, 1, 3}));
  const auto found = iommu_.translate(advance(bus, bytes - 1), Direction::Write);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->phys.value, 4 * kPage1G + kPage2M + kPage4K - 1);
  EXPECT_EQ(found->leaf_bytes, kPage4K);
  EXPECT_EQ(found->levels_read, 4);
  EXPECT_EQ(iommu_.translate({kFirstBus.value + kPage1G + 5}, Direction::Read)->levels_read, 2);
  EXPECT_FALSE(read_at(advance(bus, bytes)).has_value());
}

TEST_F(IommuTest, UsesSmallPagesWhereTheAddressesDisagree) {
  EXPECT_EQ(map(kFirstBus, kPage4K, 2 * kPage2M), 2 * kPage2M / kPage4K);
}

TEST_F(IommuTest, Maps64GibibytesWithAFewKilobytesOfTables) {
  EXPECT_EQ(map(kFirstBus, 7 * kPage1G, 64 * kPage1G), 64u);
  EXPECT_LE(iommu_.table_frames() * kPage4K, 8192u);
  EXPECT_EQ(read_at(advance(kFirstBus, 63 * kPage1G + 12345)), 70 * kPage1G + 12345);
  EXPECT_EQ(iommu_.unmap(kFirstBus, 64 * kPage1G, {}), 64u);
  EXPECT_EQ(iommu_.table_frames(), 1u);
}

TEST_F(IommuTest, WritesEntriesOfTheSecondLevelFormat) {
  map(kFirstBus, 0x5000, kPage4K, BusRight::Write);
  FrameIndex table = iommu_.root();
  for (unsigned level = 4; level > 1; --level) {
    const std::uint64_t e = bench_.frames.load(table, entry::index(kFirstBus, level));
    EXPECT_EQ(e & 0xfff, 0x3u);
    table = static_cast<FrameIndex>(e >> 12);
  }
  EXPECT_EQ(bench_.frames.load(table, 0), 0x5002u);
  map(advance(kFirstBus, kPage1G), 4 * kPage2M, kPage2M, BusRight::Read);
  const FrameIndex level3 = static_cast<FrameIndex>(bench_.frames.load(iommu_.root(), 256) >> 12);
  const FrameIndex level2 = static_cast<FrameIndex>(bench_.frames.load(level3, 1) >> 12);
  EXPECT_EQ(bench_.frames.load(level2, 0), 4 * kPage2M | 0x81);
}

TEST_F(IommuTest, KeepsReadAndWriteApart) {
  map(kFirstBus, 0, kPage4K, BusRight::Read);
  map(advance(kFirstBus, kPage4K), 0, kPage4K, BusRight::Write);
  EXPECT_TRUE(iommu_.translate(kFirstBus, Direction::Read));
  const auto write = iommu_.translate(kFirstBus, Direction::Write);
  ASSERT_FALSE(write);
  EXPECT_EQ(write.error().vtd, VtdReason::NoWrite);
  EXPECT_EQ(reason_of(write.error(), kFirstBus, 8).id, ReasonId::IommuNoWrite);
  const auto read = iommu_.translate(advance(kFirstBus, kPage4K), Direction::Read);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().vtd, VtdReason::NoRead);
  EXPECT_EQ(reason_of(read.error(), kFirstBus, 8).id, ReasonId::IommuNoRead);
}

TEST_F(IommuTest, BlocksWhatIsNotMappedOrTooWide) {
  const auto nothing = iommu_.translate(kFirstBus, Direction::Write);
  ASSERT_FALSE(nothing);
  EXPECT_EQ(reason_of(nothing.error(), kFirstBus, 1).id, ReasonId::IommuNotMapped);
  const auto wide = iommu_.translate({std::uint64_t{1} << 48}, Direction::Read);
  ASSERT_FALSE(wide);
  EXPECT_EQ(wide.error().vtd, VtdReason::BeyondWidth);
  EXPECT_EQ(reason_of(wide.error(), kFirstBus, 1).id, ReasonId::IommuBadAddress);
}

TEST_F(IommuTest, LeavesNothingBehindWhenTableFramesRunOut) {
  TestBench small(5);  // root, one path of three tables, and one more
  {
    Iommu iommu(small.frames, {}, small.tracer);
    // 2 MiB behind the first table and 2 MiB behind a second fit; a third does not.
    const auto refused = iommu.map(kFirstBus, {kPage4K}, 3 * kPage2M, kReadWrite, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().id, ReasonId::AddressesExhausted);
    EXPECT_EQ(iommu.table_frames(), 1u);
    EXPECT_EQ(iommu.leaves(), 0u);
    EXPECT_FALSE(iommu.translate(kFirstBus, Direction::Read));
    EXPECT_TRUE(iommu.map(kFirstBus, {kPage4K}, 2 * kPage2M, kReadWrite, {}));
  }
  EXPECT_EQ(small.frames.in_use(), 0u);
}

TEST_F(IommuTest, RecordsTheLastFaultsAsTheKernelPrintsThem) {
  map(kFirstBus, 0, kPage4K, BusRight::Read);
  const auto fault = iommu_.translate({kFirstBus.value + 0x123}, Direction::Write).error();
  const auto reason =
      iommu_.record_fault(fault, {kFirstBus.value + 0x123}, 64, Direction::Write, Time{5});
  EXPECT_EQ(reason,
            (trace::Reason{
                .id = ReasonId::IommuNoWrite, .address = kFirstBus.value + 0x123, .length = 64}));
  ASSERT_EQ(iommu_.faults().records().size(), 1u);
  EXPECT_EQ(fault_text(iommu_.faults().records()[0]),
            "DMAR: [DMA Write] Request device [01:00.0] fault addr 0x800000000000 "
            "[fault reason 0x05] PTE Write access is not set");
  EXPECT_EQ(fault_text({{}, {0x7f5000}, {0xa51b}, VtdReason::NoRead, Direction::Read}),
            "DMAR: [DMA Read] Request device [a5:03.3] fault addr 0x7f5000 "
            "[fault reason 0x06] PTE Read access is not set");
  EXPECT_EQ(bench_.count(Counter::IommuFaults), 1u);
  for (std::uint64_t i = 0; i < 100; ++i)
    iommu_.record_fault(fault, advance(kFirstBus, i * kPage4K), 1, Direction::Write, {});
  const auto records = iommu_.faults().records();
  EXPECT_EQ(iommu_.faults().total(), 101u);
  ASSERT_EQ(records.size(), FaultLog::kCapacity);
  EXPECT_EQ(records.front().page, advance(kFirstBus, 36 * kPage4K));
  EXPECT_EQ(records.back().page, advance(kFirstBus, 99 * kPage4K));
}

TEST_F(IommuTest, DoesNotFollowAPointerOutOfTheTables) {
  map(kFirstBus, 0, kPage4K);
  std::uint64_t& word = bench_.words[iommu_.root() * kTableEntries + entry::index(kFirstBus, 4)];
  const std::uint64_t good = std::exchange(word, entry::kAddress | 3);
  const auto found = iommu_.translate(kFirstBus, Direction::Read);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().vtd, VtdReason::BadTable);
  word = good;
}

TEST_F(IommuTest, AgreesWithAMapOfPages) {
  struct Mapping {
    std::uint64_t bytes;
    std::uint64_t phys;
    BusRights rights;
  };
  TestBench bench(4000);
  Prng prng(3);
  {
    Iommu iommu(bench.frames, {}, bench.tracer);
    std::map<std::uint64_t, Mapping> model;  // by start
    constexpr std::uint64_t kWindow = 64 * kPage2M;
    constexpr std::uint64_t kUnits[] = {kPage4K, kPage4K, 16 * kPage4K, kPage2M};
    for (int round = 0; round < 4000; ++round) {
      const std::uint64_t unit = kUnits[prng.below(4)];
      const std::uint64_t start = kFirstBus.value + prng.below(kWindow / unit) * unit;
      const std::uint64_t bytes = (1 + prng.below(20)) * unit;
      auto behind = model.lower_bound(start);
      const bool occupied = (behind != model.end() && behind->first < start + bytes) ||
                            (behind != model.begin() &&
                             std::prev(behind)->first + std::prev(behind)->second.bytes > start);
      if (!occupied) {
        const Mapping mapping{bytes, prng.below(1 << 20) * unit,
                              BusRights::of_bits(static_cast<std::uint8_t>(1 + prng.below(3)))};
        ASSERT_TRUE(iommu.map({start}, {mapping.phys}, bytes, mapping.rights, {}));
        model.emplace(start, mapping);
      } else if (!model.empty()) {
        auto victim = model.lower_bound(start);
        if (victim == model.end()) victim = model.begin();
        ASSERT_GT(iommu.unmap({victim->first}, victim->second.bytes, {}), 0u);
        model.erase(victim);
      }
      for (int probe = 0; probe < 10; ++probe) {
        const std::uint64_t at = kFirstBus.value + prng.below(kWindow + 30 * kPage2M);
        const auto direction = prng.chance(1, 2) ? Direction::Read : Direction::Write;
        const auto next = model.upper_bound(at);
        const auto* hit =
            next != model.begin() && at - std::prev(next)->first < std::prev(next)->second.bytes
                ? &*std::prev(next)
                : nullptr;
        const auto found = iommu.translate({at}, direction);
        const bool allowed = hit != nullptr && hit->second.rights.has(right_for(direction));
        ASSERT_EQ(static_cast<bool>(found), allowed);
        if (found) {
          ASSERT_EQ(found->phys.value, hit->second.phys + (at - hit->first));
        } else {
          ASSERT_EQ(found.error().mapped, hit != nullptr);
        }
      }
    }
    for (const auto& [start, mapping] : model) iommu.unmap({start}, mapping.bytes, {});
    EXPECT_EQ(iommu.leaves(), 0u);
    EXPECT_EQ(iommu.table_frames(), 1u);
  }
  EXPECT_EQ(bench.frames.in_use(), 0u);
  EXPECT_EQ(bench.count(Counter::IommuLeavesMapped), bench.count(Counter::IommuLeavesUnmapped));
}

}  // namespace
}  // namespace softhca::host
