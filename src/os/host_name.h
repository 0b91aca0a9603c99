// HostName: a name that one process of this host (network namespace) holds at a time.
//
// Linux's abstract UNIX names: nothing on disk, binding one is exclusive, and it is free again as
// soon as the last process that holds it is gone.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

// The longest name that Linux takes.
inline constexpr std::size_t kMaxHostName = 107;

class HostName {
 public:
  HostName() = default;  // none

  // FAILS WITH EADDRINUSE if the name is taken.
  static Result<HostName, SystemError> take(std::string_view name);

  void release() { fd_.reset(); }
  bool is_held() const { return static_cast<bool>(fd_); }

 private:
  explicit HostName(OwnedFd fd) : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

// Every name in use that starts so. Empty also where procfs does not tell.
std::vector<std::string> host_names(std::string_view prefix);

// The real user of this process, as other processes see it in what it sends.
std::uint32_t own_uid();

}  // namespace softhca::os
