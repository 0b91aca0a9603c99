#include "os/host_name.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "os/host_address.h"
#include "os/proc_file.h"

namespace softhca::os {

Result<HostName, SystemError> HostName::take(std::string_view name) {
  OwnedFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return last_error("socket");
  const HostAddress address(name);
  if (bind(fd.get(), address.get(), address.bytes()) != 0) return last_error("bind");
  return HostName(std::move(fd));
}

std::vector<std::string> host_names(std::string_view prefix) {
  std::vector<std::string> names;
  const auto listing = read_proc_file("/proc/thread-self/net/unix");
  if (!listing) return names;
  // The name is the last field; its leading zero byte is printed as '@'.
  const std::string wanted = " @" + std::string(prefix);
  for (std::size_t at = listing->find(wanted); at != std::string::npos;) {
    const std::size_t start = at + 2;
    const std::size_t end = std::min(listing->find('\n', start), listing->size());
    names.push_back(listing->substr(start, end - start));
    at = listing->find(wanted, end);
  }
  return names;
}

std::uint32_t own_uid() { return getuid(); }

}  // namespace softhca::os
