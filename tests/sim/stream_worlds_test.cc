// Seeded worlds of rsocket streams. Which seeds: seeds.h. What happens: stream_worlds.h.
#include "stream_worlds.h"

#include <gtest/gtest.h>

#include "seeds.h"

namespace softhca::rsocket {
namespace {

TEST(StreamingWorlds, EachEndReadsWhatTheOtherWrote) {
  const sim::Seeds seeds = sim::Seeds::wanted();
  sim::Replay replay("stream_worlds_test");
  StreamingOutcome sum;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    replay.begin(seed);
    const StreamingOutcome outcome = run_streaming_world(seed);
    ASSERT_EQ(outcome.wrong, "") << replay.line(seed);
    sum.bytes += outcome.bytes;
    sum.placed += outcome.placed;
    sum.waits += outcome.waits;
    sum.half_shut += outcome.half_shut;
  }
  if (!seeds.many()) return;
  for (const std::uint64_t seen : {sum.bytes, sum.placed, sum.waits, sum.half_shut})
    EXPECT_GT(seen, seeds.count / 10) << "something hardly ever happened";
}

}  // namespace
}  // namespace softhca::rsocket
