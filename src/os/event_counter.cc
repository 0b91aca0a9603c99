#include "os/event_counter.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace softhca::os {

Result<EventCounter, SystemError> EventCounter::open() {
  OwnedFd fd(::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC));
  if (!fd) return last_error("eventfd");
  return EventCounter(std::move(fd));
}

void EventCounter::give() {
  const std::uint64_t one = 1;
  // Can only fail when 2^64 - 2 wait: the descriptor is readable then, which is all that matters.
  [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof one);
}

Result<void, SystemError> EventCounter::take() {
  std::uint64_t one = 0;
  if (::read(fd_.get(), &one, sizeof one) < 0) return last_error("read");
  return {};
}

bool EventCounter::take_if_any() {
  std::uint64_t one = 0;
  const iovec place{&one, sizeof one};
  const auto got = ::preadv2(fd_.get(), &place, 1, -1, RWF_NOWAIT);
  if (got >= 0 || errno == EAGAIN) return got >= 0;
  // Before Linux 5.8 an eventfd does not know RWF_NOWAIT.
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
  const bool taken = ::read(fd_.get(), &one, sizeof one) >= 0;
  ::fcntl(fd_.get(), F_SETFL, flags);
  return taken;
}

bool EventCounter::is_non_blocking() const {
  return (::fcntl(fd_.get(), F_GETFL) & O_NONBLOCK) != 0;
}

}  // namespace softhca::os
