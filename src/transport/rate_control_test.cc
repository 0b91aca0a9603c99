#include "transport/rate_control.h"

#include <gtest/gtest.h>

#include <cmath>

namespace softhca::transport {
namespace {

constexpr std::int64_t kWhole = RateControl::kOne;
constexpr Rate kLine = mbps(40'000);

// Just before the timer would run out for the n-th time after `since`.
Time before_step(Time since, int n) {
  return since + (RateControl::kIncreaseTimer * n - picoseconds(1));
}

double alpha_of(const RateControl& control) {
  return static_cast<double>(control.alpha()) / static_cast<double>(kWhole);
}

TEST(RateControl, IsNoLimitBeforeTheFirstNotification) {
  RateControl control(kLine);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(control.may_send(Time{0}));
    control.on_sent(4096, Time{0});
  }
  EXPECT_EQ(control.rate(), kLine);
  EXPECT_FALSE(control.is_limited());
  EXPECT_EQ(control.next_deadline(), Time::never());
}

// DCQCN, equation 1: R_T = R_C, R_C = R_C (1 - alpha / 2), alpha = (1 - g) alpha + g.
TEST(RateControl, ANotificationCutsByHalfOfAlpha) {
  RateControl control(kLine);
  control.on_notification(Time{1});
  EXPECT_EQ(control.target(), kLine);
  EXPECT_EQ(control.rate(), mbps(20'000));
  EXPECT_EQ(control.alpha(), kWhole) << "it begins with 1, and stays there";
  control.on_notification(Time{2});
  EXPECT_EQ(control.target(), mbps(20'000));
  EXPECT_EQ(control.rate(), mbps(10'000));
}

// Equation 2: alpha = (1 - g) alpha after each time K without a notification; then equation 1.
TEST(RateControl, AlphaForgetsWithTime) {
  RateControl control(kLine);
  control.on_notification(Time{0});
  const Time later = Time{0} + RateControl::kAlphaTimer * 100;
  control.on_notification(later);
  const double faded = std::pow(255.0 / 256, 100);
  EXPECT_NEAR(alpha_of(control), (1 - 1.0 / 256) * faded + 1.0 / 256, 1e-3);
  const double cut = static_cast<double>(control.rate().bits_per_second) /
                     static_cast<double>(control.target().bits_per_second);
  EXPECT_NEAR(cut, 1 - faded / 2, 1e-3);
}

TEST(RateControl, AlphaOfALongSilenceIsNearlyNothing) {
  RateControl control(kLine);
  control.on_notification(Time{0});
  control.on_notification(Time{0} + seconds(1000));
  EXPECT_LT(alpha_of(control), 1.0 / 100);
  EXPECT_GT(control.rate(), mbps(39'900)) << "one mark after a long time is hardly a cut";
}

// Equation 3, and algorithm 1: fast recovery while neither counter has come to F.
TEST(RateControl, RecoversFastByHalvesOfTheWayBack) {
  RateControl control(kLine);
  control.on_notification(Time{0});
  std::int64_t expected = 20'000'000'000;
  for (int step = 1; step < RateControl::kFastRecoverySteps; ++step) {
    control.may_send(before_step(Time{0}, step));
    EXPECT_EQ(control.rate().bits_per_second, expected) << step;
    expected = (expected + kLine.bits_per_second) / 2;
    control.may_send(before_step(Time{0}, step) + picoseconds(1));
    EXPECT_EQ(control.rate().bits_per_second, expected) << step;
    EXPECT_EQ(control.target(), kLine) << step;
  }
}

// Equation 4: from the F-th step of either on the target rises too, by R_AI.
TEST(RateControl, ThenRisesByLittleSteps) {
  RateControl control(kLine);
  control.on_notification(Time{0});
  control.on_notification(Time{0});  // target 20 Gb/s, rate 10
  control.may_send(Time{0} + RateControl::kIncreaseTimer * 4);
  EXPECT_EQ(control.target(), mbps(20'000));
  const std::int64_t rate = control.rate().bits_per_second;
  control.may_send(Time{0} + RateControl::kIncreaseTimer * 5);
  EXPECT_EQ(control.target(), mbps(20'040));
  EXPECT_EQ(control.rate().bits_per_second, rate + (mbps(20'040).bits_per_second - rate) / 2);
}

void send_bytes(RateControl& control, std::int64_t bytes, Time now) {
  for (; bytes > 0; bytes -= 10'000) control.on_sent(10'000, now);
}

TEST(RateControl, BytesMakeStepsLikeTheTimer) {
  RateControl control(kLine);
  control.on_notification(Time{0});
  send_bytes(control, RateControl::kIncreaseBytes - 10'000, Time{0});
  EXPECT_EQ(control.rate(), mbps(20'000));
  send_bytes(control, 10'000, Time{0});
  EXPECT_EQ(control.rate(), mbps(30'000));
}

// Algorithm 1: hyper increase when both have made more than F steps; by i times R_HAI (802.1Qau).
TEST(RateControl, BothPastTheirFifthStepRiseByMuch) {
  RateControl control(mbps(400'000));
  for (int i = 0; i < 4; ++i) control.on_notification(Time{0});  // target 50 Gb/s
  send_bytes(control, 6 * RateControl::kIncreaseBytes, Time{0});
  const std::int64_t by_bytes = control.target().bits_per_second;
  EXPECT_EQ(by_bytes, mbps(50'000 + 2 * 40).bits_per_second);
  control.may_send(Time{0} + RateControl::kIncreaseTimer * 5);  // max is past F: additive
  EXPECT_EQ(control.target().bits_per_second, by_bytes + 5 * mbps(40).bits_per_second);
  control.may_send(Time{0} + RateControl::kIncreaseTimer * 6);  // min too
  EXPECT_EQ(control.target().bits_per_second, by_bytes + mbps(5 * 40 + 400).bits_per_second);
  send_bytes(control, RateControl::kIncreaseBytes, Time{0});  // min is 6 still
  EXPECT_EQ(control.target().bits_per_second, by_bytes + mbps(5 * 40 + 2 * 400).bits_per_second);
}

TEST(RateControl, ACutBeginsAllOver) {
  RateControl control(kLine);
  control.on_notification(Time{0});
  const Time again = Time{0} + RateControl::kIncreaseTimer * 3 + microseconds(20);
  control.on_notification(again);
  const Rate cut = control.rate(), target = control.target();
  control.may_send(before_step(again, 1));
  EXPECT_EQ(control.rate(), cut);
  control.may_send(again + RateControl::kIncreaseTimer * 4);
  EXPECT_EQ(control.target(), target) << "fast recovery from the first step on";
}

TEST(RateControl, IsNoLimitAnyMoreAtTheLinesRate) {
  RateControl control(kLine);
  control.on_notification(Time{0});
  EXPECT_TRUE(control.is_limited());
  EXPECT_TRUE(control.may_send(Time{0} + seconds(1)));
  EXPECT_FALSE(control.is_limited());
  EXPECT_EQ(control.rate(), kLine);
  EXPECT_EQ(control.next_deadline(), Time::never());
}

// What a flood of forged notifications comes to.
TEST(RateControl, NeverFallsBelowTheLeast) {
  RateControl control(kLine);
  for (int i = 0; i < 10'000; ++i) control.on_notification(Time{i});
  EXPECT_EQ(control.rate(), RateControl::kLeast);
  EXPECT_TRUE(control.may_send(Time{10'000}));
  control.may_send(Time{0} + seconds(1));
  EXPECT_FALSE(control.is_limited()) << "and it comes back";
}

TEST(RateControl, AnUnknownLineIsThatOfThePaper) {
  EXPECT_EQ(RateControl(Rate{}).rate(), RateControl::kUnknownLine);
  EXPECT_EQ(RateControl(Rate{1}).rate(), RateControl::kLeast);
}

// 20 Gb/s are 2500 bytes in a microsecond.
TEST(RateControl, SpacesPacketsByTheirBytes) {
  RateControl control(kLine);
  control.on_notification(Time{0});
  Time now{0};
  for (int packet = 0; packet < 10; ++packet) {
    EXPECT_TRUE(control.may_send(now));
    control.on_sent(2500, now);
    EXPECT_FALSE(control.may_send(now));
    EXPECT_EQ(control.next_deadline(), now + microseconds(1));
    now = control.next_deadline();
  }
}

TEST(RateControl, WhoWasIdleSendsNoMoreThanOneAtOnce) {
  RateControl control(kLine);
  control.on_notification(Time{0});
  control.on_sent(2500, Time{0});
  control.on_idle();
  const Time now = Time{0} + microseconds(40);
  EXPECT_TRUE(control.may_send(now));
  control.on_sent(2500, now);
  EXPECT_FALSE(control.may_send(now));
}

TEST(RateControl, WhoIsCalledLateMakesUpForIt) {
  RateControl control(kLine);
  control.on_notification(Time{0});
  control.on_sent(2500, Time{0});
  EXPECT_FALSE(control.may_send(Time{0}));
  const Time now = Time{0} + microseconds(41);  // 40 too late
  int packets = 0;
  while (control.may_send(now)) control.on_sent(2500, now), ++packets;
  EXPECT_EQ(packets, 41);
}

TEST(RateControl, WhoIsCalledVeryLateMakesUpForAMillisecond) {
  RateControl control(mbps(400'000));
  for (int i = 0; i < 5; ++i) control.on_notification(Time{0});  // 12.5 Gb/s
  control.on_sent(2500, Time{0});
  EXPECT_FALSE(control.may_send(Time{0}));
  const Time now = Time{0} + milliseconds(3);
  std::int64_t bytes = 0;
  while (control.may_send(now) && control.is_limited()) control.on_sent(2500, now), bytes += 2500;
  ASSERT_TRUE(control.is_limited());
  EXPECT_LT(8 * (bytes - 5000), control.rate().bits_per_second / 1000);
  EXPECT_GE(8 * bytes, control.rate().bits_per_second / 1000);
}

}  // namespace
}  // namespace softhca::transport
