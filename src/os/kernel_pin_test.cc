#include "os/kernel_pin.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <vector>

#include "os/test_child.h"
#include "os/test_pages.h"

namespace softhca::os {
namespace {

class KernelPinTest : public testing::TestWithParam<PinBackend> {
 protected:
  KernelPinTest() : pins_(KernelPins::open(GetParam())) {}
  void SetUp() override {
    if (pins_.backend() != GetParam())
      GTEST_SKIP() << pin_backend_name(GetParam()) << ": " << pins_.why_not_better();
  }
  KernelPins pins_;
};

INSTANTIATE_TEST_SUITE_P(Backends, KernelPinTest,
                         testing::Values(PinBackend::IoUring, PinBackend::Mlock,
                                         PinBackend::Counted),
                         [](const auto& row) { return std::string(pin_backend_name(row.param)); });

TEST_P(KernelPinTest, PinsAndReleasesAnyBytes) {
  TestPages pages(8);
  for (int round = 0; round < 100; ++round) {
    const auto held = pins_.pin(pages.address() + 100, 5 * kPage4K);
    ASSERT_TRUE(held);
    EXPECT_EQ(is_locked(pages.address(2), 1), GetParam() == PinBackend::Mlock);
    pins_.unpin(*held);
    EXPECT_FALSE(is_locked(pages.address(), 8 * kPage4K));
  }
}

TEST_P(KernelPinTest, ReleasesPagesThatWereUnmappedMeanwhile) {
  TestPages pages(4);
  const auto held = pins_.pin(pages.address(), 4 * kPage4K);
  ASSERT_TRUE(held);
  pages.unmap(1);
  pins_.unpin(*held);
  EXPECT_FALSE(is_locked(pages.address(), kPage4K));
  EXPECT_FALSE(is_locked(pages.address(2), 2 * kPage4K));
}

TEST_P(KernelPinTest, RefusesAHoleAndHoldsNothing) {
  if (GetParam() == PinBackend::Counted) GTEST_SKIP() << "nothing is asked of the kernel";
  TestPages pages(4);
  pages.unmap(2);
  const auto held = pins_.pin(pages.address(), 4 * kPage4K);
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error(), PinError::NotPinnable);
  EXPECT_FALSE(is_locked(pages.address(), 2 * kPage4K));
}

TEST(KernelPins, OpensTheBestBackendAndSaysWhyNotABetterOne) {
  const KernelPins best = KernelPins::open();
  EXPECT_EQ(best.why_not_better().empty(), best.backend() == PinBackend::IoUring);
  EXPECT_EQ(KernelPins::open(PinBackend::Counted).backend(), PinBackend::Counted);
}

TEST(KernelPins, ClosesItsDescriptors) {
  TestPages pages(2);
  const int before = ::dup(0);
  ::close(before);
  {
    KernelPins pins = KernelPins::open();
    if (pins.backend() != PinBackend::IoUring) GTEST_SKIP() << pins.why_not_better();
    const auto held = pins.pin(pages.address(), 2 * kPage4K);
    ASSERT_TRUE(held);
    std::byte one{};
    ASSERT_TRUE(pins.copy_from_pinned(*held, 0, {&one, 1}));
    for (int fd = before; fd < before + 3; ++fd) EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(::fcntl(before + 3, F_GETFD), -1);
  }
  for (int fd = before; fd < before + 3; ++fd) EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

class IoUringPins : public testing::Test {
 protected:
  IoUringPins() : pins_(KernelPins::open(PinBackend::IoUring)) {}
  void SetUp() override {
    if (pins_.backend() != PinBackend::IoUring) GTEST_SKIP() << pins_.why_not_better();
  }
  KernelPins pins_;
};

TEST_F(IoUringPins, CopyLikeMemcpyWhileThePagesAreMapped) {
  TestPages pages(70);
  pages.fill(2);
  const auto held = pins_.pin(pages.address() + 3, pages.bytes().size() - 3);
  ASSERT_TRUE(held);
  std::vector<std::byte> buffer(pages.bytes().size() - 8);
  ASSERT_TRUE(pins_.copy_from_pinned(*held, 2, buffer));
  for (std::size_t i = 0; i < buffer.size(); ++i)
    ASSERT_EQ(buffer[i], TestPages::value_at(i + 5, 2));
  for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = TestPages::value_at(i, 77);
  ASSERT_TRUE(pins_.copy_to_pinned(*held, 2, buffer));
  for (std::size_t i = 0; i < buffer.size(); ++i)
    ASSERT_EQ(pages.page(0)[i + 5], TestPages::value_at(i, 77));
  EXPECT_EQ(pages.page(0)[4], TestPages::value_at(4, 2));
}

TEST_F(IoUringPins, StillReachTheOldFramesAfterTheAddressWasMappedAnew) {
  TestPages pages(2);
  pages.fill(1);
  const auto old_pin = pins_.pin(pages.address(), 2 * kPage4K);
  ASSERT_TRUE(old_pin);
  pages.unmap(0, 2);
  std::vector<std::byte> buffer(100);
  ASSERT_TRUE(pins_.copy_from_pinned(*old_pin, 4000, buffer));
  EXPECT_EQ(buffer[99], TestPages::value_at(4099, 1));

  pages.replace(0, 2);
  const auto new_pin = pins_.pin(pages.address(), 2 * kPage4K);
  ASSERT_TRUE(new_pin);
  const std::vector<std::byte> marks(100, std::byte{0xaa});
  ASSERT_TRUE(pins_.copy_to_pinned(*old_pin, 0, marks));
  EXPECT_EQ(pages.page(0)[0], std::byte{0}) << "the program's new page is untouched";
  ASSERT_TRUE(pins_.copy_to_pinned(*new_pin, 50, marks));
  EXPECT_EQ(pages.page(0)[50], std::byte{0xaa});
  ASSERT_TRUE(pins_.copy_from_pinned(*old_pin, 0, buffer));
  EXPECT_EQ(buffer, marks);
  pins_.unpin(*old_pin);
  pins_.unpin(*new_pin);
}

TEST_F(IoUringPins, TakeSeveralSlotsForMoreThanAGibibyte) {
  // One shared page, mapped over and over: a long range that takes little memory.
  constexpr std::size_t kBytes = kPage1G + 8 * kPage2M;
  constexpr std::size_t kFileBytes = kPage2M;
  auto* start = static_cast<std::byte*>(
      ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(start, MAP_FAILED);
  const int fd = ::memfd_create("long", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, kFileBytes), 0);
  for (std::size_t at = 0; at < kBytes; at += kFileBytes)
    ASSERT_NE(::mmap(start + at, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0),
              MAP_FAILED);
  ::close(fd);
  const auto held = pins_.pin(reinterpret_cast<std::uintptr_t>(start), kBytes);
  ASSERT_TRUE(held);
  const std::vector<std::byte> marks(300, std::byte{5});
  ASSERT_TRUE(pins_.copy_to_pinned(*held, kPage1G - 100, marks)) << "across two slots";
  EXPECT_EQ(start[kPage1G - 100], std::byte{5});
  EXPECT_EQ(start[kPage1G + 199], std::byte{5});
  EXPECT_EQ(start[kPage1G + 200], std::byte{0});
  pins_.unpin(*held);
  ::munmap(start, kBytes);
}

TEST_F(IoUringPins, DoNotDisturbMadviseDontneed) {
  TestPages pages(1);
  pages.fill(1);
  const auto held = pins_.pin(pages.address(), kPage4K);
  ASSERT_TRUE(held);
  ASSERT_EQ(::madvise(pages.page(0), kPage4K, MADV_DONTNEED), 0);
  EXPECT_EQ(pages.page(0)[7], std::byte{0});
  std::byte old{};
  ASSERT_TRUE(pins_.copy_from_pinned(*held, 7, {&old, 1}));
  EXPECT_EQ(old, TestPages::value_at(7, 1));
}

TEST_F(IoUringPins, RefuseReadOnlyPages) {
  TestPages pages(1);
  pages.protect_read_only(0);
  const auto held = pins_.pin(pages.address(), kPage4K);
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error(), PinError::NotPinnable);
}

TEST(MlockPins, NoticeThatAMappingWasReplaced) {
  KernelPins pins = KernelPins::open(PinBackend::Mlock);
  if (pins.backend() != PinBackend::Mlock) GTEST_SKIP() << pins.why_not_better();
  TestPages pages(3);
  const auto held = pins.pin(pages.address(), 3 * kPage4K);
  ASSERT_TRUE(held);
  EXPECT_TRUE(pins.still_locked(pages.address() + 10, 2 * kPage4K));
  pages.replace(1);
  EXPECT_FALSE(pins.still_locked(pages.address(), 3 * kPage4K));
  EXPECT_TRUE(pins.still_locked(pages.address(2), 1));
  pages.unmap(2);
  EXPECT_FALSE(pins.still_locked(pages.address(2), 1));
  pins.unpin({pages.address(), kPage4K, 0});
}

// What an ordinary user may pin: the limit, not more, and all of it again afterwards. Newer kernels
// charge a ring's own memory too, a few pages.
int fill_the_limit(PinBackend backend) {
  constexpr std::size_t kLimitPages = 64;
  const std::size_t own_pages = backend == PinBackend::IoUring ? 8 : 0;
  if (!become_ordinary_user(kLimitPages * kPage4K)) return kChildSkips;
  if (memlock_limit() != kLimitPages * kPage4K) return 1;
  TestPages pages(2 * kLimitPages);
  pages.fill(0);
  KernelPins pins = KernelPins::open(backend);
  if (pins.backend() != backend) return kChildSkips;
  const auto all = pins.pin(pages.address(), (kLimitPages - own_pages) * kPage4K);
  if (!all) return 2;
  const auto more = pins.pin(pages.address(kLimitPages), (own_pages + 1) * kPage4K);
  if (more || more.error() != PinError::Limit) return 3;
  pins.unpin(*all);
  if (!pins.pin(pages.address(kLimitPages), (kLimitPages - own_pages) * kPage4K)) return 4;
  return 0;
}

TEST(KernelPins, KeepTheMemlockLimitOfAnOrdinaryUser) {
  for (const PinBackend backend : {PinBackend::IoUring, PinBackend::Mlock}) {
    const int status = run_in_child([&] { return fill_the_limit(backend); });
    if (status == kChildSkips) {
      RecordProperty(std::string(pin_backend_name(backend)), "not available to an ordinary user");
      continue;
    }
    EXPECT_EQ(status, 0) << pin_backend_name(backend);
  }
}

TEST(KernelPins, FallBackToCountingWithoutAnyLimitToSpend) {
  const int status = run_in_child([] {
    if (!become_ordinary_user(0)) return kChildSkips;
    return KernelPins::open().backend() == PinBackend::Counted ? 0 : 1;
  });
  if (status == kChildSkips) GTEST_SKIP() << "cannot become an ordinary user";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace softhca::os
