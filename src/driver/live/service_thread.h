// ServiceThread: drives a device when no call of the program does.
//
// A program that polls drives its device itself, and an armed epoll on the socket that it polls
// would cost it a wake-up for each packet. So who polls takes the *receive lease*: while it
// lasts, the thread does not listen, and looks every kLook whether it has lapsed.
//
//   lease taken         by the kPolls-th poll in a row, less than kLease apart
//   lease lasts         kLease after the last poll, or after a post under it
//   lease dropped       at once when a completion channel is armed (the program is about to sleep)
//   lease handed back   by a poll that finds something, and taken again by the first that does
//                       not, or by a post; but only for programs that kBroken times stopped
//                       polling while packets lay there (they wait by watching their memory): it
//                       costs two system calls. It ends when kInVain times nothing came
//                       meanwhile; each time something did counts against kForgiven of them.
//
// Threads  lease calls by the owner of the device; the rest is said at each method
// See also ARCHITECTURE.md, "Who turns the crank"
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "os/poller.h"
#include "os/thread.h"

namespace softhca::driver {

class ServiceThread {
 public:
  static constexpr int kPolls = 16;
  static constexpr Duration kLease = microseconds(200);
  static constexpr Duration kLook = milliseconds(1);
  static constexpr Duration kLively = milliseconds(100);  // after a lease it looks every kLook
  static constexpr std::uint32_t kBroken = 3;
  static constexpr std::uint32_t kKept = 1024;
  static constexpr std::uint32_t kInVain = 256;
  static constexpr std::uint32_t kForgiven = 2;

  struct Driven {
    Time deadline;  // the next
    bool received{};
    bool leased{};  // nothing was done: somebody polls
  };
  struct Work {
    std::function<Time()> now;
    // Drives until nothing is left to do. Takes and gives back the device, unless it is leased.
    std::function<Driven(std::span<const int> readable)> drive;
    // Tells who sends without a descriptor whether the thread has to be woken, by one of those that
    // it watches. True if something has come before that.
    std::function<bool(bool)> set_sleeping;
  };

  // Starts the thread. False if the system grants none; then timers run only inside calls.
  bool start(const std::string& name, Work work, const std::vector<int>& fds);
  bool is_running() const { return thread_.is_running(); }
  void stop();  // by one thread, without owning the device

  // In the child of a fork, where the thread does not exist: closes its descriptors.
  void abandon();

  // The descriptors to listen to have changed.
  void watch(const std::vector<int>& fds);

  // A lease does not lapse in the middle of a call.
  void begin_call(Time now) { kept_for_call_.store(is_leased(now), std::memory_order_relaxed); }
  void end_call(Time now);
  bool is_kept() const { return kept_for_call_.load(std::memory_order_relaxed); }
  void end_poll(bool empty, Time now);
  void begin_post(Time now);
  void drop_lease();
  bool is_leased(Time now) const {
    return is_kept() || now.ps < lease_until_.load(std::memory_order_relaxed);
  }
  // The owner has work that is due at `deadline`: wakes the thread if it would sleep longer.
  void need_by(Time deadline);

 private:
  void run();
  void sleep(Duration timeout);
  void take_lease(Time now);
  void hand_back();
  void forgive();
  void arm_all();
  void disarm_all();

  Work work_;
  std::optional<os::Poller> poller_;
  struct Watched {
    int fd;
    bool armed;
  };
  static constexpr std::size_t kReadableAtMost = 16;
  std::mutex fds_lock_;
  std::vector<Watched> watched_;  // under fds_lock_
  std::vector<int> readable_;     // the thread's: what the last sleep found
  os::Thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> armed_{false};
  std::atomic<std::int64_t> lease_until_{0};
  std::atomic<bool> kept_for_call_{false};  // a call that began under the lease is under way
  std::atomic<std::int64_t> sleeps_until_{Time::never().ps};
  std::atomic<bool> hands_back_{false};
  std::atomic<bool> posts_count_{true};    // a post was always followed by a poll
  std::atomic<bool> by_post_{false};       // the lease was taken by a post
  std::atomic<std::uint32_t> in_vain_{0};  // leases handed back for nothing
  std::atomic<std::uint32_t> broken_{0};   // leases that lapsed while a packet lay there
  std::uint32_t kept_ = 0;                 // polls that found something under a lease
  int polls_ = 0;                          // in a row
  Time last_poll_{};
};

}  // namespace softhca::driver
