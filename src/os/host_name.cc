#include "os/host_name.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "os/kernel_features.h"
#include "os/proc_file.h"
#include "os/sockets.h"
#include "os/thread.h"

namespace softhca::os {

namespace {

constexpr int kWatchersAtMost = 256;
constexpr Duration kPause = milliseconds(1);

OwnedFd name_socket() {
  return OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

}  // namespace

// It listens, and nobody ever accepts: who connects hears of the end of it.
Result<HostName, SystemError> HostName::take(std::string_view name) {
  OwnedFd fd = name_socket();
  if (!fd) return last_error("socket");
  const HostAddress address(name);
  if (bind(fd.get(), address.get(), address.bytes()) != 0) return last_error("bind");
  if (listen(fd.get(), kWatchersAtMost) != 0) return last_error("listen");
  return HostName(std::move(fd));
}

std::optional<HostName> HostName::take_in_time(std::string_view name, int attempts) {
  for (int i = 0; i < attempts; ++i) {
    auto taken = take(name);
    if (taken) return std::move(*taken);
    if (taken.error().number != EADDRINUSE) return std::nullopt;
    pause_for(kPause);
  }
  return std::nullopt;
}

namespace {

Result<OwnedFd, SystemError> connect_to(std::string_view name, ucred& holder) {
  OwnedFd fd = name_socket();
  if (!fd) return last_error("socket");
  const HostAddress address(name);
  if (connect(fd.get(), address.get(), address.bytes()) != 0) return last_error("connect");
  socklen_t bytes = sizeof holder;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &holder, &bytes) != 0)
    return last_error("getsockopt");
  return fd;
}

}  // namespace

Result<NameWatch, SystemError> NameWatch::start(std::string_view name) {
  ucred holder{};
  auto fd = connect_to(name, holder);
  if (!fd) return fd.error();
  return NameWatch(std::move(*fd), holder.uid);
}

std::optional<NameHolder> holder_of(std::string_view name) {
  ucred holder{};
  if (!connect_to(name, holder)) return std::nullopt;
  return NameHolder{.pid = static_cast<std::uint32_t>(holder.pid), .uid = holder.uid};
}

bool NameWatch::is_over() const {
  pollfd look{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return fd_ && poll(&look, 1, 0) > 0;
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
  // Who connects to a name is listed under it too.
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

bool any_is_held(std::string_view prefix, int count) {
  const OwnedFd fd = name_socket();
  if (!fd) return true;
  for (int i = 0; i < count; ++i) {
    const HostAddress address(std::string(prefix) + std::to_string(i));
    if (connect(fd.get(), address.get(), address.bytes()) == 0 || errno != ECONNREFUSED)
      return true;
  }
  return false;
}

bool names_one_user(std::uint32_t uid) {
  constexpr std::uint32_t kUsualOverflow = 65534;
  const auto text = read_proc_file("/proc/sys/kernel/overflowuid");
  const std::uint32_t overflow =
      text ? static_cast<std::uint32_t>(std::strtoul(text->c_str(), nullptr, 10)) : kUsualOverflow;
  return uid != overflow || maps_every_user(read_proc_file("/proc/self/uid_map").value_or(""));
}

std::uint32_t own_uid() { return getuid(); }

}  // namespace softhca::os
