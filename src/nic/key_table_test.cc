#include "nic/key_table.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"

namespace softhca::nic {
namespace {

using trace::ReasonId;

constexpr std::uint64_t kStart = 0x7000'0000'0032;  // 50 bytes into its page
constexpr std::uint64_t kBytes = 100;

struct Table {
  explicit Table(std::size_t count = 16) : keys(count), translations(64) {}
  std::vector<KeyRecord> keys;
  std::vector<std::uint64_t> translations;
  KeyTable table{Tables{.keys = keys, .translations = translations, .qps = {}}};

  wire::Key insert(std::uint32_t access = 7) {
    const auto key = table.insert({.pd = 3,
                                   .access = access,
                                   .start = kStart,
                                   .bytes = kBytes,
                                   .bus = {0x9000'0032},
                                   .pages = {}});
    EXPECT_TRUE(key);
    return *key;
  }
  ReasonId check(wire::Key key, std::uint64_t address, std::uint64_t bytes,
                 KeyRight right = KeyRight::RemoteWrite, std::uint32_t pd = 3) {
    return table
        .check({.key = key, .pd = pd, .right = right, .address = address, .bytes = bytes}, {5})
        .id;
  }
};

// C64: exact to the byte at both ends, whatever the page holds besides.
TEST(KeyTable, IsExactToTheByte) {
  Table t;
  const wire::Key key = t.insert();
  EXPECT_EQ(t.check(key, kStart, kBytes), ReasonId::None);
  EXPECT_EQ(t.check(key, kStart + kBytes - 1, 1), ReasonId::None);
  EXPECT_EQ(t.check(key, kStart - 1, 1), ReasonId::OutOfBounds);
  EXPECT_EQ(t.check(key, kStart + kBytes, 1), ReasonId::OutOfBounds);
  EXPECT_EQ(t.check(key, kStart, kBytes + 1), ReasonId::OutOfBounds);
  EXPECT_EQ(t.check(key, ~std::uint64_t{0} - 10, 100), ReasonId::AddressWraps);  // C41
}

// MECHANISMS of a memory key: index, validity, variant, domain, rights, bounds, in this order.
TEST(KeyTable, ChecksInTheOrderOfTheSpecification) {
  Table t;
  const wire::Key key = t.insert(1);  // local write only
  const std::uint64_t far = kStart + 10 * kBytes;
  EXPECT_EQ(t.check({0xffff'ff00}, far, 1, KeyRight::RemoteWrite, 9), ReasonId::KeyUnknown);
  EXPECT_EQ(t.check({key.value ^ 1}, far, 1, KeyRight::RemoteWrite, 9), ReasonId::KeyStale);
  EXPECT_EQ(t.check(key, far, 1, KeyRight::RemoteWrite, 9), ReasonId::KeyOtherDomain);
  EXPECT_EQ(t.check(key, far, 1), ReasonId::RightMissing);
  EXPECT_EQ(t.check(key, far, 1, KeyRight::LocalWrite), ReasonId::OutOfBounds);
  EXPECT_EQ(t.check(key, kStart, 1, KeyRight::LocalRead), ReasonId::None);
  // Atomics have a right of their own: reading and writing do not stand for it.
  EXPECT_EQ(t.check(t.insert(7), kStart, 8, KeyRight::RemoteAtomic), ReasonId::RightMissing);
  EXPECT_EQ(t.check(t.insert(9), kStart, 8, KeyRight::RemoteAtomic), ReasonId::None);
}

TEST(KeyTable, AKeyThatWasGivenBackIsStaleAlsoWhenItsIndexIsUsedAgain) {
  Table t(2);  // one entry
  const wire::Key first = t.insert();
  t.table.remove(first);
  EXPECT_EQ(t.check(first, kStart, 1), ReasonId::KeyStale);
  const wire::Key second = t.insert();
  EXPECT_EQ(second.index(), first.index());
  EXPECT_EQ(t.check(first, kStart, 1), ReasonId::KeyStale);
  EXPECT_EQ(t.check(second, kStart, 1), ReasonId::None);
  EXPECT_FALSE(t.table.insert(
      {.pd = 3, .access = 7, .start = kStart, .bytes = 1, .bus = {0x1000}, .pages = {}}));
}

// Random regions of scattered pages: each byte is found where its page lies, and nothing leaks.
TEST(KeyTable, FindsEveryByteOfScatteredPages) {
  Prng prng(7);
  Table t(8);
  std::vector<std::pair<wire::Key, std::vector<std::uint64_t>>> live;
  for (int step = 0; step < 2000; ++step) {
    if (live.size() == 7 || (!live.empty() && prng.chance(1, 3))) {
      const std::size_t which = prng.below(live.size());
      t.table.remove(live[which].first);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    std::vector<std::uint64_t> pages(1 + prng.below(8));
    for (auto& page : pages) page = prng.below(1u << 20) << 12;
    const std::uint64_t bytes = pages.size() * kPage4K - 50;
    const auto key = t.table.insert({.pd = 3,
                                     .access = 7,
                                     .start = kStart,
                                     .bytes = bytes,
                                     .bus = {pages[0] + 50},
                                     .pages = pages});
    if (!key) continue;  // the translation table is full for now
    live.emplace_back(*key, pages);
    for (const auto& [k, its_pages] : live) {
      const std::uint64_t offset = prng.below(its_pages.size() * kPage4K - 50);
      const BusPiece piece = t.table.locate({.key = k,
                                             .pd = 3,
                                             .right = KeyRight::LocalRead,
                                             .address = kStart + offset,
                                             .bytes = 1});
      EXPECT_EQ(piece.at.value, its_pages[(50 + offset) / kPage4K] + (50 + offset) % kPage4K);
    }
  }
  for (const auto& [key, pages] : live) t.table.remove(key);
  std::vector<std::uint64_t> all(64, 0x1000);
  EXPECT_TRUE(t.table.insert({.pd = 3,
                              .access = 7,
                              .start = kStart,
                              .bytes = 64 * kPage4K - 50,
                              .bus = {0x1032},
                              .pages = all}));
}

}  // namespace
}  // namespace softhca::nic
