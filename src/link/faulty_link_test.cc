#include "link/faulty_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>

namespace softhca::link {
namespace {

using faults::Fault;
using faults::Side;
using faults::What;

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

// A link with a plan; the frames' numbers are their PSNs.
struct Fixture {
  explicit Fixture(std::vector<Fault> faults)
      : injector({.name = "plan.toml", .faults = std::move(faults)}, tracer) {}

  using Packet = std::array<std::byte, 24>;
  static Packet packet(std::uint32_t number, std::uint32_t qpn = 5) {
    Packet bytes{};
    store_be(Bytes(bytes), 4, qpn);
    store_be(Bytes(bytes), 8, number);
    return bytes;
  }
  std::size_t send(std::uint32_t number, Time now = {}, std::uint32_t qpn = 5) {
    const Packet bytes = packet(number, qpn);
    const Frame frame{{}, bytes};
    return link.send({&frame, 1}, now);
  }
  std::vector<std::uint32_t> receive(Time now = {}) {
    std::vector<std::uint32_t> numbers;
    std::array<Frame, 4> out;
    while (const std::size_t n = link.receive(out, now))
      for (std::size_t i = 0; i < n; ++i)
        numbers.push_back(load_be<std::uint32_t>(out[i].bytes, 8));
    return numbers;
  }
  // Sends so many, one each microsecond, and receives until nothing is held back.
  std::vector<std::uint32_t> run(std::uint32_t count) {
    std::vector<std::uint32_t> numbers;
    Time now{};
    const auto drain = [&] {
      for (const std::uint32_t number : receive(now)) numbers.push_back(number);
    };
    for (std::uint32_t i = 0; i < count; ++i, now = now + microseconds(1)) {
      EXPECT_EQ(send(i, now), 1u);
      drain();
    }
    while (link.next_arrival() < Time::never()) {
      now = later(now, link.next_arrival());
      drain();
    }
    return numbers;
  }

  std::vector<std::uint64_t> cells = std::vector<std::uint64_t>(trace::kCounterCount);
  trace::Tracer tracer{trace::Counters(cells), nullptr};
  Loopback inner;
  faults::Injector injector;
  FaultyLink link{inner, injector};
};

using Numbers = std::vector<std::uint32_t>;

constexpr std::uint32_t kOneInTen = 429'496'730;

TEST(FaultyLink, ChangesNothingThatNoFaultHits) {
  Fixture f({{.what = What::Drop, .side = Side::In, .qpn = wire::Qpn{6}}});
  const auto numbers = f.run(5000);
  EXPECT_EQ(numbers.size(), 5000u);
  EXPECT_TRUE(std::ranges::is_sorted(numbers));
}

TEST(FaultyLink, LosesAndDoublesInTheDirectionThatIsMeant) {
  EXPECT_EQ(Fixture({{.what = What::Drop, .side = Side::Out, .nth = 2, .count = 1}}).run(3),
            (Numbers{0, 2}));
  EXPECT_EQ(Fixture({{.what = What::Duplicate, .side = Side::In, .nth = 2, .count = 1}}).run(3),
            (Numbers{0, 1, 1, 2}));
  Fixture both({{.what = What::Duplicate}});
  EXPECT_EQ(both.run(1), (Numbers{0, 0, 0, 0}));
}

TEST(FaultyLink, CorruptsExactlyOneBitBehindTheBth) {
  Fixture f({{.what = What::Corrupt, .seed = 3, .side = Side::In}});
  std::array<Frame, 4> out;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    f.send(i);
    ASSERT_EQ(f.link.receive(out, Time{}), 1u);
    const Fixture::Packet sent = Fixture::packet(i);
    int bits = 0;
    for (std::size_t at = 0; at < sent.size(); ++at) {
      const int changed = std::popcount(static_cast<unsigned>(sent[at] ^ out[0].bytes[at]));
      if (at < wire::kBthBytes) {
        ASSERT_EQ(changed, 0);
      }
      bits += changed;
    }
    ASSERT_EQ(bits, 1);
  }
}

TEST(FaultyLink, CutsPacketsShort) {
  Fixture f({{.what = What::Truncate, .bytes = 13}});
  f.send(1);
  std::array<Frame, 4> out;
  ASSERT_EQ(f.link.receive(out, Time{}), 1u);
  EXPECT_EQ(out[0].bytes.size(), 12u);  // once on its way out, and once on its way in
}

TEST(FaultyLink, LaterFramesOvertakeThoseThatAreLateAndNoneIsLost) {
  for (const Side side : {Side::In, Side::Out}) {
    Fixture f({{.what = What::Delay,
                .seed = 4,
                .side = side,
                .chance = kOneInTen,
                .time = microseconds(20)}});
    auto numbers = f.run(5000);
    EXPECT_FALSE(std::ranges::is_sorted(numbers));
    std::ranges::sort(numbers);
    ASSERT_EQ(numbers.size(), 5000u);
    for (std::uint32_t i = 0; i < 5000; ++i) ASSERT_EQ(numbers[i], i);
  }
}

TEST(FaultyLink, APacketIsPassedByExactlySoManyOfItsQueuePair) {
  const Fault fault{.what = What::Reorder, .side = Side::Out, .nth = 1, .count = 1, .passed_by = 2};
  EXPECT_EQ(Fixture({fault}).run(5), (Numbers{1, 2, 0, 3, 4}));
  Fixture f({fault});
  f.send(0);
  f.send(1, {}, 6);
  f.send(2);
  EXPECT_EQ(f.receive(), (Numbers{1, 2}));
  // Nobody else comes: it does not wait for ever.
  EXPECT_EQ(f.link.next_arrival(), Time{} + FaultyLink::kPassedWithin);
  EXPECT_EQ(f.receive(Time{} + FaultyLink::kPassedWithin), Numbers{0});
}

TEST(FaultyLink, RepeatsItselfForTheSameSeeds) {
  std::array<Numbers, 3> runs;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::uint64_t seed = i == 2 ? 8 : 7;
    runs[i] =
        Fixture(
            {{.what = What::Drop, .seed = seed, .chance = kOneInTen},
             {.what = What::Duplicate, .seed = seed + 1, .chance = kOneInTen},
             {.what = What::Delay, .seed = seed + 2, .chance = kOneInTen, .time = microseconds(9)}})
            .run(1000);
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
}

// CASES C19: what is not taken now is the same when it is.
TEST(FaultyLink, TakesNothingWhileTheLinkInsideIsFull) {
  Fixture f({{.what = What::Drop, .side = Side::In, .qpn = wire::Qpn{6}}});
  f.inner.room = 1;
  EXPECT_EQ(f.send(1), 1u);
  EXPECT_EQ(f.send(2), 1u);  // held back here
  EXPECT_EQ(f.send(3), 0u);
  EXPECT_EQ(f.receive(), (Numbers{1, 2}));
}

TEST(FaultyLink, HoldsNoMoreThanItsLimit) {
  Fixture f({{.what = What::Delay, .side = Side::Out, .time = seconds(1)}});
  for (std::uint32_t i = 0; i < FaultyLink::kHeldAtMost + 10; ++i) f.send(i);
  EXPECT_EQ(f.receive(Time{} + seconds(1)).size(), FaultyLink::kHeldAtMost);
}

}  // namespace
}  // namespace softhca::link
