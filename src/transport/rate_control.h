// RateControl: the reaction point of one queue pair: how fast it may send (DCQCN).
//
// It starts at the line's rate, which is no limit at all. A CNP cuts the rate, by the more the
// more of them came lately (alpha). Then it rises in steps, of which a timer and a counter of bytes
// each make their own: the first ones halve the way back to the rate before the cut (fast
// recovery), the next ones raise that rate by a little (additive), and, when both have made more
// than five, by more and more (hyper). At the line's rate the limit is gone.
//
// Pacing: each packet moves the moment of the next one by its bytes at the present rate. Whoever
// was called too late while packets waited makes up for up to kLateness.
//
// Spec        Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, 3
//             (figure 7, equations 1 to 4) and 5.2 (numbers); hyper increase: IEEE 802.1Qau
// Threads     owned by the device; no locks. Integers only: the same everywhere
// Invariants  (1) kLeast <= rate() <= target <= line, where the line is that fast
// See also    ARCHITECTURE.md, "Congestion"
#pragma once
#include <cstdint>

#include "base/clock.h"

namespace softhca::transport {

struct Rate {
  std::int64_t bits_per_second{};
  friend constexpr auto operator<=>(Rate, Rate) = default;
};
constexpr Rate mbps(std::int64_t n) { return {n * 1'000'000}; }

class RateControl {
 public:
  // Numbers of the paper, 5.2, which has links of 40 Gb/s.
  static constexpr int kGainShift = 8;                              // g = 1/256
  static constexpr Duration kAlphaTimer = microseconds(55);         // K
  static constexpr Duration kIncreaseTimer = microseconds(55);      // T
  static constexpr std::int64_t kIncreaseBytes = 10'000'000;        // B
  static constexpr int kFastRecoverySteps = 5;                      // F
  static constexpr Rate kAdditive = mbps(40);                       // R_AI
  static constexpr Rate kHyper = {10 * kAdditive.bits_per_second};  // 802.1Qau: ten times R_AI
  static constexpr Rate kUnknownLine = mbps(40'000);
  // Ours: a forged CNP slows to this and no further.
  static constexpr Rate kLeast = mbps(10);
  // Ours: a service thread sleeps for whole milliseconds.
  static constexpr Duration kLateness = milliseconds(1);
  static constexpr std::int64_t kOne = std::int64_t{1} << 20;  // alpha's 1

  // `line` 0: not known.
  explicit RateControl(Rate line);

  void on_notification(Time now);
  // False: what waits may go at next_deadline().
  bool may_send(Time now);
  void on_sent(std::int64_t bytes, Time now);
  // Nothing is waiting to be sent.
  void on_idle() { waits_ = false; }

  Time next_deadline() const { return waits_ ? next_at_ : Time::never(); }
  bool is_limited() const { return limited_; }
  Rate rate() const { return rate_; }
  Rate target() const { return target_; }
  std::int64_t alpha() const { return alpha_; }  // in parts of kOne

 private:
  void pass(Time now);
  void decay_alpha(Time now);
  void rise();

  Rate line_;
  Rate rate_;                      // R_C
  Rate target_;                    // R_T
  std::int64_t alpha_ = kOne;      // congestion lately, 0 to kOne
  Time alpha_at_ = Time::never();  // when it decays next
  Time rise_at_{};                 // when the timer runs out next
  int timer_steps_ = 0;            // since the last cut
  int byte_steps_ = 0;
  std::int64_t bytes_ = 0;  // sent since the last step of theirs
  Time next_at_{};          // no packet before, while limited
  bool limited_ = false;
  bool waits_ = false;  // a packet that may not leave yet
};

}  // namespace softhca::transport
