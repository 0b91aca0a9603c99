#include "os/peer_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/assert.h"
#include "os/processes.h"

namespace softhca::os {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

SystemError not_that_table() { return {ENOENT, "open"}; }

}  // namespace

PeerTable::PeerTable(PeerTable&& other) noexcept
    : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}
PeerTable& PeerTable::operator=(PeerTable&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
PeerTable::~PeerTable() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

Result<PeerTable, SystemError> PeerTable::create(const std::string& name, std::size_t bytes) {
  OwnedFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return last_error("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return last_error("ftruncate");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return last_error("fcntl");
  return map(std::move(fd), bytes);
}

Result<PeerTable, SystemError> PeerTable::open(std::uint32_t pid, int fd, const std::string& name,
                                               std::size_t bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  // Looked at before it is opened: opening whatever else has that number might have effects.
  std::array<char, 256> target{};
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  if (length < 0) return last_error("readlink");
  const std::string expected = "/memfd:" + name + " (deleted)";
  if (std::string(target.data(), static_cast<std::size_t>(length)) != expected)
    return not_that_table();
  OwnedFd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!opened) return last_error("open");
  struct stat file {};
  if (fstat(opened.get(), &file) != 0) return last_error("fstat");
  if (file.st_uid != geteuid() || file.st_size != static_cast<off_t>(bytes))
    return not_that_table();
  if ((fcntl(opened.get(), F_GET_SEALS) & kSeals) != kSeals) return not_that_table();
  return map(std::move(opened), bytes);
}

Result<PeerTable, SystemError> PeerTable::map(OwnedFd fd, std::size_t bytes) {
  void* const start = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd.get(), 0);
  if (start == MAP_FAILED) return last_error("mmap");
  PeerTable table;
  table.fd_ = std::move(fd);
  table.bytes_ = Bytes(static_cast<std::byte*>(start), bytes);
  // Most of it is never used, by nobody: neither a program that locks all its memory nor a core
  // dump is to make it, in the memory of whose table this is.
  munlock(start, bytes);
  madvise(start, bytes, MADV_DONTDUMP);
  if (mprotect(start, bytes, PROT_READ | PROT_WRITE) != 0) return last_error("mprotect");
  return table;
}

void PeerTable::close_file() {
  fd_.reset();
  madvise(bytes_.data(), bytes_.size(), MADV_DONTFORK);
}

namespace {

using Pieces = std::array<iovec, kPiecesAtOnce>;

// How many bytes they are together.
std::size_t fill(Pieces& pieces, std::span<const MemoryPiece> from) {
  ASSERT(from.size() <= pieces.size());
  std::size_t sum = 0;
  std::ranges::transform(from, pieces.begin(), [&](const MemoryPiece& piece) {
    sum += piece.bytes;
    return iovec{reinterpret_cast<void*>(piece.address), piece.bytes};
  });
  return sum;
}

template <auto kCall>
Result<void, SystemError> move(const char* name, std::uint32_t pid,
                               std::span<const MemoryPiece> local,
                               std::span<const MemoryPiece> remote) {
  Pieces ours;
  Pieces theirs;
  const std::size_t bytes = std::min(fill(ours, local), fill(theirs, remote));
  const ssize_t moved =
      kCall(static_cast<pid_t>(pid), ours.data(), local.size(), theirs.data(), remote.size(), 0);
  if (moved < 0) return last_error(name);
  if (static_cast<std::size_t>(moved) < bytes) return SystemError{EFAULT, name};
  return {};
}

}  // namespace

Result<void, SystemError> write_to(std::uint32_t pid, std::span<const MemoryPiece> from,
                                   std::span<const MemoryPiece> to) {
  return move<::process_vm_writev>("process_vm_writev", pid, from, to);
}

Result<void, SystemError> read_from(std::uint32_t pid, std::span<const MemoryPiece> from,
                                    std::span<const MemoryPiece> to) {
  return move<::process_vm_readv>("process_vm_readv", pid, to, from);
}

// A process's own descriptors are looked at by way of a thread: its main one may have ended.
bool has_file(std::uint32_t pid, std::uint32_t thread, int fd, std::uint64_t inode) {
  const std::string path = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread) +
                           "/fd/" + std::to_string(fd);
  struct stat file {};
  if (stat(path.c_str(), &file) == 0) return file.st_ino == inode;
  return errno != ENOENT && errno != ESRCH;
}

bool has_file(std::uint32_t pid, int fd, std::uint64_t inode) {
  if (has_file(pid, pid, fd, inode)) return true;
  return std::ranges::any_of(threads_of(static_cast<Pid>(pid)), [&](std::uint32_t thread) {
    return has_file(pid, thread, fd, inode);
  });
}

}  // namespace softhca::os
