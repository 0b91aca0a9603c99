#include "host/iotlb.h"

#include <gtest/gtest.h>

#include <unordered_map>

#include "base/prng.h"
#include "host/test_bench.h"

namespace softhca::host {
namespace {

Translation leaf(std::uint64_t phys, std::uint64_t leaf_bytes, BusRights rights = kReadWrite) {
  return {.phys = {phys}, .leaf_bytes = leaf_bytes, .rights = rights, .levels_read = 4};
}

TEST(Iotlb, AnswersForEveryByteOfALeaf) {
  Iotlb iotlb;
  iotlb.insert({7 * kPage2M + 100}, leaf(9 * kPage2M + 100, kPage2M, BusRight::Read));
  const auto found = iotlb.lookup({7 * kPage2M + 5});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->phys.value, 9 * kPage2M + 5);
  EXPECT_EQ(found->leaf_bytes, kPage2M);
  EXPECT_EQ(found->rights, BusRights(BusRight::Read));
  EXPECT_EQ(found->levels_read, 0);
  EXPECT_FALSE(iotlb.lookup({8 * kPage2M}).has_value());
}

TEST(Iotlb, DropsTheLeastRecentlyUsedOfASet) {
  Iotlb iotlb({.pages_4k = {1, 2}, .pages_2m = {1, 1}, .pages_1g = {1, 1}});
  iotlb.insert({1 * kPage4K}, leaf(0, kPage4K));
  iotlb.insert({2 * kPage4K}, leaf(0, kPage4K));
  ASSERT_TRUE(iotlb.lookup({1 * kPage4K}).has_value());
  iotlb.insert({3 * kPage4K}, leaf(0, kPage4K));
  EXPECT_TRUE(iotlb.lookup({1 * kPage4K}).has_value());
  EXPECT_FALSE(iotlb.lookup({2 * kPage4K}).has_value());
  EXPECT_EQ(iotlb.entries(), 2u);
}

TEST(Iotlb, ReplacesAnEntryOfTheSameLeaf) {
  Iotlb iotlb;
  iotlb.insert({kPage4K}, leaf(0, kPage4K, BusRight::Read));
  iotlb.insert({kPage4K}, leaf(kPage1G, kPage4K));
  EXPECT_EQ(iotlb.entries(), 1u);
  EXPECT_EQ(iotlb.lookup({kPage4K})->phys.value, kPage1G);
}

TEST(Iotlb, ForgetsEverythingAtOnce) {
  Iotlb iotlb;
  iotlb.insert({0}, leaf(0, kPage4K));
  iotlb.insert({kPage1G}, leaf(0, kPage1G));
  iotlb.invalidate_all();
  EXPECT_EQ(iotlb.entries(), 0u);
  EXPECT_FALSE(iotlb.lookup({kPage1G}).has_value());
}

TEST(Iotlb, NeverAnswersWhatWasInvalidated) {
  Iotlb iotlb({.pages_4k = {8, 2}, .pages_2m = {2, 2}, .pages_1g = {1, 2}});
  std::unordered_map<std::uint64_t, std::uint64_t> model;  // page -> physical page, 4 KiB leaves
  Prng prng(6);
  std::uint64_t hits = 0;
  for (int round = 0; round < 50'000; ++round) {
    const std::uint64_t page = prng.below(40);
    if (prng.chance(1, 10)) {
      const std::uint64_t pages = 1 + prng.below(prng.chance(1, 4) ? 40 : 4);
      iotlb.invalidate({{page * kPage4K + prng.below(kPage4K)}, (pages - 1) * kPage4K + 1});
      for (std::uint64_t p = page; p < page + pages; ++p) model.erase(p);
    } else if (prng.chance(1, 2)) {
      model[page] = prng.below(1 << 20);
      iotlb.insert({page * kPage4K}, leaf(model[page] * kPage4K, kPage4K));
    } else if (const auto found = iotlb.lookup({page * kPage4K + 9})) {
      ++hits;
      ASSERT_TRUE(model.contains(page));
      ASSERT_EQ(found->phys.value, model[page] * kPage4K + 9);
    }
  }
  EXPECT_GT(hits, 1000u);
}

}  // namespace
}  // namespace softhca::host
