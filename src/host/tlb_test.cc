#include "host/tlb.h"

#include <gtest/gtest.h>

#include <map>

#include "base/prng.h"

namespace softhca::host {
namespace {

TlbEntry page(std::uint64_t frame, std::uint64_t bytes = kPage4K) {
  return {{frame}, bytes, PageRight::Read, false};
}

TEST(Tlb, KeepsAddressSpacesApart) {
  Tlb tlb;
  tlb.insert(1, {0x5000}, page(0x1000));
  tlb.insert(2, {0x5000}, page(0x2000));
  EXPECT_EQ(tlb.lookup(1, {0x5fff})->frame, PhysAddr{0x1000});
  EXPECT_EQ(tlb.lookup(2, {0x5fff})->frame, PhysAddr{0x2000});
  EXPECT_FALSE(tlb.lookup(3, {0x5fff}));
  EXPECT_FALSE(tlb.lookup(1, {0x6000}));
  EXPECT_EQ(tlb.invalidate_pcid(1), 1u);
  EXPECT_FALSE(tlb.lookup(1, {0x5000}));
  EXPECT_TRUE(tlb.lookup(2, {0x5000}));
  EXPECT_EQ(tlb.invalidate_all(), 1u);
  EXPECT_EQ(tlb.entries(), 0u);
}

TEST(Tlb, HoldsPagesOfAllSizes) {
  Tlb tlb;
  for (const std::uint64_t bytes : {kPage4K, kPage2M, kPage1G}) {
    tlb.insert(1, {7 * bytes}, page(3 * bytes, bytes));
    EXPECT_EQ(tlb.lookup(1, {7 * bytes + bytes - 1})->bytes, bytes);
    EXPECT_EQ(tlb.invalidate(1, {{7 * bytes + bytes / 2}, 1}), 1u);
    EXPECT_FALSE(tlb.lookup(1, {7 * bytes}));
  }
  tlb.insert(1, {0}, page(0, kPage1G));
  EXPECT_EQ(tlb.invalidate(1, {{kPage1G - kPage4K}, 2 * kPage4K}), 1u);
  EXPECT_EQ(tlb.entries(), 0u);
}

TEST(Tlb, ForgetsTheLeastRecentlyUsedOfASet) {
  Tlb tlb({.first_4k = {1, 2},
           .first_2m = {1, 1},
           .first_1g = {1, 1},
           .second = {1, 3},
           .second_1g = {1, 1}});
  for (std::uint64_t i = 0; i < 3; ++i) tlb.insert(1, {i * kPage4K}, page(i * kPage4K));
  EXPECT_TRUE(tlb.lookup(1, {0})) << "the second level has what the first one lost";
  tlb.insert(1, {3 * kPage4K}, page(0));
  EXPECT_TRUE(tlb.lookup(1, {0}));
  EXPECT_FALSE(tlb.lookup(1, {kPage4K}));
}

TEST(Tlb, NeverAnswersWhatWasInvalidated) {
  Tlb tlb({.first_4k = {4, 2},
           .first_2m = {2, 2},
           .first_1g = {1, 2},
           .second = {8, 4},
           .second_1g = {1, 4}});
  Prng prng(3);
  std::map<std::pair<Pcid, std::uint64_t>, std::uint64_t> truth;  // 4 KiB page -> frame
  std::uint64_t hits = 0;
  for (int step = 0; step < 100'000; ++step) {
    const auto pcid = static_cast<Pcid>(1 + prng.below(3));
    const VirtAddr at{prng.below(100) * kPage4K};
    const std::pair key{pcid, at.value};
    switch (prng.below(8)) {
      case 0: {
        const std::uint64_t pages = 1 + prng.below(20);
        tlb.invalidate(pcid, {at, pages * kPage4K});
        for (std::uint64_t i = 0; i < pages; ++i) truth.erase({pcid, at.value + i * kPage4K});
        break;
      }
      case 1:
        if (prng.chance(1, 20)) {
          tlb.invalidate_pcid(pcid);
          std::erase_if(truth, [&](const auto& item) { return item.first.first == pcid; });
        }
        break;
      case 2:
      case 3:
        truth[key] = prng.below(1000) * kPage4K;
        tlb.insert(pcid, at, page(truth[key]));
        break;
      default:
        if (const auto found = tlb.lookup(pcid, {at.value + prng.below(kPage4K)})) {
          ++hits;
          ASSERT_TRUE(truth.contains(key));
          ASSERT_EQ(found->frame.value, truth[key]);
        }
    }
  }
  EXPECT_GT(hits, 1000u);
}

}  // namespace
}  // namespace softhca::host
