// Which file a descriptor is open on, whatever its name.
#pragma once
#include <cstdint>

#include "base/result.h"
#include "os/system_error.h"

namespace softhca::os {

struct FileIdentity {
  std::uint64_t device{};
  std::uint64_t inode{};
};

// FAILS WITH EBADF
Result<FileIdentity, SystemError> identity_of(int fd);

}  // namespace softhca::os
