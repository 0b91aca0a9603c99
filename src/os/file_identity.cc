#include "os/file_identity.h"

#include <sys/stat.h>

#include <cerrno>

namespace softhca::os {

Result<FileIdentity, SystemError> identity_of(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return SystemError{errno, "fstat"};
  return FileIdentity{.device = status.st_dev, .inode = status.st_ino};
}

}  // namespace softhca::os
