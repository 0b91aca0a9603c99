#include "host/iova.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/prng.h"

namespace softhca::host {
namespace {

TEST(BestLeaf, IsTheLargestThatFitsIntoTheRangeSomewhere) {
  EXPECT_EQ(best_leaf({{0}, kPage2M - 1}), kPage4K);
  EXPECT_EQ(best_leaf({{0}, kPage2M}), kPage2M);
  EXPECT_EQ(best_leaf({{kPage4K}, kPage2M}), kPage4K);
  EXPECT_EQ(best_leaf({{kPage4K}, 2 * kPage2M}), kPage2M);
  EXPECT_EQ(best_leaf({{kPage1G - kPage4K}, kPage1G + kPage4K}), kPage1G);
  EXPECT_EQ(best_leaf({{kPage1G + kPage4K}, 2 * kPage1G - kPage4K}), kPage1G);
  EXPECT_EQ(best_leaf({{kPage1G + kPage4K}, kPage1G}), kPage2M);
}

TEST(IovaSpace, StartsSomewhereElseForEachSeedAndNeverWhereProgramsHaveMemory) {
  IovaSpace one(1);
  IovaSpace two(2);
  const BusAddr a = *one.allocate(kPage4K);
  const BusAddr b = *two.allocate(kPage4K);
  EXPECT_NE(a, b);
  EXPECT_EQ(a, *IovaSpace(1).allocate(kPage4K));
  EXPECT_GE(a.value, std::uint64_t{1} << 47);
  EXPECT_LT(a.value, std::uint64_t{1} << 48);
}

TEST(IovaSpace, AlignsToAPhaseSoThatLargeLeavesFit) {
  IovaSpace space(7);
  const Range<PhysSpace> buffer{{5 * kPage1G + 3 * kPage4K}, 3 * kPage1G};
  const BusAddr bus = *space.allocate(buffer.length, best_leaf(buffer), buffer.start.value);
  EXPECT_EQ(bus.value % kPage1G, 3 * kPage4K);
}

TEST(IovaSpace, UsesAReleasedAddressAsLateAsPossible) {
  IovaSpace space(3, {{kPage1G}, 4 * kPage4K});
  const BusAddr first = *space.allocate(kPage4K);
  space.release(first, kPage4K);
  for (int i = 0; i < 3; ++i) EXPECT_NE(*space.allocate(kPage4K), first);
  EXPECT_EQ(*space.allocate(kPage4K), first);
  EXPECT_FALSE(space.allocate(1).has_value());
}

TEST(IovaSpace, LeavesTheInterruptRangeOut) {
  IovaSpace space(9, {{0xfed0'0000}, 0x30'0000});
  std::uint64_t given = 0;
  while (const auto bus = space.allocate(kPage4K)) {
    EXPECT_FALSE(kInterruptRange.contains(*bus, 1));
    given += kPage4K;
  }
  EXPECT_EQ(given, 0x20'0000u);
  IovaSpace below(9, {{0xfee0'0000}, 0x10'0000});
  EXPECT_FALSE(below.allocate(1).has_value());
}

TEST(IovaSpace, RefusesWhatNeverFits) {
  IovaSpace space(1);
  EXPECT_FALSE(space.allocate(UINT64_MAX).has_value());
  EXPECT_FALSE(space.allocate((std::uint64_t{1} << 47) + 1).has_value());
  EXPECT_TRUE(space.allocate(std::uint64_t{1} << 45).has_value());
}

TEST(IovaSpace, NeverOverlapsAndGathersWhatIsReleased) {
  const Range<BusSpace> window{{kPage1G}, 512 * kPage4K};
  IovaSpace space(4, window);
  Prng prng(4);
  std::map<std::uint64_t, std::uint64_t> held;  // start -> bytes asked for
  std::uint64_t refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    if (held.empty() || prng.chance(11, 20)) {
      const std::uint64_t bytes = 1 + prng.below(20 * kPage4K);
      const std::uint64_t alignment = kPage4K << prng.below(5);
      const std::uint64_t phase = prng.below(64) * kPage4K;
      const auto bus = space.allocate(bytes, alignment, phase);
      if (!bus) {
        ++refused;
        continue;
      }
      ASSERT_TRUE(window.contains(*bus, bytes));
      ASSERT_EQ((bus->value - phase) % alignment, 0u);
      const auto next = held.lower_bound(bus->value);
      if (next != held.end()) {
        ASSERT_LE(bus->value + bytes, next->first);
      }
      if (next != held.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second, bus->value);
      }
      held.emplace(bus->value, bytes);
    } else {
      auto victim = held.lower_bound(window.start.value + prng.below(window.length));
      if (victim == held.end()) victim = held.begin();
      space.release({victim->first}, victim->second);
      held.erase(victim);
    }
  }
  EXPECT_GT(refused, 0u) << "the space was full at times";
  for (const auto& [start, bytes] : held) space.release({start}, bytes);
  EXPECT_EQ(space.bytes_in_use(), 0u);
  EXPECT_EQ(space.free_stretches(), 1u);
  EXPECT_TRUE(space.allocate(window.length).has_value());
}

}  // namespace
}  // namespace softhca::host
