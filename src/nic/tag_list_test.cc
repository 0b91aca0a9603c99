#include "nic/tag_list.h"

#include <gtest/gtest.h>

namespace softhca::nic {
namespace {

TagList::Entry entry(std::uint64_t cookie, std::uint64_t tag, std::uint64_t mask,
                     std::uint32_t bytes = 64) {
  return {.cookie = cookie, .tag = tag, .mask = mask, .segments = {{.address = 0, .bytes = bytes}}};
}

TEST(TagList, TakesTheFirstThatWaitsForTheTag) {
  TagList tags(8);
  ASSERT_TRUE(tags.add(entry(1, 0x10, 0xff), 0));
  ASSERT_TRUE(tags.add(entry(2, 0x20, 0xf0), 0));
  ASSERT_TRUE(tags.add(entry(3, 0x20, 0xff), 0));
  EXPECT_EQ(tags.match(0xab20, 0)->cookie, 2u);
  EXPECT_EQ(tags.match(0xab20, 0)->cookie, 3u);
  EXPECT_FALSE(tags.match(0xab20, 0));
  EXPECT_EQ(tags.match(0x10, 0)->cookie, 1u);
}

TEST(TagList, OneWithoutRoomStays) {
  TagList tags(8);
  ASSERT_TRUE(tags.add(entry(1, 5, ~0u, 10), 0));
  EXPECT_FALSE(tags.match(5, 11));
  EXPECT_TRUE(tags.match(5, 10));
}

TEST(TagList, IsFullAndForgetsWhatIsRemoved) {
  TagList tags(1);
  const auto handle = tags.add(entry(1, 5, ~0u), 0);
  ASSERT_TRUE(handle);
  EXPECT_FALSE(tags.add(entry(2, 6, ~0u), 0));
  EXPECT_TRUE(tags.remove(*handle));
  EXPECT_FALSE(tags.remove(*handle));
  EXPECT_FALSE(tags.match(5, 0));
  EXPECT_TRUE(tags.add(entry(2, 6, ~0u), 0));
}

// A tag that was added without knowing of an unexpected message may be for just that one.
TEST(TagList, ATagCountsOnceTheProgramHasSeenWhatWasUnexpected) {
  TagList tags(8);
  tags.note_unexpected();
  EXPECT_TRUE(tags.is_behind(0));
  ASSERT_TRUE(tags.add(entry(1, 5, ~0u), 0));
  EXPECT_FALSE(tags.match(5, 0));
  EXPECT_FALSE(tags.synchronize(0));
  EXPECT_FALSE(tags.match(5, 0));
  EXPECT_TRUE(tags.synchronize(1));
  EXPECT_TRUE(tags.match(5, 0));
  ASSERT_TRUE(tags.add(entry(2, 6, ~0u), 1));
  EXPECT_TRUE(tags.match(6, 0));
}

TEST(TagHeader, IsBigEndianAndComplete) {
  const TagHeader header{
      .operation = TagOperation::Finished, .private_word = 0x01020304, .tag = 0x1112131415161718};
  const auto bytes = header.bytes();
  ASSERT_EQ(bytes.size(), TagHeader::kBytes);
  EXPECT_EQ(bytes[0], std::byte{2});
  EXPECT_EQ(bytes[4], std::byte{1});
  EXPECT_EQ(bytes[15], std::byte{0x18});
  const auto back = TagHeader::of(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->tag, header.tag);
  EXPECT_EQ(back->private_word, header.private_word);
  EXPECT_FALSE(TagHeader::of(ConstBytes(bytes).first(15)));
  EXPECT_FALSE(RendezvousHeader::of(bytes));
  auto unknown = bytes;
  unknown[0] = std::byte{4};
  EXPECT_FALSE(TagHeader::of(unknown));
}

}  // namespace
}  // namespace softhca::nic
