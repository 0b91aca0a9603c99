#include "os/frames/page_mover.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/sanitized.h"
#include "os/frames/frame_file.h"
#include "os/frames/own_mappings.h"
#include "os/test_child.h"
#include "os/test_pages.h"

namespace softhca::os {
namespace {

constexpr MappingRights kAll{.readable = true, .writable = true};

struct MoverBench {
  MoverBench()
      : copy(std::move(*GuardedCopy::open())),
        mover(PageMover::open(copy)),
        file(std::move(*FrameFile::create())) {}
  Range<VirtSpace> range(const TestPages& pages, std::size_t first, std::size_t count) const {
    return {{pages.address(first)}, count * kPage4K};
  }
  Result<void, SystemError> in(Range<VirtSpace> range, std::uint32_t slot) {
    if (auto room = file.prepare(slot, range.length); !room) return room;
    return mover.to_file(range, file.fd(), slot_offset(slot), alias(slot, range.length));
  }
  Result<void, SystemError> out(Range<VirtSpace> range, std::uint32_t slot) {
    return mover.to_private(range, alias(slot, range.length), kAll);
  }
  Bytes alias(std::uint32_t slot, std::uint64_t bytes) const { return {file.slot(slot), bytes}; }

  GuardedCopy copy;
  PageMover mover;
  FrameFile file;
};

// A thread that adds one to each word of some pages, again and again.
class Adder {
 public:
  explicit Adder(Bytes pages)
      : words_(reinterpret_cast<std::uint64_t*>(pages.data()), pages.size() / 8),
        thread_([this] { run(); }) {}
  ~Adder() { stop(); }
  std::uint64_t stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return rounds_;
  }
  void await_rounds(std::uint64_t more) const {
    for (const std::uint64_t until = rounds_ + more; rounds_ < until;) ::usleep(10);
  }

 private:
  void run() {
    while (!stop_) {
      for (std::uint64_t& word : words_) word = word + 1;
      ++rounds_;
    }
  }
  std::span<std::uint64_t> words_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> rounds_{0};
  std::thread thread_;
};

TEST(PageMover, PutsAFileUnderPagesAndPrivateMemoryBack) {
  MoverBench bench;
  const TestPages pages(4);
  pages.fill(3);
  ASSERT_TRUE(bench.in(bench.range(pages, 1, 2), 7));
  for (std::size_t i = 0; i < 4 * kPage4K; ++i)
    ASSERT_EQ(pages.bytes()[i], TestPages::value_at(i, 3)) << i;
  // One memory, seen twice.
  pages.page(1)[5] = std::byte{99};
  EXPECT_EQ(bench.file.slot(7)[5], std::byte{99});
  bench.file.slot(7)[kPage4K] = std::byte{98};
  EXPECT_EQ(pages.page(2)[0], std::byte{98});

  ASSERT_TRUE(bench.out(bench.range(pages, 1, 2), 7));
  EXPECT_EQ(pages.page(1)[5], std::byte{99});
  pages.page(1)[5] = std::byte{1};
  EXPECT_EQ(bench.file.slot(7)[5], std::byte{99});
  EXPECT_TRUE(own_mappings_of(bench.file.identity())->size() == 1);  // the device's own
}

TEST(PageMover, LosesNothingThatAnotherThreadWritesMeanwhile) {
  if (kWatchesThreads) GTEST_SKIP() << "TSan takes a new mapping for a write";
  MoverBench bench;
  if (!bench.mover.holds_writers()) GTEST_SKIP() << "no leave to hold faults";
  constexpr std::size_t kPages = 16;
  const TestPages pages(kPages);
  pages.replace(0, kPages);
  Adder adder(pages.bytes());
  for (int round = 0; round < 300; ++round) {
    ASSERT_TRUE(bench.in(bench.range(pages, 0, kPages), 0));
    adder.await_rounds(1);
    ASSERT_TRUE(bench.out(bench.range(pages, 0, kPages), 0));
    adder.await_rounds(1);
  }
  const std::uint64_t rounds = adder.stop();
  EXPECT_GE(rounds, 600u);
  for (std::size_t i = 0; i < kPages * kPage4K; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, pages.bytes().data() + i, sizeof word);
    ASSERT_EQ(word, rounds) << "at " << i;
  }
}

TEST(PageMover, SystemCallsOfOtherThreadsThatWriteThereSucceed) {
  if (kWatchesThreads) GTEST_SKIP() << "TSan takes a new mapping for a write";
  MoverBench bench;
  if (!bench.mover.holds_writers()) GTEST_SKIP() << "no leave to hold faults";
  const TestPages pages(4);
  pages.fill(0);
  const int fd = ::memfd_create("source", MFD_CLOEXEC);
  std::vector<std::byte> source(4 * kPage4K);
  ASSERT_EQ(::write(fd, source.data(), source.size()), 4 * static_cast<ssize_t>(kPage4K));
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> reads{0}, failed{0}, torn{0};
  std::thread reader([&] {
    for (unsigned value = 1; !stop; ++value) {
      std::memset(source.data(), static_cast<int>(value & 0xff), source.size());
      if (::pwrite(fd, source.data(), source.size(), 0) < 0 ||
          ::pread(fd, pages.page(0), source.size(), 0) != static_cast<ssize_t>(source.size()))
        ++failed;
      if (std::memcmp(pages.page(0), source.data(), source.size()) != 0) ++torn;
      ++reads;
    }
  });
  for (std::uint64_t round = 0; round < 300; ++round) {
    EXPECT_TRUE(bench.in(bench.range(pages, 0, 4), 0));
    EXPECT_TRUE(bench.out(bench.range(pages, 0, 4), 0));
    while (reads < round) ::usleep(10);
  }
  stop = true;
  reader.join();
  ::close(fd);
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(torn, 0u);
}

TEST(PageMover, LeavesPagesAsTheyWereWhenTheFileCannotBeMapped) {
  MoverBench bench;
  const TestPages pages(2);
  pages.fill(5);
  ASSERT_TRUE(bench.file.prepare(0, 2 * kPage4K));
  const auto moved = bench.mover.to_file(bench.range(pages, 0, 2), -1, 0, bench.alias(0, 8192));
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().number, EBADF);
  pages.page(0)[0] = std::byte{1};  // nothing holds a writer any more
  EXPECT_EQ(pages.page(1)[9], TestPages::value_at(kPage4K + 9, 5));
  EXPECT_NE(bench.file.slot(0)[0], std::byte{1});
}

TEST(PageMover, RefusesWhatIsNotMapped) {
  MoverBench bench;
  const TestPages pages(3);
  pages.unmap(1);
  EXPECT_FALSE(bench.in(bench.range(pages, 0, 3), 0));
  pages.page(0)[0] = std::byte{1};
  pages.page(2)[0] = std::byte{1};
}

TEST(PageMover, WorksWithoutAnyPrivilegeWhereThereIsOneThread) {
  EXPECT_EQ(run_in_child([] {
              if (!become_ordinary_user(65536)) return kChildSkips;
              MoverBench bench;
              PageMover alone = PageMover::alone(bench.copy);
              const TestPages pages(2);
              pages.fill(1);
              if (alone.holds_writers()) return 1;
              if (!bench.file.prepare(0, 2 * kPage4K)) return 2;
              const Bytes alias = bench.alias(0, 2 * kPage4K);
              if (!alone.to_file(bench.range(pages, 0, 2), bench.file.fd(), 0, alias)) return 3;
              pages.page(1)[1] = std::byte{77};
              if (alias[kPage4K + 1] != std::byte{77}) return 4;
              if (!alone.to_private(bench.range(pages, 0, 2), alias, kAll)) return 5;
              return pages.page(1)[1] == std::byte{77} ? 0 : 6;
            }),
            0);
}

TEST(PageMover, KnowsWhatItsThreadNeeds) {
  int on_the_stack = 0;
  const Range<VirtSpace> here{{reinterpret_cast<std::uint64_t>(&on_the_stack)}, sizeof(int)};
  EXPECT_TRUE(PageMover::is_in_use(here));
  EXPECT_TRUE(PageMover::is_in_use({{reinterpret_cast<std::uint64_t>(&errno)}, 1}));
  const TestPages pages(64);
  EXPECT_FALSE(PageMover::is_in_use({{pages.address()}, 64 * kPage4K}));
}

TEST(FrameFile, AMappingThatIsLengthenedGetsZerosAndNobodysBytes) {
  MoverBench bench;
  const TestPages pages(1);
  const TestPages others(1);
  others.fill(9);
  ASSERT_TRUE(bench.in(bench.range(pages, 0, 1), 0));
  ASSERT_TRUE(bench.in(bench.range(others, 0, 1), 1));
  constexpr std::size_t kLonger = 2 * kSlotBytes;
  void* const longer = ::mremap(pages.page(0), kPage4K, kLonger, MREMAP_MAYMOVE);
  ASSERT_NE(longer, MAP_FAILED);
  for (std::size_t i = kPage4K; i < kLonger; i += kPage4K)
    ASSERT_EQ(static_cast<std::byte*>(longer)[i], std::byte{0}) << i;
  ::munmap(longer, kLonger);
}

TEST(FrameFile, NeedsAddressSpace) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs more";
  EXPECT_EQ(run_in_child([] {
              const rlimit limit{std::uint64_t{8} << 30, std::uint64_t{8} << 30};
              if (::setrlimit(RLIMIT_AS, &limit) != 0) return kChildSkips;
              const auto file = FrameFile::create();
              return !file && file.error().number == ENOMEM ? 0 : 1;
            }),
            0);
}

TEST(FrameFile, IsNotMadeWhereFilesAreLimited) {
  EXPECT_EQ(run_in_child([] {
              const rlimit limit{std::uint64_t{1} << 30, std::uint64_t{1} << 30};
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return kChildSkips;
              const auto file = FrameFile::create();
              return !file && file.error().number == EFBIG ? 0 : 1;
            }),
            0);
}

TEST(FrameFile, GivesMemoryBackAndAPeerSeesTheSame) {
  MoverBench bench;
  ASSERT_TRUE(bench.file.prepare(3, kPage4K));
  bench.file.slot(3)[100] = std::byte{5};
  auto peer = PeerFrames::open(static_cast<std::uint32_t>(::getpid()), bench.file.fd());
  ASSERT_TRUE(peer);
  ASSERT_NE(peer->slot(3), nullptr);
  EXPECT_EQ(peer->slot(3)[100], std::byte{5});
  EXPECT_EQ(peer->slot(kFrameSlots), nullptr);
  bench.file.discard(3, 0, kPage4K);
  EXPECT_EQ(peer->slot(3)[100], std::byte{0});
  EXPECT_FALSE(PeerFrames::open(static_cast<std::uint32_t>(::getpid()), 0));
}

TEST(OwnMappings, ALineIsReadAsItIsWritten) {
  const auto heap = mapping_of_line(
      "5581e0000000-5581e0021000 rw-p 00000000 00:00 0                          [heap]\n");
  ASSERT_TRUE(heap);
  EXPECT_EQ(heap->range.start.value, 0x5581e0000000u);
  EXPECT_EQ(heap->range.length, 0x21000u);
  EXPECT_EQ(heap->name, "[heap]");
  EXPECT_TRUE(heap->writable && !heap->shared && !heap->executable && heap->file.inode == 0);
  const auto file =
      mapping_of_line("7f00-8000 r-xs 400000000000 00:01 1234  /memfd:some name (deleted)\n");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->offset, slot_offset(1));
  EXPECT_EQ(slot_of_offset(file->offset), 1u);
  EXPECT_EQ(file->name, "/memfd:some name (deleted)");
  EXPECT_TRUE(file->shared && file->executable && !file->writable && file->file.inode == 1234);
  EXPECT_FALSE(mapping_of_line("Rss: 4 kB\n"));
  EXPECT_FALSE(mapping_of_line(""));
}

TEST(OwnMappings, ThreadsAndMappingsOfThisProcessAreSeen) {
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) ::usleep(10);
  });
  const std::uint64_t with_it = own_thread_count();
  EXPECT_GE(with_it, 2u);
  stop = true;
  other.join();
  // The kernel counts one that has ended for a moment more.
  int tries = 0;
  while (own_thread_count() >= with_it && tries < 10'000) ::usleep(static_cast<unsigned>(++tries));
  EXPECT_LT(own_thread_count(), with_it);
  const TestPages pages(3);
  pages.protect_read_only(1);
  const auto seen = own_mappings({{pages.address(1)}, 2 * kPage4K});
  ASSERT_TRUE(seen);
  ASSERT_GE(seen->size(), 2u);
  EXPECT_FALSE((*seen)[0].writable);
  EXPECT_TRUE((*seen)[1].writable);
  // Both ways to ask say the same, of libraries and the stack too.
  const Range<VirtSpace> all{{0x1000}, (std::uint64_t{1} << 47) - 0x2000};
  const auto asked = own_mappings(all);
  const auto read = read_mappings(all);
  ASSERT_TRUE(asked && read);
  ASSERT_GT(read->size(), 10u);
  const auto stack_end = [](const std::vector<OwnMapping>& mappings) {
    const auto stack = std::ranges::find(mappings, "[stack]", &OwnMapping::name);
    return stack == mappings.end() ? VirtAddr{} : advance(stack->range.start, stack->range.length);
  };
  EXPECT_NE(stack_end(*asked), VirtAddr{});
  EXPECT_EQ(stack_end(*asked), stack_end(*read));
  const auto here = reinterpret_cast<std::uint64_t>(&own_thread_count);
  const OwnMapping code = own_mappings({{here}, 1})->at(0);
  const OwnMapping code_as_read = read_mappings({{here}, 1})->at(0);
  EXPECT_TRUE(code.range == code_as_read.range && code.offset == code_as_read.offset &&
              code.is_of(code_as_read.file) && code.executable && !code.writable && !code.shared);
  EXPECT_EQ(code.name, code_as_read.name);
}

}  // namespace
}  // namespace softhca::os
