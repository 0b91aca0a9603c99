// SharedMemory: a mapping of a memfd. Sparse: pages exist from their first use on.
//
// The owner creates it and passes the descriptor (SCM_RIGHTS); a peer attaches and reads. Nothing
// of it is left in any file system, and it is gone with its last mapping and descriptor. Or it is
// that of a new file, which stays, with what was written to it, however the process ends.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "os/owned_fd.h"

namespace softhca::os {

// A memfd as a file, empty. -1 with errno. It allocates nothing.
inline int memory_descriptor(const char* name, bool close_on_exec) {
  return ::memfd_create(name, close_on_exec ? MFD_CLOEXEC : 0);
}

class SharedMemory {
 public:
  // Zeroed, readable and writable; its size stays. `name` shows in /proc/PID/maps. FAILS WITH
  // errno.
  static Result<SharedMemory, int> create(const char* name, std::size_t bytes);

  // A new file with room for `bytes`, of which the first `usable` are there. What is touched beyond
  // them has to be made usable before. Where there is a file of that name, it is PATH.2 and so on.
  // FAILS WITH errno
  static Result<SharedMemory, int> create_file(const std::string& path, std::size_t bytes,
                                               std::size_t usable);
  // Of a file: gives [at, +bytes) its place on the disk; false if there is none.
  bool make_usable(std::uint64_t at, std::uint64_t bytes);
  // Of a file: cuts off what lies behind `bytes`. REQUIRES: nothing there is touched any more.
  void cut(std::uint64_t bytes);

  // Maps somebody else's memory for reading. OWNS fd, also when it fails. FAILS WITH errno;
  // EINVAL for a descriptor of another kind or an empty one.
  static Result<SharedMemory, int> attach(OwnedFd fd);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // Its size cannot change, so that it stays safe to read. REQUIRES: the file was not closed.
  bool is_sealed() const;
  // What is mapped stays so, and children do not inherit it.
  void close_file();

  // In the child of a fork: closes the descriptor and puts private zeros where the memory was, so
  // that nothing that is done here reaches the parent.
  void abandon();

  // REQUIRES: created here, not attached.
  Bytes bytes() const;
  ConstBytes read_only_bytes() const { return {start_, size_}; }
  bool writable() const { return writable_; }
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(OwnedFd fd, std::byte* start, std::size_t size, bool writable)
      : fd_(std::move(fd)), start_(start), size_(size), writable_(writable) {}

  OwnedFd fd_;
  std::byte* start_ = nullptr;  // null after a move
  std::size_t size_ = 0;
  bool writable_ = false;
};

}  // namespace softhca::os
