// HostAddress: an abstract UNIX name in the kernel's form. Used within this folder only.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/assert.h"

namespace softhca::os {

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
