#include "os/open_file.h"

#include <fcntl.h>

#include <string>

namespace softhca::os {

std::optional<OwnedFd> open_file_of(std::int32_t pid, int fd) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  OwnedFd opened(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened) return std::nullopt;
  return opened;
}

}  // namespace softhca::os
