// HostName: a name that one process of this host (network namespace) holds at a time.
//
// Linux's abstract UNIX names: nothing on disk, binding one is exclusive whatever the user, and it
// is free again as soon as the last process that holds it is gone.
#pragma once
#include <cstdint>
#include <optional>
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
  // For a name that everybody holds for moments only: tries once in a millisecond. Nothing if
  // somebody keeps it, as one who is stopped does.
  static std::optional<HostName> take_in_time(std::string_view name, int attempts = 1000);

  void release() { fd_.reset(); }
  bool is_held() const { return static_cast<bool>(fd_); }

 private:
  explicit HostName(OwnedFd fd) : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

// Notices when a name is free again, whoever held it. The holder does nothing for it.
class NameWatch {
 public:
  NameWatch() = default;  // none

  // FAILS WITH ECONNREFUSED if nobody has the name, EAGAIN if too many watch it
  static Result<NameWatch, SystemError> start(std::string_view name);
  void stop() { fd_.reset(); }

  bool is_running() const { return static_cast<bool>(fd_); }
  bool is_over() const;                       // the name was given up, or its holder died
  std::uint32_t uid() const { return uid_; }  // of the holder
  int fd() const { return fd_.get(); }        // readable when it is over

 private:
  NameWatch(OwnedFd fd, std::uint32_t uid) : fd_(std::move(fd)), uid_(uid) {}
  OwnedFd fd_;
  std::uint32_t uid_ = 0;
};

// Who has a name. Nothing if nobody has, or the kernel does not tell. It notices that somebody has
// looked, and no more.
struct NameHolder {
  std::uint32_t pid{};  // 0: in no PID namespace that this process sees
  std::uint32_t uid{};
};
std::optional<NameHolder> holder_of(std::string_view name);

// Every name in use that starts so, each once, in order. Empty also where procfs does not tell.
std::vector<std::string> host_names(std::string_view prefix);

// Whether somebody holds one of the names `prefix`0, `prefix`1 and so on, of which there are so
// many. Takes much less than to read all names.
bool any_is_held(std::string_view prefix, int count);

// False if several users of this machine may appear under that uid here: those that a user
// namespace has no number for.
bool names_one_user(std::uint32_t uid);

// The real user of this process, as other processes see it in what it sends.
std::uint32_t own_uid();

}  // namespace softhca::os
