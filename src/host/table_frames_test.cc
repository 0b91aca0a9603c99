#include "host/table_frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace softhca::host {
namespace {

class TableFramesTest : public testing::Test {
 protected:
  TableFramesTest() : words_(4 * kTableEntries + 10, ~std::uint64_t{0}), frames_(storage()) {}
  Bytes storage() { return std::as_writable_bytes(std::span(words_)); }

  std::vector<std::uint64_t> words_;
  TableFrames frames_;
};

TEST_F(TableFramesTest, GivesOutZeroedFramesUpToTheEndOfTheSpan) {
  std::set<FrameIndex> taken;
  for (int i = 0; i < 4; ++i) {
    const auto frame = frames_.take();
    ASSERT_TRUE(frame.has_value());
    EXPECT_TRUE(taken.insert(*frame).second);
    for (std::size_t entry = 0; entry < kTableEntries; ++entry)
      EXPECT_EQ(frames_.load(*frame, entry), 0u);
  }
  EXPECT_FALSE(frames_.take().has_value());
  EXPECT_EQ(words_.back(), ~std::uint64_t{0}) << "the rest below a frame is left alone";
  EXPECT_EQ(frames_.in_use(), 4u);
}

TEST_F(TableFramesTest, TouchesAFrameOnlyWhenItIsFirstTaken) {
  ASSERT_TRUE(frames_.take().has_value());
  EXPECT_EQ(words_[kTableEntries], ~std::uint64_t{0});
  EXPECT_EQ(frames_.ever_touched(), 1u);
}

TEST_F(TableFramesTest, ReusesAReturnedFrameBeforeAFreshOne) {
  const FrameIndex first = *frames_.take();
  frames_.store(first, 7, 1);
  frames_.store(first, 7, 0);
  frames_.give_back(first);
  EXPECT_EQ(*frames_.take(), first);
  EXPECT_EQ(frames_.ever_touched(), 1u);
}

TEST_F(TableFramesTest, CountsEntriesThatAreNotZero) {
  const FrameIndex frame = *frames_.take();
  frames_.store(frame, 1, 5);
  frames_.store(frame, 1, 6);
  frames_.store(frame, 2, 7);
  frames_.store(frame, 3, 0);
  EXPECT_EQ(frames_.live_entries(frame), 2u);
  EXPECT_EQ(words_[1], 6u) << "an entry lies in the span as it is";
  frames_.store(frame, 1, 0);
  EXPECT_EQ(frames_.live_entries(frame), 1u);
}

TEST(TableFrames, MayLieInAReservedPartOfRamWhereAnIndexIsAFrameNumber) {
  std::vector<std::uint64_t> ram(8 * kTableEntries, 1);
  TableFrames frames(std::as_writable_bytes(std::span(ram)), 5);
  EXPECT_EQ(frames.capacity(), 3u);
  EXPECT_EQ(*frames.take(), 5u);
  frames.store(5, 2, 9);
  EXPECT_EQ(ram[5 * kTableEntries + 2], 9u);
  EXPECT_EQ(ram[4 * kTableEntries], 1u) << "somebody else's";
  EXPECT_EQ(*frames.take(), 6u);
  EXPECT_EQ(*frames.take(), 7u);
  EXPECT_FALSE(frames.take().has_value());
  EXPECT_EQ(frames.live_entries(5), 1u);
  frames.give_back(7);
  EXPECT_EQ(*frames.take(), 7u);
}

}  // namespace
}  // namespace softhca::host
