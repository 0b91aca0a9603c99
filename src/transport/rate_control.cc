#include "transport/rate_control.h"

#include <algorithm>

#include "base/assert.h"

namespace softhca::transport {

namespace {

constexpr int kEnoughShift = 8;  // within 1/256 of the line's rate there is no limit any more

Duration time_of(std::int64_t bytes, Rate rate) {
  constexpr std::int64_t kPsPerSecond = 1'000'000'000'000;
  constexpr std::int64_t kBytesAtMost = 1'000'000;  // so that the product fits
  ASSERT(bytes <= kBytesAtMost);
  return picoseconds(bytes * 8 * kPsPerSecond / rate.bits_per_second);
}

}  // namespace

RateControl::RateControl(Rate line)
    : line_(line == Rate{} ? kUnknownLine : std::max(line, kLeast)), rate_(line_), target_(line_) {}

void RateControl::on_notification(Time now) {
  pass(now);
  decay_alpha(now);
  if (!limited_) next_at_ = now;
  target_ = rate_;
  const std::int64_t cut = rate_.bits_per_second / 2 * alpha_ / kOne;
  rate_ = std::max(kLeast, Rate{rate_.bits_per_second - cut});
  alpha_ += (kOne - alpha_) >> kGainShift;
  alpha_at_ = now + kAlphaTimer;
  rise_at_ = now + kIncreaseTimer;
  timer_steps_ = byte_steps_ = 0;
  bytes_ = 0;
  limited_ = true;
}

// Each kAlphaTimer without a CNP. It ends where rounding leaves nothing to take away.
void RateControl::decay_alpha(Time now) {
  while (alpha_at_ <= now && alpha_ >> kGainShift != 0) {
    alpha_ -= alpha_ >> kGainShift;
    alpha_at_ = alpha_at_ + kAlphaTimer;
  }
}

void RateControl::rise() {
  const int most = std::max(timer_steps_, byte_steps_);
  const int least = std::min(timer_steps_, byte_steps_);
  if (least > kFastRecoverySteps)
    target_.bits_per_second += (least - kFastRecoverySteps) * kHyper.bits_per_second;
  else if (most >= kFastRecoverySteps)
    target_.bits_per_second += kAdditive.bits_per_second;
  target_ = std::min(target_, line_);
  rate_.bits_per_second += (target_.bits_per_second - rate_.bits_per_second) / 2;
  if (rate_.bits_per_second + (line_.bits_per_second >> kEnoughShift) < line_.bits_per_second)
    return;
  rate_ = target_ = line_;
  limited_ = waits_ = false;
}

// What the timer did meanwhile; it is asked only when it matters.
void RateControl::pass(Time now) {
  while (limited_ && rise_at_ <= now) {
    rise_at_ = rise_at_ + kIncreaseTimer;
    ++timer_steps_;
    rise();
  }
}

bool RateControl::may_send(Time now) {
  if (!limited_) return true;
  pass(now);
  waits_ = limited_ && (waits_ || now < next_at_);
  return !limited_ || now >= next_at_;
}

void RateControl::on_sent(std::int64_t bytes, Time now) {
  if (!limited_) return;
  const Time from = waits_ ? Time{now.ps - kLateness.ps} : now;
  next_at_ = later(next_at_, from) + time_of(bytes, rate_);
  bytes_ += bytes;
  while (limited_ && bytes_ >= kIncreaseBytes) {
    bytes_ -= kIncreaseBytes;
    ++byte_steps_;
    rise();
  }
}

}  // namespace softhca::transport
