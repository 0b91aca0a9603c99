#include "os/frames/frame_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <string>

#include "base/assert.h"

namespace softhca::os {
namespace {

constexpr int kFrameSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::uint64_t kFileBytes = std::uint64_t{kFrameSlots} << 46;

// Of all peers of this process together: what is mapped counts against its limit.
constexpr int kPeerSlotsAtMost = 8192;
std::atomic<int> g_peer_slots{0};

int give_memory(std::byte* at, std::uint64_t bytes) {
  for (int tries = 0; tries < 100; ++tries) {
    if (::madvise(at, bytes, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EAGAIN && errno != EINTR) return errno;
  }
  return EAGAIN;
}

}  // namespace

Result<FrameFile, SystemError> FrameFile::create() {
  // With a limit on the sizes of files the kernel would send a signal besides.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kFileBytes)
    return SystemError{EFBIG, "ftruncate"};
  OwnedFd fd(::memfd_create(kFramesName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return last_error("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(kFileBytes)) != 0) return last_error("ftruncate");
  if (::fcntl(fd.get(), F_ADD_SEALS, kFrameSeals) != 0) return last_error("fcntl");
  const auto identity = identity_of(fd.get());
  if (!identity) return identity.error();
  // A slot begins where a huge page could, so that the IOMMU needs one entry for it.
  constexpr std::uint64_t kBytes = kFrameSlots * kSlotBytes;
  void* const start = ::mmap(nullptr, kBytes + kSlotBytes, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return last_error("mmap");
  const auto at = reinterpret_cast<std::uintptr_t>(start);
  const std::uintptr_t first = (at + kSlotBytes - 1) / kSlotBytes * kSlotBytes;
  if (first != at) ::munmap(start, first - at);
  ::munmap(reinterpret_cast<void*>(first + kBytes), at + kSlotBytes - first);
  return FrameFile(std::move(fd), *identity, {reinterpret_cast<std::byte*>(first), kBytes});
}

FrameFile::FrameFile(FrameFile&& other) noexcept
    : fd_(std::move(other.fd_)),
      identity_(other.identity_),
      memory_(std::exchange(other.memory_, {})),
      is_mapped_(std::move(other.is_mapped_)) {}

FrameFile::~FrameFile() { abandon(); }

void FrameFile::abandon() {
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
  memory_ = {};
  fd_.reset();
}

Result<void, SystemError> FrameFile::prepare(std::uint32_t number, std::uint64_t bytes) {
  ASSERT(number < kFrameSlots && bytes <= kSlotBytes);
  if (!is_mapped_[number]) {
    void* const mapped = ::mmap(slot(number), kSlotBytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd_.get(),
                                static_cast<off_t>(slot_offset(number)));
    if (mapped == MAP_FAILED) return last_error("mmap");
    is_mapped_[number] = true;
  }
  // No page behind a mapping would be a signal in the program, when it is touched.
  if (const int error = give_memory(slot(number), bytes)) return SystemError{error, "madvise"};
  return {};
}

bool FrameFile::has_more(std::uint32_t number, std::uint64_t bytes) const {
  const off_t next = ::lseek(fd_.get(), static_cast<off_t>(slot_offset(number) + bytes), SEEK_DATA);
  return next >= 0 && next < static_cast<off_t>(slot_offset(number + 1));
}

void FrameFile::discard(std::uint32_t number, std::uint64_t at, std::uint64_t bytes) {
  ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(slot_offset(number) + at), static_cast<off_t>(bytes));
}

Result<PeerFrames, SystemError> PeerFrames::open(std::uint32_t pid, int fd) {
  const SystemError not_that_file{ENOENT, "open"};
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  // Looked at before it is opened: opening whatever else has that number might have effects.
  std::array<char, 256> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  if (length < 0) return last_error("readlink");
  const std::string expected = std::string("/memfd:") + kFramesName + " (deleted)";
  if (std::string(target.data(), static_cast<std::size_t>(length)) != expected)
    return not_that_file;
  OwnedFd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!opened) return last_error("open");
  struct stat file {};
  if (::fstat(opened.get(), &file) != 0) return last_error("fstat");
  if (file.st_uid != ::geteuid() || file.st_size != static_cast<off_t>(kFileBytes) ||
      (::fcntl(opened.get(), F_GET_SEALS) & kFrameSeals) != kFrameSeals)
    return not_that_file;
  return PeerFrames(std::move(opened));
}

PeerFrames::~PeerFrames() {
  for (std::byte* const mapped : slots_)
    if (mapped != nullptr) {
      ::munmap(mapped, kSlotBytes);
      --g_peer_slots;
    }
}

void PeerFrames::abandon() {
  fd_.reset();
  g_peer_slots -=
      static_cast<int>(slots_.size()) - static_cast<int>(std::ranges::count(slots_, nullptr));
  slots_.clear();
}

std::byte* PeerFrames::map(std::uint32_t number) {
  if (number >= kFrameSlots || !fd_ || g_peer_slots.load() >= kPeerSlotsAtMost) return nullptr;
  if (slots_.size() <= number) slots_.resize(number + 1);
  void* const mapped =
      ::mmap(nullptr, kSlotBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(),
             static_cast<off_t>(slot_offset(number)));
  if (mapped == MAP_FAILED) return nullptr;
  ::madvise(mapped, kSlotBytes, MADV_DONTFORK);
  ++g_peer_slots;
  return slots_[number] = static_cast<std::byte*>(mapped);
}

}  // namespace softhca::os
