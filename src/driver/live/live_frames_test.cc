#include "driver/live/live_frames.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/prng.h"
#include "base/sanitized.h"
#include "os/kernel_pin.h"
#include "os/test_child.h"
#include "os/test_pages.h"

namespace softhca::driver {
namespace {

using os::TestPages;
using trace::Counter;
using trace::ReasonId;

class Frames : public ::testing::Test {
 protected:
  Frames() {
    auto opened = LiveFrames::open(copy_, tracer_,
                                   [this](const trace::Reason& why) { told_.push_back(why.id); });
    EXPECT_TRUE(opened);
    frames_ = std::move(*opened);
  }
  static Range<VirtSpace> range(const TestPages& pages, std::size_t first, std::size_t count) {
    return {{pages.address(first)}, count * kPage4K};
  }
  bool are_frames(const std::vector<pcie::Span>& spans) const {
    return std::ranges::all_of(spans, [&](const pcie::Span& span) {
      return frames_->memory().contains(span.start, span.bytes);
    });
  }
  static std::byte* view(const pcie::Span& span) {
    return reinterpret_cast<std::byte*>(span.start.value);
  }
  std::uint64_t count(Counter counter) const { return tracer_.counters().get(counter); }
  bool is_private(const TestPages& pages, std::size_t index) const {
    return !os::own_mappings(range(pages, index, 1))->front().shared;
  }

  std::vector<std::uint64_t> counts_ = std::vector<std::uint64_t>(trace::kCounterCount);
  trace::Tracer tracer_{trace::Counters(counts_), nullptr};
  os::GuardedCopy copy_ = std::move(*os::GuardedCopy::open());
  std::vector<ReasonId> told_;
  std::unique_ptr<LiveFrames> frames_;
};

TEST_F(Frames, AreOneMemoryForProgramAndDevice) {
  const TestPages pages(4);
  pages.fill(1);
  const auto spans = frames_->take(range(pages, 1, 2));
  ASSERT_EQ(spans.size(), 1u);
  ASSERT_TRUE(are_frames(spans));
  EXPECT_EQ(view(spans[0])[7], TestPages::value_at(kPage4K + 7, 1));
  pages.page(2)[0] = std::byte{200};
  EXPECT_EQ(view(spans[0])[kPage4K], std::byte{200});
  view(spans[0])[1] = std::byte{201};
  EXPECT_EQ(pages.page(1)[1], std::byte{201});
  EXPECT_FALSE(is_private(pages, 1));
  EXPECT_TRUE(is_private(pages, 0) && is_private(pages, 3));

  frames_->give_back(spans);
  EXPECT_TRUE(is_private(pages, 1) && is_private(pages, 2));
  EXPECT_EQ(pages.page(1)[1], std::byte{201});
  EXPECT_EQ(count(Counter::FramesMoved), 2u);
  EXPECT_EQ(count(Counter::FramesReturned), 2u);
  EXPECT_EQ(count(Counter::FramesOrphaned), 0u);
  EXPECT_TRUE(told_.empty());
}

TEST_F(Frames, APageOfTwoRegionsIsMovedOnceAndStaysUntilBothAreGone) {
  const TestPages pages(4);
  pages.fill(2);
  const auto first = frames_->take(range(pages, 0, 3));
  const auto second = frames_->take(range(pages, 2, 2));
  EXPECT_EQ(count(Counter::FramesMoved), 4u);
  ASSERT_TRUE(are_frames(first) && are_frames(second));
  EXPECT_EQ(view(second[0]), view(first[0]) + 2 * kPage4K);
  frames_->give_back(first);
  EXPECT_TRUE(is_private(pages, 0) && is_private(pages, 1));
  EXPECT_FALSE(is_private(pages, 2) || is_private(pages, 3));
  pages.page(2)[3] = std::byte{77};
  EXPECT_EQ(view(second[0])[3], std::byte{77});
  frames_->give_back(second);
  EXPECT_TRUE(is_private(pages, 2) && is_private(pages, 3));
  EXPECT_EQ(pages.page(2)[3], std::byte{77});
}

TEST_F(Frames, RegionsLargerThanASlotAreMoved) {
  constexpr std::size_t kPages = 3 * os::kSlotBytes / kPage4K + 5;
  const TestPages pages(kPages);
  pages.fill(3);
  const auto spans = frames_->take(range(pages, 0, kPages));
  ASSERT_TRUE(are_frames(spans));
  std::size_t at = 0;
  for (const pcie::Span& span : spans)
    for (std::uint64_t i = 0; i < span.bytes; i += 512, at += 512)
      ASSERT_EQ(view(span)[i], TestPages::value_at(at, 3)) << at;
  EXPECT_EQ(at, kPages * kPage4K);
  frames_->give_back(spans);
  for (std::size_t i = 0; i < kPages * kPage4K; ++i)
    ASSERT_EQ(pages.bytes()[i], TestPages::value_at(i, 3)) << i;
}

TEST_F(Frames, WhatCannotBeMovedStaysOrdinaryAndIsTold) {
  const TestPages pages(5);
  pages.fill(4);
  pages.protect_read_only(1);
  pages.replace_by_empty_file(3);
  const auto spans = frames_->take(range(pages, 0, 5));
  std::uint64_t bytes = 0, ordinary = 0;
  for (const pcie::Span& span : spans) {
    bytes += span.bytes;
    if (!frames_->memory().contains(span.start, span.bytes)) ordinary += span.bytes;
  }
  EXPECT_EQ(bytes, 5 * kPage4K);
  EXPECT_EQ(ordinary, 2 * kPage4K);
  EXPECT_EQ(told_, (std::vector{ReasonId::FramesNotMovable, ReasonId::FramesNotMovable}));
  frames_->give_back(spans);
  EXPECT_TRUE(is_private(pages, 0) && is_private(pages, 2) && is_private(pages, 4));
}

// Somebody else's userfaultfd is in the way on one page.
TEST_F(Frames, WhatCannotBeMovedInTheMiddleStaysAsItWas) {
  if (!os::PageMover::may_hold_writers()) GTEST_SKIP() << "no leave to hold faults";
  constexpr std::size_t kSlot = os::kSlotBytes / kPage4K;
  const TestPages pages(3 * kSlot);
  pages.fill(9);
  const int theirs = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  ASSERT_GE(theirs, 0);
  uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
  ASSERT_EQ(::ioctl(theirs, UFFDIO_API, &api), 0);
  uffdio_register wanted{.range = {.start = pages.address(kSlot + 10), .len = kPage4K},
                         .mode = UFFDIO_REGISTER_MODE_MISSING,
                         .ioctls = 0};
  ASSERT_EQ(::ioctl(theirs, UFFDIO_REGISTER, &wanted), 0);
  const auto spans = frames_->take(range(pages, 0, 3 * kSlot));
  EXPECT_EQ(told_, std::vector{ReasonId::FramesExhausted});
  EXPECT_EQ(count(Counter::FramesMoved), 3 * kSlot - 1);
  EXPECT_FALSE(is_private(pages, kSlot + 9) || is_private(pages, kSlot + 11));
  EXPECT_TRUE(is_private(pages, kSlot + 10));
  pages.page(kSlot + 10)[0] = std::byte{55};  // nobody holds it
  frames_->give_back(spans);
  ::close(theirs);
  pages.page(kSlot + 10)[0] = TestPages::value_at((kSlot + 10) * kPage4K, 9);
  for (std::size_t i = 0; i < 3 * os::kSlotBytes; i += 64)
    ASSERT_EQ(pages.bytes()[i], TestPages::value_at(i, 9)) << i;
}

TEST_F(Frames, HugePagesOfOrdinaryMemoryAreMovedPageByPage) {
  constexpr std::size_t kPages = 2 * kPage2M / kPage4K;
  const TestPages pages(kPages);
  ::madvise(pages.page(0), kPages * kPage4K, MADV_HUGEPAGE);
  pages.fill(10);
  const auto spans = frames_->take(range(pages, 3, kPages - 7));
  EXPECT_TRUE(are_frames(spans));
  pages.page(5)[0] = std::byte{44};
  EXPECT_EQ(view(spans[0])[2 * kPage4K], std::byte{44});
  pages.page(5)[0] = TestPages::value_at(5 * kPage4K, 10);
  frames_->give_back(spans);
  for (std::size_t i = 0; i < kPages * kPage4K; i += 64)
    ASSERT_EQ(pages.bytes()[i], TestPages::value_at(i, 10)) << i;
}

TEST_F(Frames, TheStackInUseAndLockedMemoryAreNotMoved) {
  alignas(kPage4K) std::byte on_stack[kPage4K] = {};
  frames_->give_back(
      frames_->take({{reinterpret_cast<std::uint64_t>(&on_stack)}, sizeof on_stack}));
  EXPECT_EQ(told_, std::vector{ReasonId::FramesNotMovable});
  const TestPages pages(1);
  ::mlock(pages.page(0), kPage4K);
  // There may be a limit, and sanitizers lock nothing.
  if (!os::is_locked(pages.address(), kPage4K)) return;
  frames_->give_back(frames_->take(range(pages, 0, 1)));
  EXPECT_EQ(told_.size(), 2u);
  EXPECT_EQ(count(Counter::FramesMoved), 0u);
}

TEST_F(Frames, PagesThatAnotherRegionReachesByAddressAreNotMoved) {
  const TestPages pages(3);
  frames_->keep_addresses(range(pages, 1, 1));
  const auto spans = frames_->take(range(pages, 0, 3));
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_TRUE(are_frames({spans[0], spans[2]}));
  EXPECT_EQ(spans[1].start.value, pages.address(1));
  EXPECT_EQ(told_, std::vector{ReasonId::FramesKeptByAddress});
}

TEST_F(Frames, LongAndShortStretchesAreKeptBesideEachOther) {
  const TestPages pages(20);
  frames_->keep_addresses(range(pages, 12, 1));
  frames_->keep_addresses(range(pages, 0, 10));
  frames_->keep_addresses(range(pages, 3, 1));
  const auto spans = frames_->take(range(pages, 8, 8));
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[0].start.value, pages.address(8));
  EXPECT_EQ(spans[0].bytes, 2 * kPage4K);
  EXPECT_EQ(spans[2].start.value, pages.address(12));
  EXPECT_EQ(spans[2].bytes, kPage4K);
  EXPECT_TRUE(are_frames({spans[1], spans[3]}));
  frames_->give_back(spans);
  EXPECT_TRUE(is_private(pages, 10) && is_private(pages, 15));
}

// An allocator's records may lie beside a buffer, and a child of a fork needs them as they were.
TEST_F(Frames, WhatLiesBesideABufferInItsPagesIsNotMoved) {
  const TestPages pages(4);
  pages.fill(8);
  const auto spans = frames_->take({{pages.address(0) + 100}, 3 * kPage4K});
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].start.value, pages.address(0));
  EXPECT_EQ(spans[1].bytes, 2 * kPage4K);
  EXPECT_EQ(spans[2].start.value, pages.address(3));
  EXPECT_TRUE(are_frames({spans[1]}));
  EXPECT_TRUE(is_private(pages, 0) && is_private(pages, 3));
  // A page that is in frames already is one for this buffer, too; the others are kept.
  const auto more = frames_->take({{pages.address(2) + 8}, 2 * kPage4K - 8});
  ASSERT_EQ(more.size(), 2u);
  EXPECT_TRUE(are_frames({more[0]}));
  EXPECT_EQ(more[1].start.value, pages.address(3));
  EXPECT_EQ(told_, std::vector{ReasonId::FramesKeptByAddress});
  frames_->give_back(spans);
  EXPECT_FALSE(is_private(pages, 2));
  frames_->give_back(more);
  EXPECT_TRUE(is_private(pages, 2));
  // A small buffer among others is nothing to tell.
  frames_->give_back(frames_->take({{pages.address(1) + 8}, kPage4K}));
  EXPECT_EQ(told_.size(), 1u);
}

// As on hardware: the device has the frame until the region goes.
TEST_F(Frames, MemoryThatIsUnmappedUnderARegionBecomesAnOrphan) {
  const TestPages pages(2);
  pages.fill(5);
  const auto spans = frames_->take(range(pages, 0, 2));
  pages.replace(0, 2);
  EXPECT_EQ(view(spans[0])[9], TestPages::value_at(9, 5));
  view(spans[0])[9] = std::byte{1};
  EXPECT_EQ(pages.page(0)[9], std::byte{0});
  // What lies there now may be registered, too, and is other memory.
  const auto anew = frames_->take(range(pages, 0, 2));
  ASSERT_TRUE(are_frames(anew));
  EXPECT_NE(view(anew[0]), view(spans[0]));
  frames_->give_back(spans);
  EXPECT_EQ(count(Counter::FramesOrphaned), 2u);
  pages.page(0)[0] = std::byte{42};
  EXPECT_EQ(view(anew[0])[0], std::byte{42});
  frames_->give_back(anew);
  EXPECT_EQ(pages.page(0)[0], std::byte{42});
  EXPECT_EQ(count(Counter::FramesReturned), 2u);
}

TEST_F(Frames, MemoryThatTheProgramMovesAndLengthensComesBackWhereItIsThen) {
  const std::size_t kOld = 3 * kPage4K;
  auto* const old = static_cast<std::byte*>(
      ::mmap(nullptr, kOld, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::memset(old, 6, kOld);
  const auto spans = frames_->take({{reinterpret_cast<std::uint64_t>(old)}, kOld});
  ASSERT_TRUE(are_frames(spans));
  for (const std::size_t longer : {5 * kPage4K, 2 * os::kSlotBytes}) {
    void* const moved = ::mremap(old, kOld, longer, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) continue;
    auto* const now = static_cast<std::byte*>(moved);
    EXPECT_EQ(now[kOld], std::byte{0});
    now[kOld] = std::byte{8};
    now[longer - 1] = std::byte{9};
    view(spans[0])[0] = std::byte{7};
    EXPECT_EQ(now[0], std::byte{7});
    frames_->give_back(spans);
    EXPECT_TRUE(now[0] == std::byte{7} && now[1] == std::byte{6} && now[kOld] == std::byte{8} &&
                now[longer - 1] == std::byte{9});
    const auto mappings = os::own_mappings({{reinterpret_cast<std::uint64_t>(now)}, longer});
    ASSERT_TRUE(mappings);
    for (const auto& mapping : *mappings) EXPECT_FALSE(mapping.shared);
    EXPECT_EQ(count(Counter::FramesOrphaned), 0u);
    ::munmap(now, longer);
    return;
  }
  FAIL() << "nothing was lengthened";
}

// A slot is given out again, and then what a program has lengthened by begins with zeros, too.
TEST_F(Frames, WhatALengthenedMappingHadIsNotSeenByTheNext) {
  constexpr std::size_t kFew = 2 * kPage4K;
  for (const std::size_t longer : {8 * kPage4K, 2 * os::kSlotBytes, 2 * os::kSlotBytes}) {
    void* const old =
        ::mmap(nullptr, kFew, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const auto spans = frames_->take({{reinterpret_cast<std::uint64_t>(old)}, kFew});
    ASSERT_TRUE(are_frames(spans));
    EXPECT_EQ(view(spans[0]), reinterpret_cast<std::byte*>(frames_->memory().start.value));
    void* const moved = ::mremap(old, kFew, longer, MREMAP_MAYMOVE);
    ASSERT_NE(moved, MAP_FAILED);
    const Bytes added(static_cast<std::byte*>(moved) + kFew, longer - kFew);
    EXPECT_EQ(std::ranges::count(added, std::byte{0}), static_cast<std::ptrdiff_t>(added.size()));
    std::ranges::fill(added, std::byte{9});
    frames_->give_back(spans);
    EXPECT_EQ(std::ranges::count(added, std::byte{9}), static_cast<std::ptrdiff_t>(added.size()));
    ::munmap(moved, longer);
  }
}

TEST_F(Frames, WhatIsLeftFarBehindOfALengthenedMappingComesBack) {
  constexpr std::size_t kPages = 3 * os::kSlotBytes / kPage4K;
  const TestPages pages(kPages);
  pages.unmap(2, kPages - 2);
  const auto spans = frames_->take(range(pages, 0, 2));
  if (::mremap(pages.page(0), 2 * kPage4K, kPages * kPage4K, 0) == MAP_FAILED)
    GTEST_SKIP() << "somebody has the place";
  pages.page(kPages - 1)[5] = std::byte{5};
  pages.unmap(2, kPages - 3);
  frames_->give_back(spans);
  EXPECT_TRUE(is_private(pages, 0) && is_private(pages, kPages - 1));
  EXPECT_EQ(pages.page(kPages - 1)[5], std::byte{5});
}

// Until they are closed again.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoMoreDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreDescriptors(const NoMoreDescriptors&) = delete;
  NoMoreDescriptors& operator=(const NoMoreDescriptors&) = delete;

 private:
  rlimit before_{};
};

// A program that has as many files open as it may cannot be told what it has mapped.
TEST_F(Frames, NothingIsLostWhereTheKernelDoesNotSayWhatIsMapped) {
  const TestPages pages(4);
  pages.fill(12);
  const auto early = frames_->take(range(pages, 0, 2));
  std::vector<pcie::Span> late;
  {
    const NoMoreDescriptors none;
    frames_->give_back(early);
    late = frames_->take(range(pages, 2, 2));
  }
  EXPECT_EQ(told_, (std::vector{ReasonId::FramesLeftShared, ReasonId::FramesExhausted}));
  for (std::size_t i = 0; i < 4 * kPage4K; ++i)
    ASSERT_EQ(pages.bytes()[i], TestPages::value_at(i, 12)) << i;
  EXPECT_EQ(count(Counter::FramesOrphaned), 0u);
  EXPECT_EQ(late.size(), 1u);
  EXPECT_FALSE(are_frames(late));
  frames_->give_back(late);  // and what was left shared
  EXPECT_TRUE(is_private(pages, 0) && is_private(pages, 1));
  for (std::size_t i = 0; i < 4 * kPage4K; ++i)
    ASSERT_EQ(pages.bytes()[i], TestPages::value_at(i, 12)) << i;
  EXPECT_EQ(count(Counter::FramesReturned), 2u);
}

TEST_F(Frames, AreOfOneDeviceInAProcess) {
  const auto second = LiveFrames::open(copy_, tracer_, [](const trace::Reason&) {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().id, ReasonId::FramesUnavailable);
  frames_.reset();
  EXPECT_TRUE(LiveFrames::open(copy_, tracer_, [](const trace::Reason&) {}));
}

TEST_F(Frames, AChildHasItsOwnCopyAsOfTheFork) {
  const TestPages pages(3);
  pages.fill(7);
  const auto spans = frames_->take(range(pages, 0, 3));
  pages.protect_none(2);
  frames_->before_fork();
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool copied = frames_->leave_behind() == 0;
    char go;
    if (::read(told[0], &go, 1) != 1) ::_exit(1);
    ASSERT(::mprotect(pages.page(2), kPage4K, PROT_READ | PROT_WRITE) == 0);
    bool same = true;
    for (std::size_t i = 0; i < 3 * kPage4K; ++i)
      same = same && pages.bytes()[i] == TestPages::value_at(i, 7);
    pages.page(1)[0] = std::byte{123};
    ::_exit(copied && same && is_private(pages, 0) ? 0 : 2);
  }
  frames_->after_fork_in_parent();
  pages.page(0)[0] = std::byte{99};
  view(spans[0])[kPage4K + 1] = std::byte{98};
  ASSERT_EQ(::write(told[1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(pages.page(1)[0], TestPages::value_at(kPage4K, 7));
  ::close(told[0]);
  ::close(told[1]);
}

TEST_F(Frames, AChildThatCannotCopySaysHowMuchItShares) {
  const TestPages pages(3);
  const auto spans = frames_->take(range(pages, 0, 3));
  frames_->before_fork();
  const int status = os::run_in_child([&] {
    const NoMoreDescriptors none;
    return frames_->leave_behind() == 3 * kPage4K ? 0 : 1;
  });
  frames_->after_fork_in_parent();
  EXPECT_EQ(status, 0);
}

// Whatever is registered and deregistered, and in whatever order, every write of another thread
// is there in the end, and the device sees what the program sees.
TEST_F(Frames, AnyOrderOfRegionsLosesNothingUnderAWriter) {
  if (kWatchesThreads) GTEST_SKIP() << "TSan takes a new mapping for a write";
  constexpr std::size_t kPages = 24;
  const TestPages pages(kPages);
  pages.replace(0, kPages);
  std::span<std::uint64_t> words(reinterpret_cast<std::uint64_t*>(pages.page(0)), kPages * 512);
  std::atomic<bool> stop{false};
  std::uint64_t rounds = 0;
  std::thread writer([&] {
    for (; !stop; ++rounds)
      for (std::size_t i = 0; i < words.size(); i += 8) words[i] = words[i] + 1;
  });
  Prng random(11);
  std::vector<std::vector<pcie::Span>> regions;
  for (int step = 0; step < 600; ++step) {
    if (regions.size() < 6 && random.below(2) == 0) {
      const std::size_t first = random.below(kPages);
      regions.push_back(frames_->take(range(pages, first, 1 + random.below(kPages - first))));
    } else if (!regions.empty()) {
      const std::size_t which = random.below(regions.size());
      frames_->give_back(regions[which]);
      regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  stop = true;
  writer.join();
  for (const auto& region : regions) frames_->give_back(region);
  for (std::size_t i = 0; i < words.size(); i += 8) ASSERT_EQ(words[i], rounds) << i;
  for (std::size_t i = 0; i < kPages; ++i) EXPECT_TRUE(is_private(pages, i));
  EXPECT_EQ(count(Counter::FramesMoved), count(Counter::FramesReturned));
}

}  // namespace
}  // namespace softhca::driver
