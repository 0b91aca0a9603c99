// What processes of one user reach of each other's memory, without each other's help.
//
// PeerTable          a small piece that others can find and change: a memfd, reached through
//                    /proc/PID/fd/N. It cannot shrink, so that mapping it is safe.
// read_from, write_to  ordinary memory of the other one, as a debugger would (process_vm_*)
//
// Threads  whoever uses the bytes agrees on that with the other processes
// See also os/guarded_copy.h: the same for one's own memory
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "os/guarded_copy.h"
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
  // What is mapped stays so, and children do not inherit it.
  void close_file();
  Bytes bytes() const { return bytes_; }

 private:
  static Result<PeerTable, SystemError> map(OwnedFd fd, std::size_t bytes);
  OwnedFd fd_;
  Bytes bytes_;
};

// Moves bytes out of this process into another one, or back, as far as the shorter list goes. No
// program is disturbed by it, running or not. REQUIRES: at most kPiecesAtOnce pieces each.
// FAILS WITH EPERM where the kernel lets no debugger in, ESRCH when it has ended, EFAULT where a
// page is not there on either side; some bytes may have moved then.
inline constexpr std::size_t kPiecesAtOnce = 64;
Result<void, SystemError> write_to(std::uint32_t pid, std::span<const MemoryPiece> from,
                                   std::span<const MemoryPiece> to);
Result<void, SystemError> read_from(std::uint32_t pid, std::span<const MemoryPiece> from,
                                    std::span<const MemoryPiece> to);

// Whether that thread of that process still has that file open: false when it has ended, and when
// its numbers are somebody else's by now.
bool has_file(std::uint32_t pid, std::uint32_t thread, int fd, std::uint64_t inode);
// The same of a process, whichever of its threads still run.
bool has_file(std::uint32_t pid, int fd, std::uint64_t inode);

}  // namespace softhca::os
