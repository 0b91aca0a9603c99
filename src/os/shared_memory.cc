#include "os/shared_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/assert.h"

namespace softhca::os {

namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

Result<SharedMemory, int> SharedMemory::create(const char* name, std::size_t bytes) {
  OwnedFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0)
    return errno;
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (start == MAP_FAILED) return errno;
  return SharedMemory(std::move(fd), static_cast<std::byte*>(start), bytes, true);
}

Result<SharedMemory, int> SharedMemory::create_file(const std::string& path, std::size_t bytes,
                                                    std::size_t usable) {
  constexpr int kNamesAtMost = 100;
  constexpr int kHow = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  OwnedFd fd(::open(path.c_str(), kHow, 0644));
  for (int i = 2; !fd && errno == EEXIST && i <= kNamesAtMost; ++i)
    fd = OwnedFd(::open((path + "." + std::to_string(i)).c_str(), kHow, 0644));
  if (!fd) return errno;
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(usable)); error != 0)
    return error;
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (start == MAP_FAILED) return errno;
  return SharedMemory(std::move(fd), static_cast<std::byte*>(start), bytes, true);
}

bool SharedMemory::make_usable(std::uint64_t at, std::uint64_t bytes) {
  return ::posix_fallocate(fd_.get(), static_cast<off_t>(at), static_cast<off_t>(bytes)) == 0;
}

void SharedMemory::cut(std::uint64_t bytes) {
  static_cast<void>(!::ftruncate(fd_.get(), static_cast<off_t>(bytes)));
}

Result<SharedMemory, int> SharedMemory::attach(OwnedFd fd) {
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0) return errno;
  if (!S_ISREG(file.st_mode) || file.st_size <= 0) return EINVAL;
  const auto bytes = static_cast<std::size_t>(file.st_size);
  void* start = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (start == MAP_FAILED) return errno;
  return SharedMemory(std::move(fd), static_cast<std::byte*>(start), bytes, false);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      start_(std::exchange(other.start_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      writable_(other.writable_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(start_, other.start_);
  std::swap(size_, other.size_);
  std::swap(writable_, other.writable_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (start_ != nullptr) ::munmap(start_, size_);
}

bool SharedMemory::is_sealed() const {
  return (::fcntl(fd_.get(), F_GET_SEALS) & kSizeSeals) == kSizeSeals;
}

void SharedMemory::close_file() {
  fd_.reset();
  ::madvise(start_, size_, MADV_DONTFORK);
}

void SharedMemory::abandon() {
  fd_.reset();
  if (start_ == nullptr) return;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  const int rights = PROT_READ | (writable_ ? PROT_WRITE : 0);
  if (::mmap(start_, size_, rights, kFlags, -1, 0) != MAP_FAILED) return;
  ::munmap(start_, size_);
  start_ = nullptr;
  size_ = 0;
}

Bytes SharedMemory::bytes() const {
  ASSERT(writable_ || size_ == 0);
  return {start_, size_};
}

}  // namespace softhca::os
