#include "driver/live/service_thread.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "os/clock.h"

namespace softhca::driver {
namespace {

// A device that has nothing to do, and what its thread did.
class Device {
 public:
  ~Device() {
    let_go();
    thread.stop();
  }
  bool start() {
    return thread.start("test",
                        {.now = [this] { return clock.now(); },
                         .drive = [this](std::span<const int>) { return drive(); },
                         .set_sleeping = [this](bool sleeps) { return set_sleeping(sleeps); }},
                        {});
  }
  // Whether its thread drove so often, and whether it said that it sleeps, within some seconds.
  bool was_driven(int times) {
    return comes([&] { return driven_ >= times; });
  }
  bool sleeps() {
    return comes([&] { return sleeping_; });
  }
  // As who sends does: it is about to wake it, once.
  void take_notice() {
    const std::lock_guard lock(lock_);
    sleeping_ = false;
  }
  void leave_something() {
    const std::lock_guard lock(lock_);
    something_ = true;
  }
  // The next drive goes on until it is let go.
  void hold() {
    const std::lock_guard lock(lock_);
    held_ = true;
  }
  void let_go() {
    const std::lock_guard lock(lock_);
    held_ = false;
    changed_.notify_all();
  }
  void poll_in_vain() { thread.end_poll(true, clock.now()); }

  os::Clock clock;
  ServiceThread thread;

 private:
  template <class Condition>
  bool comes(Condition&& condition) {
    std::unique_lock lock(lock_);
    return changed_.wait_for(lock, std::chrono::seconds(20), condition);
  }
  ServiceThread::Driven drive() {
    std::unique_lock lock(lock_);
    ++driven_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
    return {.deadline = Time::never()};
  }
  bool set_sleeping(bool sleeps) {
    const std::lock_guard lock(lock_);
    sleeping_ = sleeps;
    changed_.notify_all();
    return sleeps && std::exchange(something_, false);
  }

  std::mutex lock_;
  std::condition_variable changed_;
  int driven_ = 0;
  bool held_ = false;
  bool sleeping_ = false;
  bool something_ = false;
};

// Its poll found the message and the mail that was to wake the thread, which sleeps on.
TEST(ServiceThread, IsWokenAgainAfterAPollTookWhatWasToWakeIt) {
  Device device;
  ASSERT_TRUE(device.start());
  ASSERT_TRUE(device.sleeps());
  device.take_notice();
  device.poll_in_vain();
  EXPECT_TRUE(device.sleeps());
  device.take_notice();
  device.leave_something();
  device.poll_in_vain();
  EXPECT_TRUE(device.was_driven(2));
}

// The lease was taken while it drove: it does not look soon by itself.
TEST(ServiceThread, ThatDrivesHearsOfADeadlineUnderALease) {
  Device device;
  device.hold();
  ASSERT_TRUE(device.start());
  ASSERT_TRUE(device.was_driven(1));
  while (!device.thread.is_leased(device.clock.now())) device.poll_in_vain();
  device.thread.begin_call(device.clock.now());
  device.thread.need_by(device.clock.now() + milliseconds(20));
  device.thread.end_call(device.clock.now());
  device.let_go();
  EXPECT_TRUE(device.was_driven(2));
}

}  // namespace
}  // namespace softhca::driver
