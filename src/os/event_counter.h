// EventCounter: a descriptor that is readable as long as something waits to be taken.
//
// A kernel counter: give() adds one, take() takes one and blocks where there is none, unless the
// program has made the descriptor non-blocking with fcntl, as verbs programs do.
//
// Threads  any
#pragma once
#include "base/result.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

class EventCounter {
 public:
  static Result<EventCounter, SystemError> open();

  void give();

  // FAILS WITH EAGAIN if the descriptor is non-blocking and nothing waits; EINTR after a signal
  // whose handler does not restart calls. A cancellation point, as read(2) is.
  Result<void, SystemError> take();

  // Takes one if there is one, whatever the descriptor's mode. False if there is none.
  bool take_if_any();

  bool is_non_blocking() const;
  int fd() const { return fd_.get(); }

 private:
  explicit EventCounter(OwnedFd fd) : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

}  // namespace softhca::os
