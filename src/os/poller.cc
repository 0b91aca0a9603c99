#include "os/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

namespace softhca::os {

namespace {

constexpr std::size_t kMaxEvents = 64;

void change(int epoll, int operation, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll, operation, fd, &event);
}

// Rounded up, so that a sleeper never wakes just before its deadline and spins.
int milliseconds_of(Duration timeout) {
  if (timeout < Duration{}) return -1;
  constexpr std::int64_t kPsPerMs = 1'000'000'000;
  const std::int64_t ms = timeout.ps / kPsPerMs + (timeout.ps % kPsPerMs != 0 ? 1 : 0);
  return static_cast<int>(std::min<std::int64_t>(ms, std::numeric_limits<int>::max()));
}

}  // namespace

Poller::Poller(OwnedFd epoll, OwnedFd event) : epoll_(std::move(epoll)), event_(std::move(event)) {}

Result<Poller, SystemError> Poller::open() {
  OwnedFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return last_error("epoll_create1");
  OwnedFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return last_error("eventfd");
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.fd = event.get();
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, event.get(), &wanted) != 0)
    return last_error("epoll_ctl");
  return Poller(std::move(epoll), std::move(event));
}

Result<void, SystemError> Poller::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLONESHOT;  // nothing asked for: disarmed
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return last_error("epoll_ctl");
  return {};
}

void Poller::forget(int fd) { change(epoll_.get(), EPOLL_CTL_DEL, fd, 0); }
void Poller::arm(int fd) { change(epoll_.get(), EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT); }
void Poller::disarm(int fd) { change(epoll_.get(), EPOLL_CTL_MOD, fd, EPOLLONESHOT); }

void Poller::wake() {
  const std::uint64_t one = 1;
  // EAGAIN: the counter is full, which is awake enough.
  static_cast<void>(!::write(event_.get(), &one, sizeof one));
}

Poller::Woken Poller::wait(std::span<int> ready, Duration timeout) {
  std::array<epoll_event, kMaxEvents> events;
  // One place more, for the eventfd.
  const int most = static_cast<int>(std::min(ready.size() + 1, kMaxEvents));
  const int count = epoll_wait(epoll_.get(), events.data(), most, milliseconds_of(timeout));
  Woken woken;
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<std::size_t>(i)].data.fd;
    if (fd == event_.get()) {
      std::uint64_t calls = 0;
      static_cast<void>(!::read(event_.get(), &calls, sizeof calls));
      woken.by_wake = true;
    } else if (woken.readable < ready.size()) {
      ready[woken.readable++] = fd;
    } else {
      arm(fd);  // no room: it will be reported again
    }
  }
  return woken;
}

}  // namespace softhca::os
