#include "host/pin.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"
#include "host/test_bench.h"
#include "os/test_child.h"
#include "os/test_pages.h"

namespace softhca::host {
namespace {

using os::KernelPins;
using os::PinBackend;
using os::TestPages;
using trace::Counter;
using trace::ReasonId;

Range<PhysSpace> pages(std::uint64_t first, std::uint64_t count) {
  return {{first * kPage4K}, count * kPage4K};
}

TEST(Pins, CountAPageOnceForEachPin) {
  TestBench bench;
  Pins pins(nullptr, {}, bench.tracer);
  const auto a = pins.pin({{kPage4K + 5}, kPage4K}, {});  // touches two pages
  const auto b = pins.pin({{2 * kPage4K}, 1}, {});
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->pages, 2u);
  EXPECT_FALSE(a->counted_only) << "in a modelled machine the count is the pin";
  EXPECT_EQ(pins.count_at({kPage4K - 1}), 0u);
  EXPECT_EQ(pins.count_at({kPage4K}), 1u);
  EXPECT_EQ(pins.count_at({2 * kPage4K + 9}), 2u);
  EXPECT_EQ(pins.count_at({3 * kPage4K}), 0u);
  EXPECT_EQ(pins.pages_held(), 2u);
  EXPECT_EQ(pins.pages_charged(), 3u);
  pins.unpin(a->id, {});
  EXPECT_EQ(pins.count_at({kPage4K}), 0u);
  EXPECT_EQ(pins.count_at({2 * kPage4K}), 1u);
  EXPECT_EQ(bench.count(Counter::PagesPinned), 3u);
  EXPECT_EQ(bench.count(Counter::PagesUnpinned), 2u);
  EXPECT_EQ(bench.events(trace::EventKind::Pin).size(), 2u);
  EXPECT_EQ(bench.events(trace::EventKind::Unpin)[0].fields[1], 2u);
  pins.unpin(b->id, {});
}

TEST(Pins, TakeOneRunForATebibyte) {
  TestBench bench;
  Pins pins(nullptr, {}, bench.tracer);
  const std::uint64_t tebibyte = (std::uint64_t{1} << 40) / kPage4K;
  const auto first = pins.pin(pages(5, tebibyte), {});
  const auto second = pins.pin(pages(5 + tebibyte, tebibyte), {});
  ASSERT_TRUE(first && second);
  EXPECT_EQ(pins.run_count(), 1u) << "neighbours with equal counts are one run";
  const auto inner = pins.pin(pages(100, 7), {});
  EXPECT_EQ(pins.run_count(), 3u);
  pins.unpin(inner->id, {});
  EXPECT_EQ(pins.run_count(), 1u);
  pins.unpin(first->id, {});
  pins.unpin(second->id, {});
  EXPECT_EQ(pins.run_count(), 0u);
}

TEST(Pins, KnowTheLargestCountInARange) {
  TestBench bench;
  Pins pins(nullptr, {}, bench.tracer);
  const auto a = pins.pin(pages(10, 10), {});
  const auto b = pins.pin(pages(15, 10), {});
  EXPECT_EQ(pins.most_in(pages(0, 10)), 0u);
  EXPECT_EQ(pins.most_in(pages(0, 11)), 1u);
  EXPECT_EQ(pins.most_in({{14 * kPage4K + 9}, kPage4K - 9}), 1u);
  EXPECT_EQ(pins.most_in({{14 * kPage4K + 9}, kPage4K - 8}), 2u);
  EXPECT_EQ(pins.most_in(pages(16, 1)), 2u);
  EXPECT_EQ(pins.most_in(pages(20, 1000)), 1u);
  EXPECT_EQ(pins.most_in(pages(25, 1000)), 0u);
  pins.unpin(a->id, {});
  pins.unpin(b->id, {});
}

// Random pins against one number for each page.
void check_against_model(Pins& pins, std::uint64_t base_page, std::uint64_t page_count,
                         int rounds) {
  Prng prng(12);
  std::vector<std::uint32_t> model(page_count);
  struct Held {
    PinId id;
    std::uint64_t first, count;
  };
  std::vector<Held> held;
  for (int round = 0; round < rounds; ++round) {
    if (held.empty() || prng.chance(1, 2)) {
      const std::uint64_t first = prng.below(page_count);
      const std::uint64_t count = 1 + prng.below(page_count - first);
      const auto pinned = pins.pin(pages(base_page + first, count), {});
      ASSERT_TRUE(pinned);
      held.push_back({pinned->id, first, count});
      for (std::uint64_t p = first; p < first + count; ++p) ++model[p];
    } else {
      const std::size_t victim = prng.below(held.size());
      const Held gone = held[victim];
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
      pins.unpin(gone.id, {});
      for (std::uint64_t p = gone.first; p < gone.first + gone.count; ++p) --model[p];
    }
    std::uint64_t distinct = 0;
    std::uint64_t changes = 0;
    std::uint32_t before = 0;
    for (std::uint64_t p = 0; p < page_count; ++p) {
      ASSERT_EQ(pins.count_at({(base_page + p) * kPage4K + 1}), model[p]);
      distinct += model[p] != 0 ? 1 : 0;
      changes += model[p] != 0 && model[p] != before ? 1 : 0;
      before = model[p];
    }
    ASSERT_EQ(pins.pages_held(), distinct);
    ASSERT_EQ(pins.run_count(), changes) << "no more runs than needed";
  }
  for (const Held& h : held) pins.unpin(h.id, {});
  EXPECT_EQ(pins.pages_held(), 0u);
  EXPECT_EQ(pins.pages_charged(), 0u);
  EXPECT_EQ(pins.pin_count(), 0u);
}

TEST(Pins, BalanceAndAgreeWithACountForEachPage) {
  TestBench bench;
  Pins pins(nullptr, {}, bench.tracer);
  check_against_model(pins, 1000, 60, 2000);
  EXPECT_EQ(bench.count(Counter::PagesPinned), bench.count(Counter::PagesUnpinned));
}

class PinsByBackend : public testing::TestWithParam<PinBackend> {};
INSTANTIATE_TEST_SUITE_P(Backends, PinsByBackend,
                         testing::Values(PinBackend::IoUring, PinBackend::Mlock,
                                         PinBackend::Counted),
                         [](const auto& row) {
                           return std::string(os::pin_backend_name(row.param));
                         });

TEST_P(PinsByBackend, BalanceInTheKernelToo) {
  TestBench bench;
  KernelPins kernel = KernelPins::open(GetParam());
  if (kernel.backend() != GetParam()) GTEST_SKIP() << kernel.why_not_better();
  TestPages memory(40);
  memory.fill(0);
  Pins pins(&kernel, {}, bench.tracer);
  check_against_model(pins, memory.address() / kPage4K, 40, 300);
  EXPECT_FALSE(os::is_locked(memory.address(), 40 * kPage4K));
  EXPECT_EQ(bench.count(Counter::PagesPinned), bench.count(Counter::PagesUnpinned));
  EXPECT_EQ(bench.count(Counter::PagesCountedNotPinned) != 0, GetParam() == PinBackend::Counted);
}

TEST(Pins, LockPagesUntilTheirLastPinIsGone) {
  TestBench bench;
  KernelPins kernel = KernelPins::open(PinBackend::Mlock);
  if (kernel.backend() != PinBackend::Mlock) GTEST_SKIP() << kernel.why_not_better();
  TestPages memory(6);
  Pins pins(&kernel, {}, bench.tracer);
  const std::uint64_t first = memory.address() / kPage4K;
  const auto a = pins.pin(pages(first, 4), {});
  const auto b = pins.pin(pages(first + 2, 4), {});
  pins.unpin(a->id, {});
  EXPECT_FALSE(os::is_locked(memory.address(0), 2 * kPage4K));
  EXPECT_TRUE(pins.still_locked({memory.address(2)}, 4 * kPage4K));
  pins.unpin(b->id, {});
  EXPECT_FALSE(os::is_locked(memory.address(), 6 * kPage4K));
}

TEST(Pins, LeaveThePagesLockedThatTheProgramHadLockedItself) {
  TestBench bench;
  KernelPins kernel = KernelPins::open(PinBackend::Mlock);
  if (kernel.backend() != PinBackend::Mlock) GTEST_SKIP() << kernel.why_not_better();
  TestPages memory(2);
  KernelPins program = KernelPins::open(PinBackend::Mlock);
  ASSERT_TRUE(program.pin(memory.address(), kPage4K));
  Pins pins(&kernel, {}, bench.tracer);
  const auto pinned = pins.pin(pages(memory.address() / kPage4K, 1), {});
  ASSERT_TRUE(pinned);
  pins.unpin(pinned->id, {});
  EXPECT_TRUE(os::is_locked(memory.address(), kPage4K));
}

TEST(Pins, HoldTheNewFramesOfARegistrationMadeAfterARemap) {
  TestBench bench;
  KernelPins kernel = KernelPins::open(PinBackend::IoUring);
  if (kernel.backend() != PinBackend::IoUring) GTEST_SKIP() << kernel.why_not_better();
  TestPages memory(1);
  memory.fill(1);
  Pins pins(&kernel, {}, bench.tracer);
  const PhysAddr at{memory.address()};
  const auto before = pins.pin({at, kPage4K}, {});
  memory.replace(0);
  const auto after = pins.pin({at, kPage4K}, {});
  const Pins::Hold hold = pins.hold_at(at, 100);
  EXPECT_EQ(hold.kind, Pins::HoldKind::Frame);
  EXPECT_EQ(hold.id, after->id);
  std::byte old{};
  ASSERT_TRUE(pins.copy_from_frame(before->id, {at.value + 7}, {&old, 1}));
  EXPECT_EQ(old, TestPages::value_at(7, 1));
  ASSERT_TRUE(pins.copy_from_frame(after->id, {at.value + 7}, {&old, 1}));
  EXPECT_EQ(old, std::byte{0});
}

TEST(Pins, CountReadOnlyPagesThatIoUringCannotPin) {
  TestBench bench;
  KernelPins kernel = KernelPins::open(PinBackend::IoUring);
  if (kernel.backend() != PinBackend::IoUring) GTEST_SKIP() << kernel.why_not_better();
  TestPages memory(1);
  memory.protect_read_only(0);
  Pins pins(&kernel, {.strict = true, .memlock_limit = UINT64_MAX}, bench.tracer);
  const auto pinned = pins.pin({{memory.address()}, kPage4K}, {});
  ASSERT_TRUE(pinned);
  EXPECT_TRUE(pinned->counted_only);
  EXPECT_FALSE(pinned->over_limit);
}

// CASES C66
TEST(Pins, KeepTheLimitWhenStrictAndOnlyReportItOtherwise) {
  for (const bool strict : {true, false}) {
    TestBench bench;
    KernelPins kernel = KernelPins::open(PinBackend::Counted);
    Pins pins(&kernel, {.strict = strict, .memlock_limit = 10 * kPage4K}, bench.tracer);
    const auto fits = pins.pin(pages(100, 6), {});
    ASSERT_TRUE(fits);
    EXPECT_FALSE(fits->over_limit);
    const auto more = pins.pin(pages(100, 5), {});  // overlaps are charged again
    if (strict) {
      ASSERT_FALSE(more);
      EXPECT_EQ(more.error(), (trace::Reason{.id = ReasonId::MemlockExceeded,
                                             .address = 100 * kPage4K,
                                             .length = 5 * kPage4K,
                                             .high = 10 * kPage4K}));
      EXPECT_EQ(pins.pages_charged(), 6u);
      EXPECT_EQ(pins.count_at({100 * kPage4K}), 1u);
      EXPECT_TRUE(pins.pin(pages(500, 4), {}));
    } else {
      ASSERT_TRUE(more);
      EXPECT_TRUE(more->over_limit);
      EXPECT_TRUE(more->counted_only);
    }
  }
}

// An ordinary user whose limit is 32 pages asks for 64.
int exceed_the_limit(PinBackend backend, bool strict) {
  if (!os::become_ordinary_user(32 * kPage4K)) return os::kChildSkips;
  TestBench bench;
  KernelPins kernel = KernelPins::open(backend);
  if (kernel.backend() != backend) return os::kChildSkips;
  TestPages memory(64);
  memory.fill(0);
  // The policy knows of no limit: the kernel has to say it.
  Pins pins(&kernel, {.strict = strict, .memlock_limit = UINT64_MAX}, bench.tracer);
  const std::uint64_t first = memory.address() / kPage4K;
  if (!pins.pin(pages(first, 16), {})) return 1;
  const auto pinned = pins.pin(pages(first, 64), {});
  if (strict) {
    if (pinned || pinned.error().id != ReasonId::MemlockExceeded) return 2;
    if (pins.pages_held() != 16 || pins.run_count() != 1) return 3;
  } else {
    if (!pinned || !pinned->counted_only || !pinned->over_limit) return 4;
    if (bench.count(Counter::PagesCountedNotPinned) != 64) return 5;
    if (pins.pages_held() != 64) return 6;
  }
  return 0;
}

TEST(Pins, NoticeTheKernelsLimitForAnOrdinaryUser) {
  for (const PinBackend backend : {PinBackend::IoUring, PinBackend::Mlock})
    for (const bool strict : {false, true}) {
      const int status = os::run_in_child([&] { return exceed_the_limit(backend, strict); });
      if (status == os::kChildSkips) continue;
      EXPECT_EQ(status, 0) << os::pin_backend_name(backend) << (strict ? " strict" : " friendly");
    }
}

}  // namespace
}  // namespace softhca::host
