#include "os/owned_fd.h"

#include <unistd.h>

namespace softhca::os {

void OwnedFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

}  // namespace softhca::os
