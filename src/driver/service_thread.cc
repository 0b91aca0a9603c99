#include "driver/service_thread.h"

#include <algorithm>
#include <array>

namespace softhca::driver {

bool ServiceThread::start(const std::string& name, Work work, const std::vector<int>& fds) {
  auto poller = os::Poller::open();
  if (!poller) return false;
  poller_.emplace(std::move(*poller));
  work_ = std::move(work);
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

void ServiceThread::watch(const std::vector<int>& fds) {
  {
    const std::lock_guard lock(fds_lock_);
    for (const int fd : fds)
      if (std::ranges::find(fds_, fd) == fds_.end() && poller_->watch(fd)) fds_.push_back(fd);
  }
  if (thread_.is_running()) poller_->wake();
}

void ServiceThread::disarm_all() {
  const std::lock_guard lock(fds_lock_);
  for (const int fd : fds_) poller_->disarm(fd);
  armed_.store(false);
}

void ServiceThread::on_poll(bool empty, Time now) {
  if (!empty) {
    empty_polls_ = 0;
    return;
  }
  if (empty_polls_ < kEmptyPolls) {
    ++empty_polls_;
    return;
  }
  lease_until_.store((now + kLease).ps, std::memory_order_relaxed);
  if (!armed_.load(std::memory_order_relaxed)) return;
  disarm_all();
  poller_->wake();  // out of its armed sleep, so that it looks again when the lease has lapsed
}

void ServiceThread::drop_lease() {
  empty_polls_ = 0;
  if (lease_until_.exchange(0) == 0) return;
  if (thread_.is_running() && !armed_.load()) poller_->wake();
}

void ServiceThread::need_by(Time deadline) {
  if (!thread_.is_running() || deadline.ps >= sleeps_until_.load(std::memory_order_relaxed)) return;
  sleeps_until_.store(deadline.ps, std::memory_order_relaxed);
  poller_->wake();
}

// Listens until something arrives or `deadline` comes.
void ServiceThread::sleep_armed(Time deadline) {
  {
    const std::lock_guard lock(fds_lock_);
    armed_.store(true);
    for (const int fd : fds_) poller_->arm(fd);
  }
  std::array<int, 8> ready;
  const Duration timeout =
      deadline == Time::never() ? Duration{-1} : std::max(Duration{0}, deadline - work_.now());
  poller_->wait(ready, timeout);
}

void ServiceThread::run() {
  Duration look = kFirstLook;
  while (!stopping_.load()) {
    if (is_leased(work_.now())) {
      std::array<int, 8> ready;
      poller_->wait(ready, look);
      look = std::min(kLastLook, look * 2);
      continue;
    }
    look = kFirstLook;
    // Work that comes due while it drives wakes it, even after `drive` has given the device back.
    sleeps_until_.store(Time::never().ps);
    const Time deadline = work_.drive();
    sleeps_until_.store(std::min(sleeps_until_.load(), deadline.ps));
    if (stopping_.load()) return;
    sleep_armed(deadline);
  }
}

}  // namespace softhca::driver
