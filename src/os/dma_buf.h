// DmaBuf: memory of another device's driver that its descriptor stands for, mapped into this
// process.
//
// The mapping begins with the exporter's leave for the processor to read and write, and ends with
// giving that back.
#pragma once
#include <cstdint>
#include <utility>

#include "base/bytes.h"
#include "base/result.h"
#include "os/owned_fd.h"
#include "os/self.h"
#include "os/system_error.h"

namespace softhca::os {

class DmaBuf {
 public:
  // Maps the whole pages around [offset, +bytes) of the buffer. The descriptor stays the caller's.
  // FAILS WITH EBADF; ENOTTY: it is no dma-buf; EINVAL: the buffer is shorter; what mmap says
  static Result<DmaBuf, SystemError> map(int fd, std::uint64_t offset, std::uint64_t bytes,
                                         bool writable);
  DmaBuf(DmaBuf&& other) noexcept;
  DmaBuf& operator=(DmaBuf&&) = delete;
  ~DmaBuf();

  Bytes bytes() const { return bytes_; }  // what was asked for

 private:
  DmaBuf(OwnedFd fd, Bytes pages, Bytes bytes, bool writable)
      : fd_(std::move(fd)), pages_(pages), bytes_(bytes), writable_(writable) {}

  OwnedFd fd_;  // a duplicate
  Bytes pages_;
  Bytes bytes_;
  bool writable_;
  std::uint64_t born_ = lineage();
};

}  // namespace softhca::os
