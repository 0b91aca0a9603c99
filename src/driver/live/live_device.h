// LiveDevice: an engine of this process on a real interface; and the list of what could be opened.
//
// One per process and interface: every context that a program opens is a handle on it, and driving
// one drives all. Verbs calls drive it inline; the service thread drives what nobody else drives
// (passive targets, timers, armed channels) and sleeps otherwise.
//
// In the child of a fork the device is *left behind*: it answers questions as of the fork and does
// nothing else. The child may open it anew.
//
// Threads     every method may be called by any thread. run() owns the device while it runs.
// See also    ARCHITECTURE.md, "Who turns the crank", "Fork, exec, threads, exit"
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "driver/engine.h"
#include "driver/profile.h"
#include "os/self.h"

namespace softhca::driver {

// Devices of this network namespace in the order that programs see, after SOFTHCA_NETDEV.
// Empty only if there is no interface at all.
std::vector<DeviceDescription> list_devices();

class LiveDevice {
 public:
  // Opens the device, or gives the handle on the one that this process has open already. The last
  // handle closes it: thread joined, fds closed, memory unmapped. FAILS WITH NoInterface
  static Result<std::shared_ptr<LiveDevice>, trace::Reason> open(const DeviceDescription& which);
  ~LiveDevice();

  // Runs call(Engine&, Time now) owning the device, then lets the device do what that made due.
  // An assertion that breaks meanwhile stops the device. REQUIRES: not left behind.
  template <class Call>
  auto run(Call&& call) -> std::invoke_result_t<Call, Engine&, Time>;

  // The same for a call that posts sends: the program will poll for them.
  template <class Call>
  auto post(Call&& call) -> std::invoke_result_t<Call, Engine&, Time>;

  // The same for call(const Engine&), which only asks; also where the device was left behind.
  template <class Call>
  auto look(Call&& call) -> std::invoke_result_t<Call, const Engine&>;

  // This process was forked from the one that opened it.
  bool is_left_behind() const { return born_ != os::lineage(); }
  // Why nothing works there; the first time also on stderr.
  trace::Reason left_behind();

  // Drives the device once if nobody else is doing so: receives, timers, sends. What an empty
  // poll_cq calls. True if it did anything. REQUIRES: not left behind.
  bool drive();

  // The program is about to wait on a completion channel: whoever drives from now on, it is not
  // the program. What arming a completion queue calls.
  void expect_sleep();

  // The program waits for asynchronous events: those of the port come without its calls.
  void expect_events();

  // What the device's clock says. Takes no lock.
  Time clock_now() const { return now(); }

  const DeviceDescription& description() const;
  const Profile& profile() const;
  // Looks at the interface again: state, MTU, addresses. Nothing where it was left behind.
  void refresh_port();

 private:
  struct Inside;
  struct Registry;
  explicit LiveDevice(const DeviceDescription& which);
  void enter();  // takes the device lock
  void begin_post(Time now);
  void end_post();
  void leave();  // lets the device work, wakes the service thread if needed, gives the lock back
  Engine& engine();
  Time now() const;

  std::unique_ptr<Inside> inside_;
  std::uint64_t born_ = os::lineage();

  friend struct Ownership;
  friend struct UnderLease;
};

// Holds the device for the length of a scope.
struct Ownership {
  LiveDevice& device;
  explicit Ownership(LiveDevice& d) : device(d) { device.enter(); }
  ~Ownership() { device.leave(); }
  Ownership(const Ownership&) = delete;
  Ownership& operator=(const Ownership&) = delete;
};

// A post: a lease does not lapse meanwhile, however long it takes. REQUIRES: owned.
struct UnderLease {
  LiveDevice& device;
  UnderLease(LiveDevice& d, Time now) : device(d) { device.begin_post(now); }
  ~UnderLease() { device.end_post(); }
  UnderLease(const UnderLease&) = delete;
  UnderLease& operator=(const UnderLease&) = delete;
};

template <class Call>
auto LiveDevice::run(Call&& call) -> std::invoke_result_t<Call, Engine&, Time> {
  const Ownership owned(*this);
  return call(engine(), now());
}

template <class Call>
auto LiveDevice::post(Call&& call) -> std::invoke_result_t<Call, Engine&, Time> {
  const Ownership owned(*this);
  const Time now = this->now();
  const UnderLease lease(*this, now);
  return call(engine(), now);
}

template <class Call>
auto LiveDevice::look(Call&& call) -> std::invoke_result_t<Call, const Engine&> {
  if (is_left_behind()) return call(std::as_const(engine()));  // nobody changes it any more
  return run([&](Engine& engine, Time) { return call(std::as_const(engine)); });
}

}  // namespace softhca::driver
