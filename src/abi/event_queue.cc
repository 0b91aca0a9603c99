#include "abi/event_queue.h"

#include <cerrno>
#include <new>
#include <utility>

#include "os/clock.h"

namespace softhca::abi {

namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;

// By the clock that a condition waits with unless it was told otherwise.
timespec time_in(Duration wait) {
  const std::int64_t at_ns = os::unix_time_ns() + wait.nanoseconds();
  return {at_ns / kSecondNs, at_ns % kSecondNs};
}

}  // namespace

void Acknowledgements::delivered(std::uintptr_t place) {
  pthread_mutex_lock(&mutex_);
  ++delivered_;
  last_place_ = place;
  pthread_mutex_unlock(&mutex_);
}

void Acknowledgements::acknowledge(std::uint32_t events) {
  pthread_mutex_lock(&mutex_);
  completed_ += events;
  pthread_cond_broadcast(&changed_);
  pthread_mutex_unlock(&mutex_);
}

// Both numbers wrap; a program acknowledges at most what it has taken.
void Acknowledgements::wait(const Late& late, Duration patience) {
  pthread_mutex_lock(&mutex_);
  const timespec until = time_in(patience);
  int waited = 0;
  while (waited == 0 && completed_ != delivered_)
    waited = pthread_cond_timedwait(&changed_, &mutex_, &until);
  if (completed_ != delivered_) {
    const std::uint32_t events = delivered_ - completed_;
    const std::uintptr_t place = last_place_;
    pthread_mutex_unlock(&mutex_);
    late(events, place);
    pthread_mutex_lock(&mutex_);
  }
  while (completed_ != delivered_) pthread_cond_wait(&changed_, &mutex_);
  pthread_mutex_unlock(&mutex_);
}

Outcome<std::unique_ptr<EventQueue>> EventQueue::open() {
  auto counter = os::EventCounter::open();
  if (!counter) return Errno{counter.error().number};
  return std::unique_ptr<EventQueue>(new EventQueue(std::move(*counter)));
}

void EventQueue::post(const ibv_async_event& event, Acknowledgements* about) noexcept {
  const std::scoped_lock held(lock_);
  try {
    waiting_.push_back({event, about});
  } catch (const std::bad_alloc&) {
    return;
  }
  counter_.give();
}

Outcome<ibv_async_event> EventQueue::take(std::uintptr_t place) {
  for (;;) {
    const auto counted = counter_.take();
    const std::scoped_lock held(lock_);
    if (!counted) {
      // forget() may have made the descriptor non-blocking for a moment, under the lock.
      if (counted.error().number == EAGAIN && !counter_.is_non_blocking()) continue;
      return Errno{counted.error().number};
    }
    if (waiting_.empty()) continue;  // its object went in the meantime
    const Waiting first = waiting_.front();
    waiting_.pop_front();
    if (first.about != nullptr) first.about->delivered(place);
    return first.event;
  }
}

void EventQueue::forget(const Acknowledgements& about) {
  if (born_ != os::lineage()) return;
  const std::scoped_lock held(lock_);
  const auto dropped =
      std::erase_if(waiting_, [&](const Waiting& one) { return one.about == &about; });
  for (std::size_t i = 0; i < dropped && counter_.take_if_any(); ++i) continue;
}

}  // namespace softhca::abi
