#include "host/frame_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "base/prng.h"

namespace softhca::host {
namespace {

constexpr FrameOwner kSome{FrameUse::Program, {7}, {0x1000}};

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  statm >> size >> resident;
  return resident * kPage4K;
}

bool is_zero(const Ram& ram, PhysAddr at, std::uint64_t bytes) {
  const std::byte* memory = ram.cpu_address(at);
  return memory[0] == std::byte{0} && std::memcmp(memory, memory + 1, bytes - 1) == 0;
}

TEST(FrameAllocator, GivesFramesThatFollowEachOtherAndTablesFromTheTop) {
  Ram ram = Ram::arena(8 * kPage2M);
  FrameAllocator frames(ram, {{kPage4K}, 8 * kPage2M - kPage4K}, 1, 0);
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    EXPECT_EQ(frames.take(kPage4K, kSome), PhysAddr{i * kPage4K});
    EXPECT_EQ(frames.take(kPage4K, {FrameUse::PageTable, {7}, {}}),
              PhysAddr{8 * kPage2M - i * kPage4K});
  }
  EXPECT_EQ(frames.used(FrameUse::Program), 1000u);
  EXPECT_EQ(frames.used(FrameUse::PageTable), 1000u);
  EXPECT_EQ(frames.free_frames(), frames.frames() - 2000);
}

TEST(FrameAllocator, ScattersFramesAsMuchAsItIsTold) {
  Ram ram = Ram::arena(32 * kPage2M);
  std::vector<std::uint64_t> neighbours;
  for (const unsigned percent : {0u, 50u, 100u}) {
    FrameAllocator frames(ram, {{0}, 32 * kPage2M}, 5, percent);
    std::uint64_t touching = 0;
    PhysAddr last = *frames.take(kPage4K, kSome);
    for (int i = 0; i < 2000; ++i) {
      const PhysAddr next = *frames.take(kPage4K, kSome);
      touching += next == advance(last, kPage4K) ? 1u : 0u;
      last = next;
    }
    neighbours.push_back(touching);
  }
  EXPECT_EQ(neighbours[0], 2000u);
  EXPECT_GT(neighbours[1], 700u);
  EXPECT_LT(neighbours[1], 1300u);
  EXPECT_LT(neighbours[2], 100u);
}

TEST(FrameAllocator, MakesAHugeFrameOfPartsThatCameBack) {
  Ram ram = Ram::arena(3 * kPage2M);
  FrameAllocator frames(ram, {{kPage4K}, 3 * kPage2M - 2 * kPage4K}, 1, 100);
  EXPECT_EQ(frames.free_huge(kPage2M), 1u) << "the first and the last 2 MiB are not whole";
  std::vector<PhysAddr> all;
  while (const auto frame = frames.take(kPage4K, kSome)) all.push_back(*frame);
  EXPECT_EQ(all.size(), frames.frames());
  EXPECT_FALSE(frames.take(kPage2M, kSome));
  for (const PhysAddr frame : all) EXPECT_TRUE(frames.release(frame, kPage4K));
  EXPECT_EQ(frames.take(kPage2M, kSome), PhysAddr{kPage2M});
  EXPECT_EQ(frames.owner_of({kPage2M + 12345}), kSome);
  EXPECT_EQ(frames.frame_bytes({kPage2M + 12345}), kPage2M);
}

TEST(FrameAllocator, TouchesNoMemoryForAHugeFrameThatWasNeverUsed) {
  Ram ram = Ram::arena(3 * kPage1G);
  FrameAllocator frames(ram, {{kPage4K}, 3 * kPage1G - kPage4K}, 1, 0);
  const std::uint64_t before = resident_bytes();
  std::vector<PhysAddr> giant;
  while (const auto frame = frames.take(kPage1G, kSome)) giant.push_back(*frame);
  ASSERT_EQ(giant.size(), 2u);
  EXPECT_EQ(offset_in(giant[1], kPage1G), 0u);
  EXPECT_EQ(frames.owner_of({giant[1].value + kPage1G - 1}), kSome);
  EXPECT_EQ(frames.frame_bytes({giant[1].value + kPage1G - 1}), kPage1G);
  *ram.cpu_address({giant[0].value + 5 * kPage2M + 77}) = std::byte{1};
  for (const PhysAddr frame : giant) frames.release(frame, kPage1G);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(frames.take(kPage1G, kSome));
  EXPECT_EQ(*ram.cpu_address({giant[0].value + 5 * kPage2M + 77}), std::byte{0});
  EXPECT_LT(resident_bytes(), before + (std::uint64_t{64} << 20));
}

TEST(FrameAllocator, ZeroesAFrameThatADeviceWroteToBeforeAnybodyHadIt) {
  Ram ram = Ram::arena(3 * kPage2M);
  FrameAllocator frames(ram, {{kPage4K}, 3 * kPage2M - kPage4K}, 1, 0);
  for (const std::uint64_t at : {kPage4K + 8, kPage2M + 5 * kPage4K - 4}) {
    std::memset(ram.cpu_address({at}), 0xff, 8);
    frames.note_write({{at}, 8});
  }
  frames.note_write({{0}, kPage4K});
  frames.note_write({{3 * kPage2M}, kPage4K});
  EXPECT_TRUE(is_zero(ram, *frames.take(kPage4K, kSome), kPage4K));
  EXPECT_TRUE(is_zero(ram, *frames.take(kPage2M, kSome), kPage2M));
}

TEST(FrameAllocator, GivesARunWhenAsked) {
  Ram ram = Ram::arena(2 * kPage2M);
  FrameAllocator frames(ram, {{0}, 2 * kPage2M}, 1, 0);
  const PhysAddr in_the_way{300 * kPage4K};
  while (frames.take(kPage4K, kSome) != in_the_way) {
  }
  for (std::uint64_t i = 0; i < 300; ++i) frames.release({i * kPage4K}, kPage4K);
  EXPECT_EQ(frames.take_run(300, kSome), PhysAddr{0});
  EXPECT_EQ(frames.take_run(723, {FrameUse::Kernel, {}, {}}), PhysAddr{301 * kPage4K});
  EXPECT_FALSE(frames.take_run(1, kSome));
  EXPECT_TRUE(frames.release({5 * kPage4K}, kPage4K)) << "each frame of a run goes on its own";
}

TEST(FrameAllocator, FreesAFrameWithItsLastShare) {
  Ram ram = Ram::arena(kPage2M);
  FrameAllocator frames(ram, {{0}, kPage2M}, 1, 0);
  const PhysAddr frame = *frames.take(kPage4K, kSome);
  frames.share(frame);
  EXPECT_EQ(frames.shares(frame), 2u);
  EXPECT_FALSE(frames.release(frame, kPage4K));
  frames.set_owner(frame, kPage4K, {FrameUse::Orphan, {7}, {0x1000}});
  EXPECT_EQ(frames.used(FrameUse::Orphan), 1u);
  EXPECT_EQ(frames.used(FrameUse::Program), 0u);
  EXPECT_TRUE(frames.release(frame, kPage4K));
  EXPECT_EQ(frames.shares(frame), 0u);
  EXPECT_EQ(frames.owner_of(frame).use, FrameUse::Free);
  EXPECT_EQ(frames.owner_of({kPage1G}).use, FrameUse::Free) << "outside";
  EXPECT_EQ(frames.free_frames(), frames.frames());
}

TEST(FrameAllocator, KeepsOutOfWhatIsAvoided) {
  Ram ram = Ram::arena(3 * kPage2M);
  FrameAllocator frames(ram, {{0}, 3 * kPage2M}, 1, 60);
  const Range<PhysSpace> avoid{{kPage2M}, kPage2M};
  std::uint64_t taken = 0;
  while (const auto frame = frames.take(kPage4K, kSome, avoid)) {
    EXPECT_FALSE(avoid.contains(*frame, kPage4K));
    ++taken;
  }
  EXPECT_EQ(taken, 1024u);
  EXPECT_EQ(frames.free_in(avoid), 512u);
  EXPECT_FALSE(frames.take(kPage2M, kSome, avoid));
  EXPECT_TRUE(frames.take(kPage2M, kSome));
}

// Random takes and releases against a list of what is out.
class FrameOracle {
 public:
  static constexpr std::uint64_t kFirst = 3 * kPage4K;
  static constexpr std::uint64_t kBytes = 8 * kPage2M + 5 * kPage4K;

  explicit FrameOracle(std::uint64_t seed) : prng_(seed), frames_(ram_, {{kFirst}, kBytes}, 9, 0) {}

  void step() {
    const FrameOwner owner{static_cast<FrameUse>(1 + prng_.below(kFrameUseCount - 1)),
                           {static_cast<std::uint32_t>(prng_.below(50))},
                           {prng_.below(1000) * kPage4K}};
    const std::uint64_t what = prng_.below(100);
    if (what < growing_)
      add(frames_.take(kPage4K, owner), kPage4K, owner);
    else if (what < growing_ + 2)
      add(frames_.take(kPage2M, owner), kPage2M, owner);
    else if (what < growing_ + 4)
      add_run(1 + prng_.below(40), owner);
    else if (!out_.empty())
      change(owner);
    if (prng_.chance(1, 500)) {
      growing_ = prng_.below(40);
      frames_.set_fragmentation(prng_.chance(1, 2) ? 0 : static_cast<unsigned>(prng_.below(101)));
    }
  }

  void check() {
    std::uint64_t used = 0;
    std::map<FrameUse, std::uint64_t> by_use;
    for (const auto& [at, held] : out_) {
      used += held.bytes / kPage4K;
      by_use[held.owner.use] += held.bytes / kPage4K;
      const PhysAddr inside{at + prng_.below(held.bytes)};
      ASSERT_EQ(frames_.owner_of(inside), held.owner);
      ASSERT_EQ(frames_.frame_bytes(inside), held.bytes);
      ASSERT_EQ(frames_.shares(inside), held.shares);
      ASSERT_EQ(*ram_.cpu_address({at}), std::byte{0xee}) << "given to somebody else";
    }
    ASSERT_EQ(frames_.free_frames(), frames_.frames() - used);
    for (std::size_t use = 1; use < kFrameUseCount; ++use)
      ASSERT_EQ(frames_.used(static_cast<FrameUse>(use)), by_use[static_cast<FrameUse>(use)]);
  }

  void release_all() {
    while (!out_.empty()) drop(out_.begin());
    EXPECT_EQ(frames_.free_frames(), frames_.frames());
    EXPECT_EQ(frames_.free_huge(kPage2M), 7u);
  }
  std::uint64_t huge_taken() const { return huge_taken_; }

 private:
  struct Held {
    std::uint64_t bytes;
    FrameOwner owner;
    std::uint32_t shares;
  };
  using Out = std::map<std::uint64_t, Held>;

  void add(std::optional<PhysAddr> frame, std::uint64_t bytes, const FrameOwner& owner) {
    if (!frame) {
      ASSERT_EQ(bytes == kPage4K ? frames_.free_frames() : frames_.free_huge(bytes), 0u);
      return;
    }
    ASSERT_EQ(offset_in(*frame, bytes), 0u);
    ASSERT_TRUE((Range<PhysSpace>{{kFirst}, kBytes}.contains(*frame, bytes)));
    const auto next = out_.lower_bound(frame->value);
    ASSERT_TRUE(next == out_.end() || next->first >= frame->value + bytes) << "overlap";
    ASSERT_TRUE(next == out_.begin() ||
                std::prev(next)->first + std::prev(next)->second.bytes <= frame->value);
    ASSERT_TRUE(is_zero(ram_, *frame, kPage4K));
    ASSERT_TRUE(is_zero(ram_, {frame->value + bytes - kPage4K}, kPage4K));
    for (int i = 0; i < 8; ++i)
      ASSERT_EQ(*ram_.cpu_address({frame->value + prng_.below(bytes)}), std::byte{0});
    *ram_.cpu_address(*frame) = std::byte{0xee};
    *ram_.cpu_address({frame->value + bytes - 1}) = std::byte{0xdd};
    out_.emplace(frame->value, Held{bytes, owner, 1});
    huge_taken_ += bytes != kPage4K ? 1 : 0;
  }
  void add_run(std::uint64_t count, const FrameOwner& owner) {
    const auto start = frames_.take_run(count, owner);
    for (std::uint64_t i = 0; start && i < count; ++i)
      add(PhysAddr{start->value + i * kPage4K}, kPage4K, owner);
  }
  void change(const FrameOwner& owner) {
    auto held = out_.lower_bound(kFirst + prng_.below(kBytes));
    if (held == out_.end()) held = out_.begin();
    if (prng_.chance(1, 10)) {
      frames_.set_owner({held->first}, held->second.bytes, owner);
      held->second.owner = owner;
    } else if (prng_.chance(1, 10)) {
      frames_.share({held->first});
      ++held->second.shares;
    } else {
      drop(held);
    }
  }
  void drop(Out::iterator held) {
    const bool freed = frames_.release({held->first}, held->second.bytes);
    ASSERT_EQ(freed, held->second.shares == 1);
    if (freed)
      out_.erase(held);
    else
      --held->second.shares;
  }

  Prng prng_;
  Ram ram_ = Ram::arena(kFirst + kBytes);
  FrameAllocator frames_;
  Out out_;
  std::uint64_t growing_ = 60;
  std::uint64_t huge_taken_ = 0;
};

TEST(FrameAllocator, NeitherLosesNorGivesTwiceInRandomSteps) {
  FrameOracle oracle(4);
  for (int step = 0; step < 100'000 && !testing::Test::HasFatalFailure(); ++step) {
    oracle.step();
    if (step % 1000 == 0) oracle.check();
  }
  oracle.check();
  EXPECT_GT(oracle.huge_taken(), 100u);
  oracle.release_all();
}

}  // namespace
}  // namespace softhca::host
