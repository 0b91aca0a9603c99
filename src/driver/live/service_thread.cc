#include "driver/live/service_thread.h"

#include <algorithm>
#include <utility>

namespace softhca::driver {

bool ServiceThread::start(const std::string& name, Work work, const std::vector<int>& fds) {
  auto poller = os::Poller::open();
  if (!poller) return false;
  poller_.emplace(std::move(*poller));
  work_ = std::move(work);
  // The thread allocates only while it owns the device: a fork waits for that, but not for an
  // allocator that has no rule for forks (AddressSanitizer's).
  readable_.reserve(kReadableAtMost);
  watch(fds);
  auto thread = os::Thread::start(name, [this] { run(); });
  if (!thread) return false;
  thread_ = std::move(*thread);
  return true;
}

void ServiceThread::stop() {
  if (!thread_.is_running()) return;
  stopping_.store(true);
  poller_->wake();
  thread_.join();
}

void ServiceThread::abandon() {
  thread_.abandon();
  poller_.reset();
  watched_.clear();
}

void ServiceThread::watch(const std::vector<int>& fds) {
  {
    const std::lock_guard lock(fds_lock_);
    // A number may be that of another file now; one that is watched already stays so. The kernel
    // forgets what is closed.
    std::vector<Watched> watched;
    for (const int fd : fds) {
      const auto known = std::ranges::find(watched_, fd, &Watched::fd);
      const bool is_new = static_cast<bool>(poller_->watch(fd));
      watched.push_back({fd, !is_new && known != watched_.end() && known->armed});
    }
    watched_ = std::move(watched);
  }
  if (thread_.is_running()) poller_->wake();
}

void ServiceThread::arm_all() {
  const std::lock_guard lock(fds_lock_);
  armed_.store(true);
  for (Watched& one : watched_)
    if (!std::exchange(one.armed, true)) poller_->arm(one.fd);
  if (work_.set_sleeping(true)) poller_->wake();
}

void ServiceThread::disarm_all() {
  const std::lock_guard lock(fds_lock_);
  for (Watched& one : watched_)
    if (std::exchange(one.armed, false)) poller_->disarm(one.fd);
  armed_.store(false);
  work_.set_sleeping(false);
}

// The poller disarms what it reports.
void ServiceThread::sleep(Duration timeout) {
  readable_.resize(kReadableAtMost);
  readable_.resize(poller_->wait(readable_, timeout).readable);
  work_.set_sleeping(false);
  const std::lock_guard lock(fds_lock_);
  for (Watched& one : watched_)
    if (std::ranges::find(readable_, one.fd) != readable_.end()) one.armed = false;
}

void ServiceThread::end_call(Time now) {
  lease_until_.store((now + kLease).ps, std::memory_order_relaxed);
  kept_for_call_.store(false, std::memory_order_relaxed);
}

void ServiceThread::end_poll(bool empty, Time now) {
  const bool leased = is_leased(now);
  if (is_kept()) end_call(now);
  if (now > last_poll_ + kLease) polls_ = 0;
  last_poll_ = now;
  if (!empty && leased) {
    if (hands_back_.load(std::memory_order_relaxed)) return hand_back();
    if (++kept_ % kKept == 0) broken_.store(0, std::memory_order_relaxed);
  }
  const int wanted = !empty || !hands_back_.load(std::memory_order_relaxed) ? kPolls : 0;
  if (!leased && polls_ < wanted) {
    ++polls_;
    // This poll may have taken what was to wake the thread.
    if (armed_.load(std::memory_order_relaxed) && work_.set_sleeping(true)) poller_->wake();
    return;
  }
  by_post_.store(false, std::memory_order_relaxed);
  take_lease(now);
}

// A thread that woke up for the answer would only be in the way of the poll that waits for it.
void ServiceThread::begin_post(Time now) {
  if (hands_back_.load(std::memory_order_relaxed) && posts_count_.load(std::memory_order_relaxed)) {
    by_post_.store(true, std::memory_order_relaxed);
    take_lease(now);
  }
  begin_call(now);
}

void ServiceThread::take_lease(Time now) {
  lease_until_.store((now + kLease).ps, std::memory_order_relaxed);
  if (!armed_.load(std::memory_order_relaxed)) return;
  disarm_all();
  // Out of a sleep that only what was armed would end.
  if (sleeps_until_.load(std::memory_order_relaxed) > (now + kLook).ps) poller_->wake();
}

// The thread listens while the program looks at what it got. That has to be worth it now and then.
void ServiceThread::hand_back() {
  lease_until_.store(0);
  arm_all();
  if (in_vain_.fetch_add(1, std::memory_order_relaxed) < kInVain) return;
  hands_back_.store(false);
  posts_count_.store(true);
  in_vain_.store(0, std::memory_order_relaxed);
  broken_.store(0, std::memory_order_relaxed);
}

// What the thread received while the lease was handed back speaks for handing it back; a stream's
// packets come now and then in between, though its program polls.
void ServiceThread::forgive() {
  const std::uint32_t in_vain = in_vain_.load(std::memory_order_relaxed);
  if (in_vain != 0)
    in_vain_.store(in_vain - std::min(in_vain, kForgiven), std::memory_order_relaxed);
}

// A program that sleeps until it is told polls once more before it does: that poll must not take
// the lease again.
void ServiceThread::drop_lease() {
  polls_ = 0;
  broken_.store(0, std::memory_order_relaxed);
  hands_back_.store(false);
  if (lease_until_.exchange(0) != 0 && thread_.is_running()) poller_->wake();
}

void ServiceThread::need_by(Time deadline) {
  const std::int64_t sleeps_until = sleeps_until_.load(std::memory_order_relaxed);
  if (!thread_.is_running() || deadline.ps >= sleeps_until) return;
  const Time now = work_.now();
  // It would go back to sleep, and looks soon anyway; but not one that was driving when the lease
  // was taken.
  if (is_leased(now) && sleeps_until <= (now + kLook).ps) return;
  sleeps_until_.store(deadline.ps, std::memory_order_relaxed);
  poller_->wake();
}

void ServiceThread::run() {
  Time last_lease{};
  while (!stopping_.load()) {
    const Time now = work_.now();
    if (is_leased(now)) {
      last_lease = now;
      sleeps_until_.store((now + kLook).ps, std::memory_order_relaxed);
      sleep(kLook);
      continue;
    }
    const bool lapsed = lease_until_.exchange(0) != 0;
    // Work that comes due while it drives wakes it, even after `drive` has given the device back.
    sleeps_until_.store(Time::never().ps);
    const Driven driven = work_.drive(readable_);
    if (stopping_.load()) return;
    if (driven.leased) continue;
    if (driven.received) {
      forgive();
      // It polled, left, and something lay there: next time it is to hand the lease back.
      if (lapsed && by_post_.load(std::memory_order_relaxed))
        posts_count_.store(false);
      else if (lapsed && broken_.fetch_add(1, std::memory_order_relaxed) + 1 >= kBroken)
        hands_back_.store(true);
    }
    Time deadline = driven.deadline;
    if (last_lease != Time{} && now < last_lease + kLively)
      deadline = earlier(deadline, now + kLook);
    sleeps_until_.store(std::min(sleeps_until_.load(), deadline.ps));
    arm_all();
    sleep(deadline == Time::never() ? Duration{-1} : std::max(Duration{0}, deadline - work_.now()));
  }
}

}  // namespace softhca::driver
