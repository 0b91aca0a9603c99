#include "host/page_table.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/prng.h"
#include "host/test_kernel.h"

namespace softhca::host {
namespace {

struct TableBench {
  explicit TableBench(unsigned levels = 4, std::uint64_t frame_count = 4096)
      : ram(Ram::arena(frame_count * kPage4K)),
        frames(ram, {{0}, frame_count * kPage4K}, 1, 0),
        table(std::in_place, ram, frames, Pid{3}, levels) {}
  Ram ram;
  FrameAllocator frames;
  std::optional<PageTable> table;
};

TEST(PageTable, IsReadByAWalkOfFourLevels) {
  TableBench bench;
  const VirtAddr at{0x7fff'1234'5000};
  ASSERT_TRUE(bench.table->map(at, {0x42000}, kPage4K, kLoadStore));
  const PageWalk walk = bench.table->walk(advance(at, 0x678));
  EXPECT_EQ(walk.end, PageWalk::End::Leaf);
  EXPECT_EQ(walk.phys, PhysAddr{0x42678});
  EXPECT_EQ(walk.leaf_bytes, kPage4K);
  EXPECT_EQ(walk.rights, kLoadStore);
  ASSERT_EQ(walk.steps_made, 4u);
  PhysAddr table = bench.table->root();
  const std::size_t indices[] = {0x0ff, 0x1fc, 0x091, 0x145};  // 9 bits each of the address
  for (unsigned i = 0; i < 4; ++i) {
    EXPECT_EQ(walk.steps[i].level, 4 - i);
    EXPECT_EQ(walk.steps[i].entry_at, advance(table, indices[i] * 8));
    EXPECT_EQ(bench.table->view().load(walk.steps[i].entry_at), walk.steps[i].value);
    table = pte::address(walk.steps[i].value);
  }
  // P, RW, US, XD: Intel SDM 3A, table 4-20.
  EXPECT_EQ(walk.last().value, 0x8000'0000'0004'2007u);
}

TEST(PageTable, HasLeavesOfAllSizesAndGivesEmptyTablesBack) {
  for (const unsigned levels : {4u, 5u}) {
    TableBench bench(levels, kPage1G / kPage4K);
    EXPECT_EQ(bench.table->tables(), 1u);
    const VirtAddr at{0x5540'0000'0000};
    unsigned fewer = 0;
    for (const std::uint64_t bytes : {kPage4K, kPage2M, kPage1G}) {
      ASSERT_TRUE(bench.table->map(at, {0}, bytes, PageRight::Read));
      EXPECT_EQ(bench.table->tables(), levels - fewer);
      const PageWalk walk = bench.table->walk(at);
      EXPECT_EQ(walk.leaf_bytes, bytes);
      EXPECT_EQ(walk.steps_made, levels - fewer);
      EXPECT_EQ((walk.last().value & pte::kPageSize) != 0, bytes != kPage4K);
      bench.table->unmap(*bench.table->find(advance(at, bytes - 1)));
      EXPECT_EQ(bench.table->tables(), 1u);
      EXPECT_EQ(bench.table->walk(at).end, PageWalk::End::NotPresent);
      ++fewer;
    }
    EXPECT_EQ(bench.frames.used(FrameUse::PageTable), 1u);
    EXPECT_EQ(bench.frames.owner_of(bench.table->root()).pid, Pid{3});
    bench.table.reset();
    EXPECT_EQ(bench.frames.free_frames(), bench.frames.frames());
  }
}

TEST(PageTable, GrantsWhatAllLevelsGrant) {
  TableBench bench;
  const VirtAddr at{0x4000'0000};
  ASSERT_TRUE(bench.table->map(at, {0x1000}, kPage4K, kLoadStore | PageRight::Execute));
  const PageWalk before = bench.table->walk(at);
  EXPECT_EQ(before.rights, kLoadStore | PageRight::Execute);
  const auto scribble = [&](unsigned step, std::uint64_t value) {
    *reinterpret_cast<std::uint64_t*>(bench.ram.cpu_address(before.steps[step].entry_at)) = value;
  };
  scribble(1, before.steps[1].value & ~pte::kWritable);
  EXPECT_EQ(bench.table->walk(at).rights, PageRight::Read | PageRight::Execute);
  scribble(0, before.steps[0].value | pte::kNoExecute);
  EXPECT_EQ(bench.table->walk(at).rights, PageRights(PageRight::Read));
  scribble(2, before.steps[2].value & ~pte::kUser);
  EXPECT_EQ(bench.table->walk(at).rights, PageRights());
  scribble(2, std::uint64_t{1} << 51 | 7);
  EXPECT_EQ(bench.table->walk(at).end, PageWalk::End::BadEntry) << "there is no such frame";
  scribble(0, before.steps[0].value | pte::kPageSize);
  EXPECT_EQ(bench.table->walk(at).end, PageWalk::End::BadEntry) << "no leaf is that large";
}

TEST(PageTable, KnowsAddressesThatAreNotCanonical) {
  TableBench four;
  TableBench five(5);
  for (const std::uint64_t at : {0x0000'8000'0000'0000u, 0xffff'7fff'ffff'f000u}) {
    EXPECT_EQ(four.table->walk({at}).end, PageWalk::End::NotCanonical);
    EXPECT_EQ(five.table->walk({at}).end, PageWalk::End::NotPresent);
  }
  EXPECT_EQ(five.table->walk({0x0100'0000'0000'0000}).end, PageWalk::End::NotCanonical);
  EXPECT_EQ(four.table->walk({0xffff'8000'0000'0000}).end, PageWalk::End::NotPresent);
  ASSERT_TRUE(four.table->map({0xffff'ffff'ffff'f000}, {0}, kPage4K, PageRight::Read));
  EXPECT_TRUE(four.table->next({0xffff'8000'0000'0000}, {UINT64_MAX}));
}

TEST(PageTable, ChangesNothingWhenThereIsNoFrameForATable) {
  for (std::uint64_t frame_count = 1; frame_count < 4; ++frame_count) {
    TableBench bench(4, frame_count);
    EXPECT_FALSE(bench.table->map({0}, {0}, kPage4K, PageRight::Read));
    EXPECT_EQ(bench.table->tables(), 1u);
    EXPECT_EQ(bench.frames.free_frames(), frame_count - 1);
    EXPECT_FALSE(bench.table->next({0}, {UINT64_MAX}));
  }
}

TEST(PageTable, RemembersWhereAPageIsInSwap) {
  TableBench bench;
  const VirtAddr at{0x7000'0000'0000};
  ASSERT_TRUE(bench.table->map(at, {0x3000}, kPage4K, kLoadStore));
  bench.table->swap_out(*bench.table->find(at), 12345);
  EXPECT_EQ(bench.table->walk(at).end, PageWalk::End::NotPresent);
  const auto entry = bench.table->find(at);
  ASSERT_TRUE(entry);
  EXPECT_TRUE(pte::swapped(entry->value));
  EXPECT_EQ(pte::swap_slot(entry->value), 12345u);
  EXPECT_EQ(bench.table->tables(), 4u) << "the entry is in use";
  bench.table->swap_in(*entry, {0x5000}, PageRight::Read);
  EXPECT_EQ(bench.table->walk(at).phys, PhysAddr{0x5000});
  bench.table->swap_out(*bench.table->find(at), 0);
  bench.table->unmap(*bench.table->find(at));
  EXPECT_EQ(bench.table->tables(), 1u);
  ASSERT_TRUE(bench.table->map_swapped(at, 7));
  EXPECT_EQ(pte::swap_slot(bench.table->find(at)->value), 7u);
}

// Random changes against a map from address to page.
class TableOracle {
 public:
  explicit TableOracle(unsigned levels) : bench_(levels, 2 * kPage1G / kPage4K), prng_(levels) {}

  void step() {
    const VirtAddr at = somewhere();
    const auto found = bench_.table->find(at);
    auto known = pages_.upper_bound(at.value);
    known = known == pages_.begin() ? pages_.end() : std::prev(known);
    if (known != pages_.end() && at.value >= known->first + known->second.bytes)
      known = pages_.end();
    ASSERT_EQ(found.has_value(), known != pages_.end());
    if (!found) return add(at);
    const Page& page = known->second;
    ASSERT_EQ(found->at.value, known->first);
    ASSERT_EQ(found->bytes, page.bytes);
    ASSERT_EQ(found->frame(), page.frame);
    const PageWalk walk = bench_.table->walk(at);
    ASSERT_EQ(walk.rights, page.rights);
    ASSERT_EQ(walk.phys, advance(page.frame, distance(found->at, at)));
    change(*found, known);
  }

  void check_all() {
    auto known = pages_.begin();
    VirtAddr at{0};
    while (const auto entry = bench_.table->next(at, {std::uint64_t{1} << 47})) {
      ASSERT_NE(known, pages_.end());
      ASSERT_EQ(entry->at.value, known->first);
      ++known;
      at = advance(entry->at, entry->bytes);
    }
    ASSERT_EQ(known, pages_.end());
    ASSERT_EQ(bench_.table->tables(), bench_.frames.used(FrameUse::PageTable));
  }

  void unmap_all() {
    for (const auto& [at, page] : pages_) bench_.table->unmap(*bench_.table->find({at}));
    EXPECT_EQ(bench_.table->tables(), 1u);
  }

 private:
  struct Page {
    std::uint64_t bytes;
    PhysAddr frame;
    PageRights rights;
  };

  // Few enough places that they meet, over all levels of the table.
  VirtAddr somewhere() {
    return {prng_.below(3) << 39 | prng_.below(3) << 30 | prng_.below(3) << 21 |
            prng_.below(4) << 12 | prng_.below(kPage4K)};
  }
  PageRights some_rights() {
    const PageRights all[] = {
        {}, PageRight::Read, kLoadStore, PageRight::Read | PageRight::Execute};
    return all[prng_.below(4)];
  }
  void add(VirtAddr at) {
    const std::uint64_t sizes[] = {kPage4K, kPage4K, kPage2M, kPage1G};
    const std::uint64_t bytes = sizes[prng_.below(4)];
    const std::uint64_t start = align_down(at, bytes).value;
    const auto next = pages_.lower_bound(start);
    if (next != pages_.end() && next->first < start + bytes) return;
    const Page page{bytes, {prng_.below(2) * bytes}, some_rights()};
    ASSERT_TRUE(bench_.table->map({start}, page.frame, bytes, page.rights));
    pages_.emplace(start, page);
  }
  void change(const PageEntry& entry, std::map<std::uint64_t, Page>::iterator known) {
    Page& page = known->second;
    switch (prng_.below(3)) {
      case 0:
        page.rights = some_rights();
        bench_.table->protect(entry, page.rights);
        break;
      case 1:
        page.frame = {page.frame.value == 0 ? page.bytes : 0};
        bench_.table->replace_frame(entry, page.frame);
        break;
      default:
        bench_.table->unmap(entry);
        pages_.erase(known);
    }
  }

  TableBench bench_;
  Prng prng_;
  std::map<std::uint64_t, Page> pages_;
};

TEST(PageTable, AgreesWithAMapOfPagesInRandomSteps) {
  for (const unsigned levels : {4u, 5u}) {
    TableOracle oracle(levels);
    for (int step = 0; step < 100'000 && !testing::Test::HasFatalFailure(); ++step) {
      oracle.step();
      if (step % 1000 == 0) oracle.check_all();
    }
    oracle.check_all();
    oracle.unmap_all();
  }
}

}  // namespace
}  // namespace softhca::host
