#include "os/guarded_copy.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"
#include "os/test_child.h"
#include "os/test_pages.h"

namespace softhca::os {
namespace {

class GuardedCopyTest : public testing::TestWithParam<CopyMethod> {
 protected:
  void SetUp() override {
    copy_ = GuardedCopy::open(GetParam());
    if (!copy_) GTEST_SKIP() << copy_method_name(GetParam()) << " is not available here";
  }
  CopyOutcome read(std::uintptr_t address, Bytes to) {
    const MemoryPiece piece{address, to.size()};
    return copy_->from_memory({&piece, 1}, to);
  }
  CopyOutcome write(std::uintptr_t address, ConstBytes from) {
    const MemoryPiece piece{address, from.size()};
    return copy_->to_memory({&piece, 1}, from);
  }

  std::optional<GuardedCopy> copy_;
};

INSTANTIATE_TEST_SUITE_P(Methods, GuardedCopyTest,
                         testing::Values(CopyMethod::ProcessVm, CopyMethod::Pipe),
                         [](const auto& row) { return std::string(copy_method_name(row.param)); });

TEST_P(GuardedCopyTest, MovesPiecesLikeMemcpy) {
  TestPages pages(64);
  Prng prng(1);
  for (unsigned round = 0; round < 200; ++round) {
    pages.fill(round);
    std::vector<MemoryPiece> pieces(1 + prng.below(100));
    std::vector<std::byte> expected;
    for (MemoryPiece& piece : pieces) {
      piece.bytes = prng.chance(1, 8) ? 0 : prng.below(prng.chance(1, 8) ? 100'000 : 600);
      const std::size_t at = prng.below(pages.bytes().size() - piece.bytes);
      piece.address = pages.address() + at;
      expected.insert(expected.end(), pages.bytes().begin() + static_cast<std::ptrdiff_t>(at),
                      pages.bytes().begin() + static_cast<std::ptrdiff_t>(at + piece.bytes));
    }
    std::vector<std::byte> buffer(expected.size());
    const CopyOutcome read = copy_->from_memory(pieces, buffer);
    ASSERT_EQ(read.fault, CopyFault::None);
    ASSERT_EQ(read.done_bytes, expected.size());
    ASSERT_EQ(buffer, expected);

    for (std::byte& b : buffer) b = static_cast<std::byte>(prng.next());
    std::vector<std::byte> model(pages.bytes().begin(), pages.bytes().end());
    std::size_t offset = 0;
    for (const MemoryPiece& piece : pieces) {
      std::copy_n(buffer.begin() + static_cast<std::ptrdiff_t>(offset), piece.bytes,
                  model.begin() + static_cast<std::ptrdiff_t>(piece.address - pages.address()));
      offset += piece.bytes;
    }
    ASSERT_EQ(copy_->to_memory(pieces, buffer).done_bytes, buffer.size());
    ASSERT_TRUE(std::ranges::equal(model, pages.bytes()));
  }
}

TEST_P(GuardedCopyTest, StopsAtTheFirstByteOfAnUnmappedPage) {
  TestPages pages(40);
  pages.fill(3);
  pages.unmap(30);
  for (const std::size_t start : {std::size_t{0}, std::size_t{1}, std::size_t{29 * 4096 + 4095}}) {
    std::vector<std::byte> buffer(pages.bytes().size() - start);
    const CopyOutcome read = this->read(pages.address() + start, buffer);
    EXPECT_EQ(read.fault, CopyFault::Gone);
    EXPECT_EQ(read.fault_address, pages.address(30));
    ASSERT_EQ(read.done_bytes, 30 * kPage4K - start);
    for (std::size_t i = 0; i < read.done_bytes; ++i)
      ASSERT_EQ(buffer[i], TestPages::value_at(start + i, 3));
    const CopyOutcome written = this->write(pages.address() + start, buffer);
    EXPECT_EQ(written.fault, CopyFault::Gone);
    EXPECT_EQ(written.fault_address, pages.address(30));
    EXPECT_EQ(written.done_bytes, 30 * kPage4K - start);
  }
}

TEST_P(GuardedCopyTest, ReadsButDoesNotWriteAReadOnlyPage) {
  TestPages pages(3);
  pages.fill(1);
  pages.protect_read_only(1);
  std::vector<std::byte> buffer(2 * kPage4K, std::byte{0xee});
  const CopyOutcome written = write(pages.address() + 100, buffer);
  EXPECT_EQ(written.fault, CopyFault::Protected);
  EXPECT_EQ(written.fault_address, pages.address(1));
  EXPECT_EQ(written.done_bytes, kPage4K - 100);
  EXPECT_EQ(pages.page(1)[0], TestPages::value_at(kPage4K, 1));
  EXPECT_EQ(read(pages.address(1), std::span(buffer).first(kPage4K)).fault, CopyFault::None);
}

TEST_P(GuardedCopyTest, NeitherReadsNorWritesAPageWithoutRights) {
  TestPages pages(2);
  pages.protect_none(1);
  std::vector<std::byte> buffer(8);
  EXPECT_EQ(read(pages.address(1) - 4, buffer).fault, CopyFault::Protected);
  const CopyOutcome written = write(pages.address(1) - 4, buffer);
  EXPECT_EQ(written.fault, CopyFault::Protected);
  EXPECT_EQ(written.done_bytes, 4u);
}

TEST_P(GuardedCopyTest, CallsAPageBehindTheEndOfItsFileGone) {
  TestPages pages(1);
  pages.replace_by_empty_file(0);
  std::vector<std::byte> buffer(8);
  EXPECT_EQ(read(pages.address(), buffer).fault, CopyFault::Gone);
  EXPECT_EQ(write(pages.address(), buffer).fault, CopyFault::Gone);
}

TEST_P(GuardedCopyTest, CountsTheBytesOfThePiecesBeforeTheBadOne) {
  TestPages pages(3);
  pages.unmap(2);
  const MemoryPiece pieces[] = {{pages.address(1) - 100, 200}, {pages.address(2) - 10, 30}};
  std::vector<std::byte> buffer(230);
  const CopyOutcome read = copy_->from_memory(pieces, buffer);
  EXPECT_EQ(read.done_bytes, 210u);
  EXPECT_EQ(read.fault_address, pages.address(2));
}

TEST_P(GuardedCopyTest, MovesToAndFromABufferInParts) {
  TestPages pages(20);
  pages.fill(5);
  const MemoryPiece pieces[] = {{pages.address() + 10, 7000}, {pages.address(9), 20'000}};
  std::vector<std::byte> whole(27'000);
  ASSERT_EQ(copy_->from_memory(pieces, Bytes(whole)).done_bytes, whole.size());
  std::vector<std::vector<std::byte>> parts;
  std::vector<Bytes> rooms;
  std::vector<ConstBytes> contents;
  for (const std::size_t bytes : {1u, 0u, 4096u, 12903u, 10000u}) parts.emplace_back(bytes);
  for (std::vector<std::byte>& part : parts) rooms.emplace_back(part), contents.emplace_back(part);
  const CopyOutcome read = copy_->from_memory(pieces, rooms);
  EXPECT_EQ(read.fault, CopyFault::None);
  EXPECT_EQ(read.done_bytes, whole.size());
  std::vector<std::byte> joined;
  for (const auto& part : parts) joined.insert(joined.end(), part.begin(), part.end());
  EXPECT_EQ(joined, whole);

  pages.fill(6);
  EXPECT_EQ(copy_->to_memory(pieces, contents).done_bytes, whole.size());
  ASSERT_EQ(copy_->from_memory(pieces, Bytes(joined)).done_bytes, whole.size());
  EXPECT_EQ(joined, whole);
}

TEST_P(GuardedCopyTest, CountsTheBytesOfABufferInPartsUpToTheBadOne) {
  TestPages pages(3);
  pages.unmap(2);
  const MemoryPiece piece{pages.address(1), 2 * kPage4K};
  std::vector<std::byte> first(100), second(8092);
  const Bytes rooms[] = {first, second};
  const CopyOutcome read = copy_->from_memory({&piece, 1}, rooms);
  EXPECT_EQ(read.fault, CopyFault::Gone);
  EXPECT_EQ(read.done_bytes, kPage4K);
  EXPECT_EQ(read.fault_address, pages.address(2));
}

TEST_P(GuardedCopyTest, WorksAgainAfterAFault) {
  TestPages pages(1);
  std::vector<std::byte> buffer(100, std::byte{7});
  EXPECT_EQ(write(8, buffer).fault, CopyFault::Gone);
  EXPECT_EQ(read(8, buffer).fault, CopyFault::Gone);
  EXPECT_EQ(write(pages.address(), buffer).fault, CopyFault::None);
  EXPECT_EQ(pages.page(0)[99], std::byte{7});
  EXPECT_EQ(pages.page(0)[100], std::byte{0});
}

TEST_P(GuardedCopyTest, ReachesAForkedChildsOwnMemoryAndNotItsParents) {
  TestPages pages(1);
  std::vector<std::byte> buffer(8, std::byte{1});
  ASSERT_EQ(write(pages.address(), buffer).fault, CopyFault::None);
  const int status = run_in_child([&] {
    buffer.assign(8, std::byte{2});
    const MemoryPiece piece{pages.address(), 8};
    if (copy_->to_memory({&piece, 1}, buffer).fault != CopyFault::None) return 1;
    return pages.page(0)[7] == std::byte{2} ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pages.page(0)[7], std::byte{1});
}

TEST(GuardedCopy, ClosesItsDescriptors) {
  const int before = ::dup(0);
  ASSERT_GE(before, 0);
  ::close(before);
  {
    const auto copy = GuardedCopy::open(CopyMethod::Pipe);
    ASSERT_TRUE(copy.has_value());
    EXPECT_EQ(::fcntl(before, F_GETFD), FD_CLOEXEC);
  }
  EXPECT_EQ(::fcntl(before, F_GETFD), -1);
}

}  // namespace
}  // namespace softhca::os
