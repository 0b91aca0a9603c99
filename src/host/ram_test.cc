#include "host/ram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"
#include "host/pin.h"
#include "host/test_bench.h"
#include "os/test_pages.h"

namespace softhca::host {
namespace {

using os::TestPages;
using trace::ReasonId;

std::vector<std::byte> pattern(std::size_t bytes, unsigned salt) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = TestPages::value_at(i, salt);
  return out;
}

TEST(RamArena, StartsZeroedAndTranslatesItsAddresses) {
  Ram ram = Ram::arena(std::uint64_t{1} << 32);  // sparse
  EXPECT_FALSE(ram.is_process());
  EXPECT_EQ(*ram.cpu_address({123'456'789}), std::byte{0});
  *ram.cpu_address({4096}) = std::byte{5};
  EXPECT_EQ(ram.frame_of(ram.cpu_address({4096})), PhysAddr{4096});
  std::vector<std::byte> buffer(2);
  const pcie::Span span{{4095}, 2};
  EXPECT_TRUE(ram.read({&span, 1}, buffer));
  EXPECT_EQ(buffer[1], std::byte{5});
}

TEST(RamArena, HasNoFramesBehindItsEnd) {
  Ram ram = Ram::arena(2 * kPage4K);
  const pcie::Span spans[] = {{{0}, 100}, {{2 * kPage4K - 10}, 11}};
  std::vector<std::byte> buffer(111);
  const Moved moved = ram.write(spans, buffer);
  EXPECT_EQ(moved.reason.id, ReasonId::FrameGone);
  EXPECT_EQ(moved.done_bytes, 100u);
}

TEST(RamArena, ZeroesExactlyTheRange) {
  Ram ram = Ram::arena(4 * kPage2M);
  const std::span<std::byte> memory(ram.cpu_address({0}), 4 * kPage2M);
  for (const std::uint64_t bytes : {std::uint64_t{1}, kPage4K, kPage2M, kPage2M + 5003}) {
    std::ranges::fill(memory, std::byte{7});
    ram.zero({{12'345}, bytes});
    EXPECT_EQ(memory[12'344], std::byte{7});
    EXPECT_TRUE(std::ranges::all_of(memory.subspan(12'345, bytes),
                                    [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(memory[12'345 + bytes], std::byte{7});
  }
}

// The same copies in both kinds of machine.
void check_copies(Ram& ram, std::uint64_t base, Bytes memory) {
  Prng prng(8);
  for (unsigned round = 0; round < 200; ++round) {
    std::vector<pcie::Span> spans(prng.below(150));
    std::vector<std::byte> model(memory.begin(), memory.end());
    std::uint64_t sum = 0;
    for (pcie::Span& span : spans) {
      span.bytes = prng.below(300);
      span.start = {base + prng.below(memory.size() - span.bytes)};
      sum += span.bytes;
    }
    const std::vector<std::byte> out = pattern(sum, round);
    std::size_t offset = 0;
    for (const pcie::Span& span : spans) {
      std::copy_n(out.begin() + static_cast<std::ptrdiff_t>(offset), span.bytes,
                  model.begin() + static_cast<std::ptrdiff_t>(span.start.value - base));
      offset += span.bytes;
    }
    const Moved written = ram.write(spans, out);
    ASSERT_TRUE(written);
    ASSERT_EQ(written.done_bytes, sum);
    ASSERT_TRUE(std::ranges::equal(memory, model));
    std::vector<std::byte> expected;
    for (const pcie::Span& span : spans)
      expected.insert(
          expected.end(), model.begin() + static_cast<std::ptrdiff_t>(span.start.value - base),
          model.begin() + static_cast<std::ptrdiff_t>(span.start.value - base + span.bytes));
    std::vector<std::byte> in(sum);
    ASSERT_TRUE(ram.read(spans, in));
    ASSERT_EQ(in, expected);
  }
}

TEST(RamArena, GathersAndScattersLikeMemcpy) {
  Ram ram = Ram::arena(16 * kPage4K);
  check_copies(ram, 0, {ram.cpu_address({0}), 16 * kPage4K});
}

class RamLiveTest : public testing::Test {
 protected:
  Moved read(std::uintptr_t at, std::size_t bytes) {
    buffer_.assign(bytes, std::byte{});
    const pcie::Span span{{at}, bytes};
    return ram_.read({&span, 1}, buffer_);
  }
  Moved write(std::uintptr_t at, std::size_t bytes, unsigned salt = 0) {
    buffer_ = pattern(bytes, salt);
    const pcie::Span span{{at}, bytes};
    return ram_.write({&span, 1}, buffer_);
  }
  static void expect_stop(const Moved& moved, ReasonId id, std::uint64_t at, std::uint64_t done) {
    EXPECT_EQ(moved.reason.id, id);
    EXPECT_EQ(moved.reason.address, at);
    EXPECT_EQ(moved.done_bytes, done);
  }

  TestBench bench_;
  os::GuardedCopy copy_ = *os::GuardedCopy::open();
  Ram ram_ = Ram::of_process(copy_);
  TestPages pages_{8};
  std::vector<std::byte> buffer_;
};

TEST_F(RamLiveTest, NamesFramesByVirtualAddress) {
  EXPECT_TRUE(ram_.is_process());
  EXPECT_EQ(ram_.frame_of(pages_.page(1)).value, pages_.address(1));
  EXPECT_EQ(ram_.cpu_address({pages_.address(1)}), pages_.page(1));
}

TEST_F(RamLiveTest, GathersAndScattersLikeMemcpy) {
  check_copies(ram_, pages_.address(), pages_.bytes());
}

TEST_F(RamLiveTest, SurvivesMunmapAndNamesTheFirstByte) {
  pages_.unmap(3);
  expect_stop(read(pages_.address(2) + 7, 2 * kPage4K), ReasonId::FrameGone, pages_.address(3),
              kPage4K - 7);
  expect_stop(write(pages_.address(2) + 7, 2 * kPage4K), ReasonId::FrameGone, pages_.address(3),
              kPage4K - 7);
  EXPECT_EQ(pages_.page(2)[7], TestPages::value_at(0, 0));
}

TEST_F(RamLiveTest, SurvivesMprotectAndNamesTheFirstByte) {
  pages_.protect_read_only(3);
  EXPECT_TRUE(read(pages_.address(3), kPage4K));
  expect_stop(write(pages_.address(3) - 1, 3), ReasonId::FrameProtected, pages_.address(3), 1);
  pages_.protect_none(3);
  expect_stop(read(pages_.address(3) - 1, 3), ReasonId::FrameProtected, pages_.address(3), 1);
}

TEST_F(RamLiveTest, CountsBytesAcrossMoreSpansThanOneCallTakes) {
  pages_.unmap(5);
  std::vector<pcie::Span> spans(100, pcie::Span{{pages_.address(0)}, 10});
  spans[90] = {{pages_.address(5) - 4}, 10};
  std::vector<std::byte> buffer(1000);
  expect_stop(ram_.read(spans, buffer), ReasonId::FrameGone, pages_.address(5), 904);
}

TEST_F(RamLiveTest, ByAddressReachesWhatIsMappedNow) {
  pages_.fill(1);
  pages_.replace(2);
  ASSERT_TRUE(read(pages_.address(2), 4));
  EXPECT_EQ(buffer_[0], std::byte{0});
}

class RamByFrameTest : public RamLiveTest {
 protected:
  // False if the backend is not to be had here.
  bool pin_all(os::PinBackend backend) {
    kernel_.emplace(os::KernelPins::open(backend));
    pins_.emplace(&*kernel_, PinPolicy{}, bench_.tracer);
    ram_.go_by_frame(&*pins_);
    pages_.fill(1);
    return kernel_->backend() == backend && pins_->pin({{pages_.address()}, 8 * kPage4K}, {});
  }
  ~RamByFrameTest() override { pins_.reset(); }

  std::optional<os::KernelPins> kernel_;
  std::optional<Pins> pins_;
};

TEST_F(RamByFrameTest, ReachesThePinnedFrameWhateverIsMappedNow) {
  if (!pin_all(os::PinBackend::IoUring)) GTEST_SKIP() << kernel_->why_not_better();
  check_copies(ram_, pages_.address(), pages_.bytes());
  pages_.fill(1);
  pages_.replace(2);
  pages_.unmap(3);
  ASSERT_TRUE(read(pages_.address(2) - 5, 3 * kPage4K));
  for (std::size_t i = 0; i < buffer_.size(); ++i)
    ASSERT_EQ(buffer_[i], TestPages::value_at(2 * kPage4K - 5 + i, 1));
  ASSERT_TRUE(write(pages_.address(2), 2 * kPage4K, 9));
  EXPECT_EQ(pages_.page(2)[100], std::byte{0}) << "the program's own page is another one";
  ASSERT_TRUE(read(pages_.address(2) + 100, 1));
  EXPECT_EQ(buffer_[0], TestPages::value_at(100, 9));
}

TEST_F(RamByFrameTest, PrefersTheNewestPinOfAnAddress) {
  if (!pin_all(os::PinBackend::IoUring)) GTEST_SKIP() << kernel_->why_not_better();
  pages_.replace(2, 2);
  const auto newer = pins_->pin({{pages_.address(2)}, 2 * kPage4K}, {});
  ASSERT_TRUE(newer);
  ASSERT_TRUE(write(pages_.address(1), 4 * kPage4K, 5));
  EXPECT_EQ(pages_.page(2)[0], TestPages::value_at(kPage4K, 5));
  pins_->unpin(newer->id, {});
  ASSERT_TRUE(read(pages_.address(2), 1));
  EXPECT_EQ(buffer_[0], TestPages::value_at(2 * kPage4K, 1)) << "the older pin's frame";
}

TEST_F(RamByFrameTest, RefusesALockedPageThatWasReplaced) {
  if (!pin_all(os::PinBackend::Mlock)) GTEST_SKIP() << kernel_->why_not_better();
  ASSERT_TRUE(write(pages_.address() + 1, 7 * kPage4K));
  pages_.replace(4);
  expect_stop(write(pages_.address(4) + 9, 4), ReasonId::FrameReplaced, pages_.address(4) + 9, 0);
  pages_.unmap(4);
  expect_stop(read(pages_.address(4) + 9, 4), ReasonId::FrameGone, pages_.address(4) + 9, 0);
  EXPECT_TRUE(read(pages_.address(5), 3 * kPage4K));
}

TEST_F(RamByFrameTest, GoesByAddressWherePagesAreOnlyCounted) {
  ASSERT_TRUE(pin_all(os::PinBackend::Counted));
  pages_.replace(4);
  EXPECT_TRUE(read(pages_.address(), 8 * kPage4K));
  pages_.unmap(4);
  expect_stop(read(pages_.address(3) + 1, 2 * kPage4K), ReasonId::FrameGone, pages_.address(4),
              kPage4K - 1);
}

}  // namespace
}  // namespace softhca::host
