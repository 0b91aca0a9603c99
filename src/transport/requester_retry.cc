// The requester's timers, and how it goes back to send again.
#include <algorithm>

#include "base/assert.h"
#include "transport/requester.h"

namespace softhca::transport {

void Requester::go_back(std::uint64_t number, Time now) {
  ASSERT(number >= oldest_);
  next_ = std::min(number, next_);
  restart_timer(now);
}

void Requester::go_back_for_loss(std::uint64_t number, Time now) {
  if (number < next_) window_.on_loss();
  go_back(number, now);
}

// C9-139: retry_cnt times, then the work request fails. True if one was left.
bool Requester::spend_retry() {
  if (retries_left_ == 0) {
    fail(Status::RetriesExceeded, {.id = trace::ReasonId::RetriesSpent, .object = dest_qpn_.value});
    return false;
  }
  --retries_left_;
  return true;
}

// The timer covers the oldest unacknowledged packet: progress restarts it, an empty window stops
// it. A peer of software may be off its CPU for a while: each retry without progress waits longer,
// up to the four times that 9.7.6.1.3 allows.
void Requester::restart_timer(Time now) {
  const bool waiting = oldest_ < next_ || oldest_ < highest_sent_;
  if (!waiting || timeout_.ps == Time::never().ps)
    ack_deadline_ = Time::never();
  else
    ack_deadline_ = now + timeout_ * (1 << std::min(retry_count_ - retries_left_, 2));
}

// The timer is for answers, and what is sent slowly is not answered late: it begins with the newest
// packet. A full window ends that.
void Requester::on_paced(Time now) {
  if (ack_deadline_ != Time::never()) restart_timer(now);
}

void Requester::on_time(Time now) {
  check_invariants();
  if (failed_) return;
  if (rnr_until_ > Time{0} && now >= rnr_until_) {
    counters_.add(trace::QpCounter::RnrWaitPs, now - rnr_since_);
    rnr_until_ = Time{0};
    restart_timer(now);
  }
  if (now < ack_deadline_) return;
  counters_.add(trace::QpCounter::Timeouts);
  went_back_ = false;
  if (spend_retry()) go_back_for_loss(oldest_, now);
  check_invariants();
}

}  // namespace softhca::transport
