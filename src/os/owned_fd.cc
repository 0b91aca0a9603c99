#include "os/owned_fd.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace softhca::os {

void OwnedFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Result<FileIdentity, SystemError> identity_of(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return SystemError{errno, "fstat"};
  return FileIdentity{.device = status.st_dev, .inode = status.st_ino};
}

}  // namespace softhca::os
