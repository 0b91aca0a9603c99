// EventQueue: events on their way from the device to a program that sleeps on a descriptor.
//
// Serves completion channels and the asynchronous events of a context. The descriptor is readable
// exactly while an event waits, blocks by default and honours O_NONBLOCK.
//
// Threads     any. post() is called with the device owned and returns at once
// Invariants  the counter holds as many as the queue, but for what a reader has in its hands
//             a forked child leaves the counter alone, which its parent reads too
#pragma once
#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "abi/errno_of.h"
#include "base/clock.h"
#include "os/event_counter.h"
#include "os/self.h"

namespace softhca::abi {

// Events about one object that the program has taken and has to acknowledge before the object can
// go. Counts in the fields that verbs structures have for that.
class Acknowledgements {
 public:
  Acknowledgements(pthread_mutex_t& mutex, pthread_cond_t& changed, std::uint32_t& completed)
      : mutex_(mutex), changed_(changed), completed_(completed) {}

  // To a call at `place` in the program.
  void delivered(std::uintptr_t place);
  void acknowledge(std::uint32_t events);
  // Returns when everything that was delivered has been acknowledged. `late` hears once, without
  // any lock, if that takes longer than `patience`: how many events it waits for, and where the
  // last one was obtained.
  using Late = std::function<void(std::uint32_t events, std::uintptr_t place)>;
  static constexpr Duration kPatience = seconds(1);
  void wait(const Late& late, Duration patience = kPatience);

 private:
  pthread_mutex_t& mutex_;
  pthread_cond_t& changed_;
  std::uint32_t& completed_;
  std::uint32_t delivered_ = 0;
  std::uintptr_t last_place_ = 0;
};

class EventQueue {
 public:
  static Outcome<std::unique_ptr<EventQueue>> open();

  // `about` hears of the delivery; null for events of the device. An event for which there is no
  // memory is lost.
  void post(const ibv_async_event& event, Acknowledgements* about) noexcept;

  // FAILS WITH EAGAIN, EINTR; see os/event_counter.h. A cancellation point.
  // `place`: where the program calls.
  Outcome<ibv_async_event> take(std::uintptr_t place);

  // Drops what waits about an object that is going. Nothing in a forked child, which has no use for
  // it, and where a thread of the parent may for ever be inside.
  void forget(const Acknowledgements& about);

  int fd() const { return counter_.fd(); }

 private:
  explicit EventQueue(os::EventCounter counter) : counter_(std::move(counter)) {}

  struct Waiting {
    ibv_async_event event;
    Acknowledgements* about;
  };
  os::EventCounter counter_;
  std::uint64_t born_ = os::lineage();
  std::mutex lock_;
  std::deque<Waiting> waiting_;
};

}  // namespace softhca::abi
