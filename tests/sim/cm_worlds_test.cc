// Seeded worlds of connection managers. Which seeds: seeds.h. What happens: cm_worlds.h.
#include "cm_worlds.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "seeds.h"

namespace softhca::cm {
namespace {

TEST(ConnectingWorlds, EachSideHearsOneOutcomeAndNothingIsLeft) {
  const sim::Seeds seeds = sim::Seeds::wanted();
  sim::Replay replay("cm_worlds_test");
  ConnectingOutcome sum;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    replay.begin(seed);
    const ConnectingOutcome outcome = run_connecting_world(seed);
    ASSERT_EQ(outcome.wrong, "") << replay.line(seed);
    sum.established += outcome.established;
    sum.rejected += outcome.rejected;
    sum.unreachable += outcome.unreachable;
    sum.resolved += outcome.resolved;
    sum.pairs += outcome.pairs;
    sum.lost += outcome.lost;
    sum.deaths += outcome.deaths;
  }
  if (!seeds.many()) return;
  for (const std::uint64_t seen : {sum.established, sum.rejected, sum.unreachable, sum.resolved,
                                   sum.pairs, sum.lost, sum.deaths})
    EXPECT_GT(seen, seeds.count / 10) << "something hardly ever happened";
}

TEST(ConnectingWorlds, SameSeedGivesTheSameDatagrams) {
  const std::uint64_t count = std::min<std::uint64_t>(20, sim::Seeds::wanted().count / 10);
  for (std::uint64_t seed = 1; seed <= count; ++seed)
    EXPECT_EQ(run_connecting_world(seed).datagrams, run_connecting_world(seed).datagrams)
        << "seed " << seed;
}

}  // namespace
}  // namespace softhca::cm
