#include "nic/completion_queue.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace softhca::nic {
namespace {

// Bus addresses are places in a stretch of bytes.
class QueueBench final : public pcie::DmaPort {
 public:
  pcie::Outcome resolve(const pcie::Access& access, Time now, pcie::SpanList& spans) override {
    EXPECT_TRUE(spans.append({{access.at.value}, access.bytes}));
    return {.reason = {}, .done_bytes = access.bytes, .ready_at = now};
  }
  pcie::Outcome read(std::span<const pcie::Span> from, Bytes to, Time now) override {
    std::memcpy(to.data(), memory.data() + from[0].start.value, to.size());
    return {.reason = {}, .done_bytes = to.size(), .ready_at = now};
  }
  pcie::Outcome write(std::span<const pcie::Span> to, ConstBytes from, Time now) override {
    std::memcpy(memory.data() + to[0].start.value, from.data(), from.size());
    return {.reason = {}, .done_bytes = from.size(), .ready_at = now};
  }

  CompletionQueue::Written complete(CompletionQueue& cq, Time now, std::uint8_t status = 0) {
    Cqe cqe;
    cqe.cookie = ++written;
    cqe.status = status;
    return cq.write(cqe, host, now);
  }
  Cqe entry(std::uint64_t ring, std::uint32_t slot) const {
    return load_le<Cqe>(memory, ring + slot * sizeof(Cqe));
  }

  std::vector<std::byte> memory = std::vector<std::byte>(0x2000);
  std::vector<std::uint64_t> cells = std::vector<std::uint64_t>(trace::kCounterCount);
  std::vector<KeyRecord> keys = std::vector<KeyRecord>(2);
  trace::Tracer tracer{trace::Counters(cells), nullptr};
  KeyTable table{Tables{.keys = keys, .translations = {}, .qps = {}}};
  HostMemory host{*this, table, tracer};
  std::uint64_t written = 0;
};

constexpr RingPlace kRing{{0x100}, 4};
constexpr Moderation kThreeOrTen{3, microseconds(10)};
constexpr Time at(std::int64_t us) { return Time{0} + microseconds(us); }

// A moderated queue that is armed.
struct ArmedQueue {
  explicit ArmedQueue(const Moderation& rule = kThreeOrTen) {
    cq.moderate(rule);
    cq.arm(CompletionQueue::Armed::Any);
  }
  QueueBench bench;
  CompletionQueue cq{1, kRing};
};

TEST(NicCompletionQueue, HoldsAnEventUntilThereAreEnoughCompletions) {
  ArmedQueue armed;
  auto& [bench, cq] = armed;
  EXPECT_FALSE(bench.complete(cq, at(1)).wants_event);
  EXPECT_EQ(cq.event_due(), at(11)) << "ten after the first";
  EXPECT_FALSE(bench.complete(cq, at(2)).wants_event);
  EXPECT_EQ(cq.event_due(), at(11));
  EXPECT_TRUE(bench.complete(cq, at(3)).wants_event);
  EXPECT_EQ(cq.event_due(), Time::never());
  EXPECT_FALSE(bench.complete(cq, at(4)).wants_event) << "not armed any more";
}

TEST(NicCompletionQueue, ReleasesAHeldEventOnceAndCountsAnew) {
  ArmedQueue armed;
  auto& [bench, cq] = armed;
  EXPECT_FALSE(bench.complete(cq, at(1)).wants_event);
  cq.release_event();
  EXPECT_EQ(cq.event_due(), Time::never());
  cq.arm(CompletionQueue::Armed::Any);
  EXPECT_FALSE(bench.complete(cq, at(20)).wants_event);
  EXPECT_FALSE(bench.complete(cq, at(21)).wants_event);
  EXPECT_TRUE(bench.complete(cq, at(22)).wants_event);
}

TEST(NicCompletionQueue, DoesNotHoldTheEventOfWorkThatFailed) {
  ArmedQueue armed;
  auto& [bench, cq] = armed;
  EXPECT_TRUE(bench.complete(cq, at(1), 5).wants_event);
}

TEST(NicCompletionQueue, HoldsNothingWhereCountOrPeriodSaysNo) {
  for (const Moderation rule : {Moderation{0, microseconds(10)}, Moderation{1, microseconds(10)},
                                Moderation{3, microseconds(0)}}) {
    ArmedQueue armed(rule);
    auto& [bench, cq] = armed;
    EXPECT_TRUE(bench.complete(cq, at(1)).wants_event);
  }
}

TEST(NicCompletionQueue, MakesAHeldEventDueWhenModerationEnds) {
  ArmedQueue armed;
  auto& [bench, cq] = armed;
  EXPECT_FALSE(bench.complete(cq, at(1)).wants_event);
  cq.moderate({});
  EXPECT_EQ(cq.event_due(), Time{0});
}

TEST(NicCompletionQueue, HoldsAnEventAsTheNewRuleSays) {
  ArmedQueue armed;
  auto& [bench, cq] = armed;
  EXPECT_FALSE(bench.complete(cq, at(1)).wants_event);
  cq.moderate({3, microseconds(4)});
  EXPECT_EQ(cq.event_due(), at(5)) << "counted from the first that is held";
  EXPECT_FALSE(bench.complete(cq, at(2)).wants_event);
  cq.moderate({2, microseconds(4)});
  EXPECT_EQ(cq.event_due(), Time{0}) << "there are two";
}

TEST(NicCompletionQueue, FailsOrLosesWhatItHasNoRoomFor) {  // CASES C36
  QueueBench bench;
  CompletionQueue failing(1, kRing);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(bench.complete(failing, at(1)).outcome);
  EXPECT_TRUE(bench.complete(failing, at(1)).full);
  CompletionQueue losing(2, {{0x1000}, 4}, CompletionQueue::Overrun::Loses);
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(bench.complete(losing, at(1)).lost);
  const auto one_more = bench.complete(losing, at(1));
  EXPECT_TRUE(one_more.lost);
  EXPECT_FALSE(one_more.full);
  EXPECT_EQ(bench.entry(0x1000, 0).cookie, 6u) << "what was there stays";
}

TEST(NicCompletionQueue, GoesOnBehindWhatLiesInItsNewRing) {
  QueueBench bench;
  CompletionQueue cq(1, kRing);
  for (int i = 0; i < 3; ++i) bench.complete(cq, at(1));
  cq.move_to({{0x1000}, 8}, 2);
  EXPECT_TRUE(bench.complete(cq, at(2)).outcome);
  EXPECT_EQ(bench.entry(0x1000, 2).cookie, 4u);
  EXPECT_EQ(bench.entry(0x1000, 2).lap, 1u);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(bench.complete(cq, at(2)).full);
  EXPECT_TRUE(bench.complete(cq, at(2)).full);
}

}  // namespace
}  // namespace softhca::nic
