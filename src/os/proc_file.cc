#include "os/proc_file.h"

#include <fcntl.h>
#include <unistd.h>

#include "os/owned_fd.h"

namespace softhca::os {

std::optional<std::string> read_proc_file(const char* path) {
  const OwnedFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  std::string text;
  constexpr std::size_t kChunk = std::size_t{64} << 10;
  for (;;) {
    const std::size_t before = text.size();
    text.resize(before + kChunk);
    const ssize_t n = ::read(fd.get(), text.data() + before, kChunk);
    if (n < 0) return std::nullopt;
    text.resize(before + static_cast<std::size_t>(n));
    if (n == 0) return text;
  }
}

}  // namespace softhca::os
