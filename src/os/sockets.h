// What sockets of several kinds have in common here. Private to os/.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/assert.h"

namespace softhca::os {

// False: refused; errno says why.
inline bool set_option(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

// As much as is allowed: the forced option passes the system's limit, but needs a capability.
inline void enlarge_send_buffer(int fd, int bytes) {
  if (!set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, bytes))
    set_option(fd, SOL_SOCKET, SO_SNDBUF, bytes);
}
inline void enlarge_receive_buffer(int fd, int bytes) {
  if (!set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, bytes))
    set_option(fd, SOL_SOCKET, SO_RCVBUF, bytes);
}

// What is to be sent finds no room now.
inline bool is_full(int error) { return error == EAGAIN || error == ENOBUFS || error == ENOMEM; }

// An abstract UNIX name in the kernel's form.
class HostAddress {
 public:
  // REQUIRES: name.size() <= kMaxHostName.
  explicit HostAddress(std::string_view name) {
    ASSERT(name.size() < sizeof address_.sun_path);
    address_.sun_family = AF_UNIX;
    // A leading zero byte makes a name abstract; the length counts, not a zero at the end.
    std::memcpy(address_.sun_path + 1, name.data(), name.size());
    bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t bytes() const { return bytes_; }

 private:
  sockaddr_un address_{};
  socklen_t bytes_ = 0;
};

}  // namespace softhca::os
