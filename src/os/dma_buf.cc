#include "os/dma_buf.h"

#include <fcntl.h>
#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "base/address.h"

namespace softhca::os {
namespace {

// Interrupted, or asked to come back, as the interface says: again.
bool synchronise(int fd, bool writable, std::uint64_t edge) {
  dma_buf_sync sync{};
  sync.flags = (writable ? DMA_BUF_SYNC_RW : DMA_BUF_SYNC_READ) | edge;
  int done = 0;
  do done = ::ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
  while (done != 0 && (errno == EINTR || errno == EAGAIN));
  return done == 0;
}

}  // namespace

Result<DmaBuf, SystemError> DmaBuf::map(int fd, std::uint64_t offset, std::uint64_t bytes,
                                        bool writable) {
  OwnedFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return last_error("fcntl(dma-buf)");
  if (!synchronise(own.get(), writable, DMA_BUF_SYNC_START))
    return last_error("ioctl(DMA_BUF_IOCTL_SYNC)");
  const std::uint64_t first = offset / kPage4K * kPage4K;
  const off_t size = ::lseek(own.get(), 0, SEEK_END);
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  void* start = MAP_FAILED;
  errno = EINVAL;
  if (bytes != 0 && size > 0 && offset <= kMost && bytes <= static_cast<std::uint64_t>(size) &&
      offset <= static_cast<std::uint64_t>(size) - bytes)
    start = ::mmap(nullptr, offset - first + bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                   MAP_SHARED, own.get(), static_cast<off_t>(first));
  if (start == MAP_FAILED) {
    const SystemError failed = last_error("mmap(dma-buf)");
    synchronise(own.get(), writable, DMA_BUF_SYNC_END);
    return failed;
  }
  const Bytes pages(static_cast<std::byte*>(start), offset - first + bytes);
  return DmaBuf(std::move(own), pages, pages.subspan(offset - first), writable);
}

DmaBuf::DmaBuf(DmaBuf&& other) noexcept
    : fd_(std::move(other.fd_)),
      pages_(std::exchange(other.pages_, {})),
      bytes_(std::exchange(other.bytes_, {})),
      writable_(other.writable_),
      born_(other.born_) {}

DmaBuf::~DmaBuf() {
  if (!fd_) return;
  ::munmap(pages_.data(), pages_.size());
  // In the child of a fork the access that ends would be the parent's.
  if (born_ == lineage()) synchronise(fd_.get(), writable_, DMA_BUF_SYNC_END);
}

}  // namespace softhca::os
