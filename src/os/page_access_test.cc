#include "os/page_access.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "base/prng.h"
#include "os/test_pages.h"

namespace softhca::os {
namespace {

class PageAccessTest : public testing::TestWithParam<ProbeMethod> {
 protected:
  void SetUp() override {
    if (GetParam() == ProbeMethod::Populate && best_probe_method() != ProbeMethod::Populate)
      GTEST_SKIP() << "this kernel cannot populate pages";
  }
  Result<void, BadPage> ask(std::uintptr_t start, std::size_t bytes, bool write) {
    return probe({{start}, bytes}, write, GetParam());
  }
  void expect_bad(const Result<void, BadPage>& answer, PageFault fault, std::uintptr_t page) {
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().fault, fault);
    EXPECT_EQ(answer.error().page.value, page);
  }
};

INSTANTIATE_TEST_SUITE_P(Methods, PageAccessTest,
                         testing::Values(ProbeMethod::Populate, ProbeMethod::Touch),
                         [](const auto& row) { return std::string(probe_method_name(row.param)); });

TEST_P(PageAccessTest, AllowsFreshMemoryAndKeepsItsContents) {
  TestPages pages(4);
  pages.fill(9);
  EXPECT_TRUE(ask(pages.address() + 10, 4 * kPage4K - 20, true));
  EXPECT_TRUE(ask(pages.address(), 4 * kPage4K, false));
  EXPECT_TRUE(ask(pages.address(), 0, true));
  EXPECT_EQ(pages.page(3)[17], TestPages::value_at(3 * kPage4K + 17, 9));
}

TEST_P(PageAccessTest, NamesTheFirstPageOfAHole) {
  TestPages pages(9);
  pages.unmap(5, 2);
  for (const bool write : {false, true}) {
    expect_bad(ask(pages.address() + 1, 9 * kPage4K - 1, write), PageFault::Hole, pages.address(5));
    expect_bad(ask(pages.address(6), 1, write), PageFault::Hole, pages.address(6));
    EXPECT_TRUE(ask(pages.address(), 5 * kPage4K, write));
  }
}

TEST_P(PageAccessTest, AllowsReadingButNotWritingReadOnlyPages) {
  TestPages pages(5);
  pages.protect_read_only(3);
  EXPECT_TRUE(ask(pages.address(), 5 * kPage4K, false));
  expect_bad(ask(pages.address(), 5 * kPage4K, true), PageFault::ReadOnly, pages.address(3));
}

TEST_P(PageAccessTest, TakesAPageWithoutRightsForNoAccess) {
  TestPages pages(2);
  pages.protect_none(1);
  for (const bool write : {false, true})
    expect_bad(ask(pages.address(), 2 * kPage4K, write), PageFault::NoAccess, pages.address(1));
}

TEST_P(PageAccessTest, TakesAMappingBehindTheEndOfAFileForAHole) {
  TestPages pages(3);
  pages.replace_by_empty_file(2);
  for (const bool write : {false, true})
    expect_bad(ask(pages.address(), 3 * kPage4K, write), PageFault::Hole, pages.address(2));
}

TEST_P(PageAccessTest, RefusesRangesThatNoProgramCanHave) {
  expect_bad(ask(0, 1, false), PageFault::Hole, 0);
  expect_bad(ask(UINTPTR_MAX - 10, 100, false), PageFault::Hole, UINTPTR_MAX & ~(kPage4K - 1));
  expect_bad(ask(std::uintptr_t{1} << 60, 8, true), PageFault::Hole, std::uintptr_t{1} << 60);
}

TEST_P(PageAccessTest, RefusesSpecialMappings) {
  // The kernel's own data page, mapped into every program.
  unsigned long address = 0;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  char line[512];
  while (maps != nullptr && std::fgets(line, sizeof line, maps) != nullptr)
    if (std::strstr(line, "[vvar]") != nullptr) std::sscanf(line, "%lx", &address);
  if (maps != nullptr) std::fclose(maps);
  if (address == 0) GTEST_SKIP() << "no special mapping in this process";
  expect_bad(ask(address, 8, false), PageFault::Special, address);
}

TEST_P(PageAccessTest, AgreesWithAModelOfThePages) {
  enum State { Open, Closed, Shut, Gone };
  Prng prng(5);
  for (int round = 0; round < 60; ++round) {
    constexpr std::size_t kCount = 40;
    TestPages pages(kCount);
    std::vector<State> states(kCount, Open);
    for (std::uint64_t changes = prng.below(4); changes > 0; --changes) {
      const std::size_t at = prng.below(kCount);
      states[at] = static_cast<State>(1 + prng.below(3));
      if (states[at] == Closed) pages.protect_read_only(at);
      if (states[at] == Shut) pages.protect_none(at);
      if (states[at] == Gone) pages.unmap(at);
      if (states[at] == Gone) break;  // a hole cannot be changed any more
    }
    const bool write = prng.chance(1, 2);
    const std::size_t first = prng.below(kCount);
    const std::size_t count = 1 + prng.below(kCount - first);
    const auto answer =
        ask(pages.address(first) + prng.below(kPage4K), 1 + (count - 1) * kPage4K, write);
    std::size_t bad = first;
    while (bad < first + count && (states[bad] == Open || (states[bad] == Closed && !write))) ++bad;
    if (bad == first + count) {
      EXPECT_TRUE(answer);
    } else {
      const PageFault fault = states[bad] == Gone   ? PageFault::Hole
                              : states[bad] == Shut ? PageFault::NoAccess
                                                    : PageFault::ReadOnly;
      expect_bad(answer, fault, pages.address(bad));
    }
  }
}

TEST(PresentPages, TellsWhatIsInMemoryWithoutFetchingIt) {
  TestPages pages(6);
  *pages.page(1) = std::byte{1};
  *pages.page(4) = std::byte{1};
  pages.unmap(2);
  const Range<VirtSpace> all{{pages.address()}, 6 * kPage4K};
  const std::vector<bool> expected{false, true, false, false, true, false};
  EXPECT_EQ(present_pages(all), expected);
  EXPECT_EQ(present_pages(all), expected) << "asking brings nothing";
}

TEST(SmallestPage, IsThatOfTheMappingAndNothingForAHole) {
  TestPages pages(4);
  EXPECT_EQ(smallest_page({{pages.address() + 5}, 100}), kPage4K);
  pages.protect_read_only(1);
  EXPECT_EQ(smallest_page({{pages.address()}, 4 * kPage4K}), kPage4K) << "three mappings";
  pages.unmap(2);
  EXPECT_EQ(smallest_page({{pages.address()}, 4 * kPage4K}), 0u);
  EXPECT_EQ(smallest_page({{pages.address(2)}, 1}), 0u);
}

}  // namespace
}  // namespace softhca::os
