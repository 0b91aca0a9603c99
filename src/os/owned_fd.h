// OwnedFd: a file descriptor that is closed with its owner. Move-only; -1 is none.
#pragma once
#include <cstdint>
#include <utility>

#include "base/result.h"
#include "os/system_error.h"

namespace softhca::os {

class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}  // OWNS fd
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~OwnedFd() { reset(); }

  void reset(int fd = -1);
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Which file a descriptor is open on, whatever its name.
struct FileIdentity {
  std::uint64_t device{};
  std::uint64_t inode{};
};

// FAILS WITH EBADF
Result<FileIdentity, SystemError> identity_of(int fd);

}  // namespace softhca::os
