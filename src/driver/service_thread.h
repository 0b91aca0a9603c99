// ServiceThread: drives a device when no call of the program does.
//
// A program that polls drives its device itself, and an armed epoll on the socket that it polls
// would cost it a wake-up for each packet. So an empty poll takes the *receive lease*: while it
// lasts, the thread does not listen. It looks again when the lease has lapsed, in steps that grow
// while the program keeps polling.
//
//   lease taken     by the kEmptyPolls-th empty poll in a row
//   lease lasts     kLease after the last empty poll
//   lease dropped   at once when a completion channel is armed (the program is about to sleep)
//
// Threads  lease calls by the owner of the device; the rest is said at each method
// See also ARCHITECTURE.md, "Who turns the crank"
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "os/poller.h"
#include "os/thread.h"

namespace softhca::driver {

class ServiceThread {
 public:
  static constexpr int kEmptyPolls = 16;
  static constexpr Duration kLease = microseconds(200);
  static constexpr Duration kFirstLook = microseconds(500);
  static constexpr Duration kLastLook = milliseconds(4);

  struct Work {
    std::function<Time()> now;
    // Drives until nothing is left to do; gives the next deadline. Takes and gives back the device.
    std::function<Time()> drive;
  };

  // Starts the thread. False if the system grants none; then timers run only inside calls.
  bool start(const std::string& name, Work work, const std::vector<int>& fds);
  bool is_running() const { return thread_.is_running(); }
  void stop();  // by one thread, without owning the device

  // In the child of a fork, where the thread does not exist: closes its descriptors.
  void abandon();

  // The descriptors to listen to have changed.
  void watch(const std::vector<int>& fds);

  void on_poll(bool empty, Time now);
  void drop_lease();
  // The owner has work that is due at `deadline`: wakes the thread if it would sleep longer.
  void need_by(Time deadline);

 private:
  void run();
  void sleep_armed(Time deadline);
  bool is_leased(Time now) const { return now.ps < lease_until_.load(std::memory_order_relaxed); }
  void disarm_all();

  Work work_;
  std::optional<os::Poller> poller_;
  std::vector<int> fds_;  // written by the owner while it holds fds_lock_
  std::mutex fds_lock_;
  os::Thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> armed_{false};
  std::atomic<std::int64_t> lease_until_{0};
  std::atomic<std::int64_t> sleeps_until_{Time::never().ps};
  int empty_polls_ = 0;  // in a row
};

}  // namespace softhca::driver
