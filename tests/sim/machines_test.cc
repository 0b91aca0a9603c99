// Seeded worlds of whole machines: programs, kernels and devices at once, with deaths.
//
// Which seeds: seeds.h. What happens and what must hold: machines.h.
#include <gtest/gtest.h>

#include <cstdio>

#include "machines.h"
#include "seeds.h"

namespace softhca::sim {
namespace {

TEST(Machines, WhateverKernelsAndProgramsDoEveryByteIsRightAndNothingIsLeft) {
  const Seeds seeds = Seeds::wanted();
  Replay replay("machines_test");
  Sights seen;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    replay.begin(seed);
    Machines machines(seed);
    const std::string wrong = machines.run();
    if (!wrong.empty() && seeds.one)
      for (const trace::Event& event : machines.world().journal()->events())
        std::puts(trace::event_text(event).c_str());
    ASSERT_EQ(wrong, "") << replay.line(seed);
    seen += machines.sights();
  }
  if (!seeds.many()) return;
  EXPECT_GT(seen.retransmits, seeds.count);
  EXPECT_GT(seen.failed, seeds.count / 10);
  EXPECT_GT(seen.within_one_host, seeds.count / 10);
  EXPECT_GT(seen.moved, seeds.count);
  EXPECT_GT(seen.swapped, seeds.count);
  EXPECT_GT(seen.kept_by_pin, seeds.count);
  EXPECT_GT(seen.orphans, seeds.count);
  EXPECT_GT(seen.forks, seeds.count / 10);
  EXPECT_GT(seen.child_writes, seeds.count / 10);
  EXPECT_GT(seen.deaths, seeds.count / 10);
  EXPECT_GT(seen.births, seeds.count / 10);
}

TEST(Machines, SameSeedGivesTheSameJournal) {
  const std::uint64_t count = std::min<std::uint64_t>(20, Seeds::wanted().count / 10);
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    Machines first(seed), second(seed);
    first.run();
    second.run();
    EXPECT_EQ(first.world().journal_hash(), second.world().journal_hash()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace softhca::sim
