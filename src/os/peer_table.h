// PeerTable: a small piece of memory that other processes of this user can find and change.
//
// A memfd; others reach it through /proc/PID/fd/N, which needs the same user but no help of the
// process that made it. It cannot shrink, so that mapping it is safe.
//
// Threads  whoever uses the bytes agrees on that with the other processes
#pragma once
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

class PeerTable {
 public:
  PeerTable() = default;  // none
  PeerTable(PeerTable&& other) noexcept;
  PeerTable& operator=(PeerTable&& other) noexcept;
  ~PeerTable();

  // Zeros. `name` shows in /proc and is checked by open().
  static Result<PeerTable, SystemError> create(const std::string& name, std::size_t bytes);
  // FAILS WITH ENOENT if it is not that table of this user with that size.
  static Result<PeerTable, SystemError> open(std::uint32_t pid, int fd, const std::string& name,
                                             std::size_t bytes);

  bool is_open() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }
  Bytes bytes() const { return bytes_; }

 private:
  static Result<PeerTable, SystemError> map(OwnedFd fd, std::size_t bytes);
  OwnedFd fd_;
  Bytes bytes_;
};

}  // namespace softhca::os
