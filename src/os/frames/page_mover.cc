#include "os/frames/page_mover.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/assert.h"

namespace softhca::os {
namespace {

constexpr std::uint64_t kFeatures =
    UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
// What a call of the mover writes of its stack, and of the caller's frame, at most.
constexpr std::uint64_t kStackBelow = 65536, kStackAbove = 256;
// The C library's records of a thread, from the thread pointer on (glibc 2.36: 2,304).
constexpr std::uint64_t kThreadRecords = 2304;

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

void* start_of(Range<VirtSpace> pages) { return reinterpret_cast<void*>(pages.start.value); }

OwnedFd open_userfaultfd() {
  OwnedFd fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  if (!fd) {
    const OwnedFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
    if (device) fd.reset(::ioctl(device.get(), USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK));
  }
  uffdio_api api{.api = UFFD_API, .features = kFeatures, .ioctls = 0};
  if (!fd || ::ioctl(fd.get(), UFFDIO_API, &api) != 0) return {};
  return fd;
}

// Private memory with the bytes, somewhere; null if there is none.
void* private_copy(ConstBytes from, MappingRights rights) {
  void* const copy = ::mmap(nullptr, from.size(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (copy == MAP_FAILED) return nullptr;
  std::memcpy(copy, from.data(), from.size());
  const int wanted = (rights.readable ? PROT_READ : 0) | (rights.writable ? PROT_WRITE : 0);
  if (wanted != (PROT_READ | PROT_WRITE)) ::mprotect(copy, from.size(), wanted);
  return copy;
}

}  // namespace

PageMover PageMover::open(const GuardedCopy& copy) { return PageMover(copy, open_userfaultfd()); }

bool PageMover::may_hold_writers() { return static_cast<bool>(open_userfaultfd()); }

bool PageMover::is_in_use(Range<VirtSpace> range) {
  const auto frame = reinterpret_cast<std::uint64_t>(__builtin_frame_address(0));
  const auto thread = reinterpret_cast<std::uint64_t>(__builtin_thread_pointer());
  const auto variable =
      reinterpret_cast<std::uint64_t>(&errno);  // before the records, or elsewhere
  return range.overlaps({{frame - kStackBelow}, kStackBelow + kStackAbove}) ||
         range.overlaps({{thread}, kThreadRecords}) || range.overlaps({{variable}, sizeof errno});
}

// From here on nobody writes to the pages.
Result<void, SystemError> PageMover::hold(Range<VirtSpace> pages) {
  if (!faults_) return {};
  uffdio_register wanted{.range = {.start = pages.start.value, .len = pages.length},
                         .mode = UFFDIO_REGISTER_MODE_WP,
                         .ioctls = 0};
  if (::ioctl(faults_.get(), UFFDIO_REGISTER, &wanted) != 0) return last_error("userfaultfd");
  uffdio_writeprotect protect{.range = wanted.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
  if (::ioctl(faults_.get(), UFFDIO_WRITEPROTECT, &protect) == 0) return {};
  const SystemError error = last_error("userfaultfd");
  let_go(pages, true);
  return error;
}

// Who waited tries again, and writes to the new pages, or to the old ones.
void PageMover::let_go(Range<VirtSpace> pages, bool are_old) {
  if (!faults_) return;
  uffdio_range range{.start = pages.start.value, .len = pages.length};
  if (are_old) {
    uffdio_writeprotect free{.range = range, .mode = 0};
    ::ioctl(faults_.get(), UFFDIO_WRITEPROTECT, &free);
    ::ioctl(faults_.get(), UFFDIO_UNREGISTER, &range);
  }
  ::ioctl(faults_.get(), UFFDIO_WAKE, &range);
}

Result<void, SystemError> PageMover::to_file(Range<VirtSpace> pages, int file, std::uint64_t offset,
                                             Bytes alias) {
  ASSERT(alias.size() == pages.length);
  const SignalsBlocked blocked;
  // Pages of its own, also where it had only read so far: those that are not there would not be
  // protected.
  if (::madvise(start_of(pages), pages.length, MADV_POPULATE_WRITE) != 0)
    return last_error("madvise");
  if (auto held = hold(pages); !held) return held;
  const MemoryPiece piece{pages.start.value, pages.length};
  const bool copied = copy_->from_memory({&piece, 1}, alias).fault == CopyFault::None;
  const bool mapped = copied && ::mmap(start_of(pages), pages.length, PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_FIXED | MAP_POPULATE | MAP_NORESERVE, file,
                                       static_cast<off_t>(offset)) != MAP_FAILED;
  const SystemError error = copied ? last_error("mmap") : SystemError{EFAULT, "copy"};
  let_go(pages, !mapped);
  if (!mapped) return error;
  return {};
}

Result<void, SystemError> PageMover::to_private(Range<VirtSpace> pages, ConstBytes from,
                                                MappingRights rights) {
  ASSERT(from.size() == pages.length);
  const SignalsBlocked blocked;
  if (auto held = hold(pages); !held) return held;
  void* const fresh = private_copy(from, rights);
  const bool moved =
      fresh != nullptr && ::mremap(fresh, pages.length, pages.length, MREMAP_MAYMOVE | MREMAP_FIXED,
                                   start_of(pages)) != MAP_FAILED;
  const SystemError error = last_error("mremap");
  if (!moved && fresh != nullptr) ::munmap(fresh, pages.length);
  let_go(pages, !moved);
  if (!moved) return error;
  return {};
}

}  // namespace softhca::os
