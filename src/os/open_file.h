// Opens a file that another program of this user has open.
#pragma once
#include <cstdint>
#include <optional>

#include "os/owned_fd.h"

namespace softhca::os {

// Read-only; needs nothing of the other program, not even that it runs. Nothing if it is gone or
// may not be looked at.
std::optional<OwnedFd> open_file_of(std::int32_t pid, int fd);

}  // namespace softhca::os
