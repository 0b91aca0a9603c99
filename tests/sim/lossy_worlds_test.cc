// Seeded worlds of unreliable services. Which seeds: seeds.h. What happens: lossy_worlds.h.
#include "lossy_worlds.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "seeds.h"

namespace softhca::sim {
namespace {

TEST(LossyWorlds, WhatArrivesIsWhatWasSentAndOverAGoodNetworkAllOfIt) {
  const Seeds seeds = Seeds::wanted();
  Replay replay("lossy_worlds_test");
  std::uint64_t received = 0, lost = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    replay.begin(seed);
    const LossyOutcome outcome = run_lossy_world(seed);
    received += outcome.received;
    lost += outcome.lost;
    ASSERT_EQ(outcome.wrong, "") << replay.line(seed);
  }
  if (seeds.many()) {
    EXPECT_GT(received, 0u);
    EXPECT_GT(lost, 0u) << "the network did not lose anything";
  }
}

TEST(LossyWorlds, CongestionMakesThemSlowerAndNothingElse) {
  const Seeds seeds = Seeds::wanted();
  const std::uint64_t count = seeds.one ? 1 : seeds.count / 4;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + count; ++seed)
    ASSERT_EQ(run_lossy_world(seed, Roads::Congested).wrong, "") << "seed " << seed;
}

TEST(LossyWorlds, SameSeedGivesTheSameJournal) {
  const std::uint64_t count = std::min<std::uint64_t>(20, Seeds::wanted().count / 10);
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    const std::uint64_t first = run_lossy_world(seed).journal;
    EXPECT_NE(first, 0u);
    EXPECT_EQ(first, run_lossy_world(seed).journal) << "seed " << seed;
  }
}

}  // namespace
}  // namespace softhca::sim
