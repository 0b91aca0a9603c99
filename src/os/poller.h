// Poller: sleeps until a descriptor is readable, somebody calls wake(), or time is up.
//
// A watched descriptor starts disarmed and costs nothing. Armed, it is reported once and is then
// disarmed again: an armed one on a socket that somebody else polls would wake this sleeper for
// every packet.
//
// Threads  wake(), arm() and disarm() may be called by any; wait() by one at a time
#pragma once
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/result.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

class Poller {
 public:
  static Result<Poller, SystemError> open();

  // REQUIRES: `fd` stays open until it is forgotten.
  Result<void, SystemError> watch(int fd);
  void forget(int fd);
  void arm(int fd);
  void disarm(int fd);

  // Makes the current or the next wait() return. Cheap if it has been called already.
  void wake();

  struct Woken {
    std::size_t readable{};  // how many of `ready` were filled in
    bool by_wake{};
  };
  // Fills in which descriptors are readable. A negative timeout lasts for ever.
  Woken wait(std::span<int> ready, Duration timeout);

 private:
  Poller(OwnedFd epoll, OwnedFd event);
  OwnedFd epoll_;
  OwnedFd event_;
};

}  // namespace softhca::os
