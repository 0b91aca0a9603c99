#include "os/proc_file.h"

#include <fcntl.h>
#include <unistd.h>

#include "os/owned_fd.h"

namespace softhca::os {

std::optional<std::string> read_proc_file(const char* path) {
  const OwnedFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  // A read gives a page at most, however much there is.
  constexpr std::size_t kPage = 4096;
  std::string text(16 * kPage, '\0');
  std::size_t used = 0;
  for (;;) {
    if (text.size() - used < kPage) text.resize(2 * text.size());
    const ssize_t n = ::read(fd.get(), text.data() + used, text.size() - used);
    if (n < 0) return std::nullopt;
    used += static_cast<std::size_t>(n);
    if (n > 0) continue;
    text.resize(used);
    return text;
  }
}

}  // namespace softhca::os
