#include "link/faulty_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>

namespace softhca::link {
namespace {

// Gives back what was sent, at once; takes no more than `room` frames until they are received.
class Loopback final : public Link {
 public:
  std::size_t send(std::span<const Frame> frames, Time) override {
    std::size_t taken = 0;
    for (; taken < frames.size() && queue_.size() < room; ++taken)
      queue_.emplace_back(frames[taken].bytes.begin(), frames[taken].bytes.end());
    return taken;
  }
  std::size_t receive(std::span<Frame> out, Time) override {
    lent_.clear();
    for (; lent_.size() < out.size() && !queue_.empty(); queue_.pop_front())
      lent_.push_back(std::move(queue_.front()));
    for (std::size_t i = 0; i < lent_.size(); ++i) out[i] = {{}, lent_[i]};
    return lent_.size();
  }
  Time next_arrival() const override { return queue_.empty() ? Time::never() : Time{}; }

  std::size_t room = 1'000'000;

 private:
  std::deque<std::vector<std::byte>> queue_;
  std::vector<std::vector<std::byte>> lent_;
};

constexpr std::uint32_t kFrames = 5000;

// Sends kFrames numbers, one each microsecond, and receives until nothing is held back.
std::vector<std::uint32_t> run(FaultyLink& link) {
  std::vector<std::uint32_t> numbers;
  std::array<Frame, 4> out;
  Time now{};
  const auto drain = [&] {
    while (const std::size_t n = link.receive(out, now))
      for (std::size_t i = 0; i < n; ++i) numbers.push_back(load_be<std::uint32_t>(out[i].bytes));
  };
  for (std::uint32_t i = 0; i < kFrames; ++i, now = now + microseconds(1)) {
    std::array<std::byte, 4> bytes{};
    store_be(bytes, 0, i);
    const Frame frame{{}, bytes};
    EXPECT_EQ(link.send({&frame, 1}, now), 1u);
    drain();
  }
  for (int i = 0; i < 1'000'000 && link.next_arrival() < Time::never(); ++i) {
    now = later(now, link.next_arrival());
    drain();
  }
  return numbers;
}

TEST(FaultyLink, ChangesNothingWithoutFaults) {
  Loopback inner;
  FaultyLink link(inner, 1, {}, {});
  const auto numbers = run(link);
  ASSERT_EQ(numbers.size(), kFrames);
  EXPECT_TRUE(std::ranges::is_sorted(numbers));
}

TEST(FaultyLink, DropsAndDuplicatesInBothDirections) {
  Loopback inner;
  FaultyLink link(inner, 2, {.drop = 100}, {.duplicate = 100});
  const auto numbers = run(link);
  EXPECT_NEAR(static_cast<double>(link.counts().dropped), 500, 120);
  EXPECT_NEAR(static_cast<double>(link.counts().duplicated), 450, 120);
  EXPECT_EQ(numbers.size(), kFrames - link.counts().dropped + link.counts().duplicated);
}

TEST(FaultyLink, CorruptsExactlyOneBit) {
  Loopback inner;
  FaultyLink link(inner, 3, {}, {.corrupt = 1000});
  const auto numbers = run(link);
  ASSERT_EQ(numbers.size(), kFrames);
  for (std::uint32_t i = 0; i < kFrames; ++i) ASSERT_EQ(std::popcount(numbers[i] ^ i), 1);
}

TEST(FaultyLink, LetsLaterFramesOvertakeDelayedOnesAndLosesNone) {
  for (const bool sending : {false, true}) {
    Loopback inner;
    const FaultRates rates{.delay = 100, .delay_max = microseconds(20)};
    FaultyLink link(inner, 4, sending ? rates : FaultRates{}, sending ? FaultRates{} : rates);
    auto numbers = run(link);
    EXPECT_FALSE(std::ranges::is_sorted(numbers));
    std::ranges::sort(numbers);
    ASSERT_EQ(numbers.size(), kFrames);
    for (std::uint32_t i = 0; i < kFrames; ++i) ASSERT_EQ(numbers[i], i);
  }
}

TEST(FaultyLink, RepeatsItselfForTheSameSeed) {
  const FaultRates rates{
      .drop = 50, .duplicate = 50, .corrupt = 50, .delay = 50, .delay_max = microseconds(9)};
  std::array<std::vector<std::uint32_t>, 3> runs;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Loopback inner;
    FaultyLink link(inner, i == 2 ? 8 : 7, rates, rates);
    runs[i] = run(link);
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
}

// CASES C19: what is not taken now is the same when it is.
TEST(FaultyLink, TakesNothingWhileTheLinkInsideIsFull) {
  Loopback inner;
  inner.room = 1;
  FaultyLink link(inner, 5, {.delay = 1}, {});
  std::array<std::byte, 4> bytes{};
  const Frame frame{{}, bytes};
  EXPECT_EQ(link.send({&frame, 1}, Time{}), 1u);
  EXPECT_EQ(link.send({&frame, 1}, Time{}), 1u);  // held back here
  EXPECT_EQ(link.send({&frame, 1}, Time{}), 0u);
  std::array<Frame, 4> out;
  EXPECT_EQ(link.receive(out, Time{}), 1u);
  EXPECT_EQ(link.receive(out, Time{}), 1u);
  EXPECT_EQ(link.receive(out, Time{}), 0u);
}

}  // namespace
}  // namespace softhca::link
