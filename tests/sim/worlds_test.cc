// Seeded worlds: everything completes exactly once, and memory equals the model.
//
// Which seeds: seeds.h. What happens: worlds.h.
#include "worlds.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "seeds.h"

namespace softhca::sim {
namespace {

TEST(Worlds, EveryOperationCompletesExactlyOnceAndMemoryEqualsTheModel) {
  const Seeds seeds = Seeds::wanted();
  Replay replay("worlds_test");
  std::uint64_t retransmits = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    replay.begin(seed);
    const WorldOutcome outcome = run_world(seed);
    retransmits += outcome.retransmits;
    ASSERT_EQ(outcome.wrong, "") << replay.line(seed);
  }
  if (seeds.many()) {
    EXPECT_GT(retransmits, 0u) << "the network did not lose anything";
  }
}

TEST(Worlds, CongestionMakesThemSlowerAndNothingElse) {
  const Seeds seeds = Seeds::wanted();
  const std::uint64_t count = seeds.one ? 1 : seeds.count / 4;
  std::uint64_t slowed = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + count; ++seed) {
    const WorldOutcome outcome = run_world(seed, Roads::Congested);
    slowed += outcome.slowed;
    ASSERT_EQ(outcome.wrong, "") << "seed " << seed;
    if (seed % 32 == 0) {
      EXPECT_EQ(outcome.journal, run_world(seed, Roads::Congested).journal) << "seed " << seed;
    }
  }
  if (seeds.many()) {
    EXPECT_GT(slowed, count) << "there was no congestion";
  }
}

TEST(Worlds, SameSeedGivesTheSameJournal) {
  const std::uint64_t count = std::min<std::uint64_t>(20, Seeds::wanted().count / 10);
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    const std::uint64_t first = run_world(seed).journal;
    EXPECT_NE(first, 0u);
    EXPECT_EQ(first, run_world(seed).journal) << "seed " << seed;
  }
}

}  // namespace
}  // namespace softhca::sim
