#include "os/frames/child_wait.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace softhca::os {

Result<ChildWait, SystemError> ChildWait::open() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return last_error("pipe2");
  return ChildWait(OwnedFd(ends[0]), OwnedFd(ends[1]));
}

bool ChildWait::await(Duration at_most) {
  writes_.reset();
  pollfd end{.fd = reads_.get(), .events = POLLIN, .revents = 0};
  const int most_ms = static_cast<int>(at_most.ps / milliseconds(1).ps);
  int ready = ::poll(&end, 1, most_ms);
  while (ready < 0 && errno == EINTR) ready = ::poll(&end, 1, most_ms);
  reads_.reset();
  return ready > 0;
}

void ChildWait::done() {
  reads_.reset();
  writes_.reset();
}

}  // namespace softhca::os
