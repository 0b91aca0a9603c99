// FrameFile: memory that a device owns, and can give to a program as pages of its own.
//
// A memfd, in slots of 2 MiB. The device reaches slot N at memory() + N * 2 MiB; the program, where
// pages of the slot were mapped into it. In the file the slots lie far apart: a program that
// lengthens such a mapping (realloc by mremap) gets fresh zeros behind it, never another one's
// bytes. Sparse: only what is used takes memory.
//
// PeerFrames is the same memory as another process of the user sees it, found by /proc/PID/fd.
//
// Threads     whoever uses the bytes agrees on that with the others
// Invariants  the file never shrinks, so what was mapped of it can always be touched
#pragma once
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/range.h"
#include "base/result.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

inline constexpr std::uint64_t kSlotBytes = kPage2M;
// Each costs up to three mappings of the 65,530 that a process may have.
inline constexpr std::uint32_t kFrameSlots = 16384;
inline constexpr const char* kFramesName = "softhca-frames";

// Where a slot begins in the file.
constexpr std::uint64_t slot_offset(std::uint32_t slot) { return std::uint64_t{slot} << 46; }
constexpr std::uint32_t slot_of_offset(std::uint64_t offset) {
  return static_cast<std::uint32_t>(offset >> 46);
}
constexpr std::uint64_t in_slot(std::uint64_t offset) { return offset & (slot_offset(1) - 1); }

class FrameFile {
 public:
  // FAILS WITH what the kernel says: ENOMEM for the address space, EFBIG for RLIMIT_FSIZE
  static Result<FrameFile, SystemError> create();
  FrameFile(FrameFile&& other) noexcept;
  FrameFile& operator=(FrameFile&&) = delete;
  ~FrameFile();

  int fd() const { return fd_.get(); }
  const FileIdentity& identity() const { return identity_; }
  // Address space of all slots; only those that are mapped may be touched.
  Bytes memory() const { return memory_; }
  std::byte* slot(std::uint32_t number) const { return memory_.data() + number * kSlotBytes; }

  // Maps a slot for the device, and gives its first `bytes` memory. FAILS WITH ENOMEM, EFAULT
  // (no memory left), EAGAIN
  Result<void, SystemError> prepare(std::uint32_t slot, std::uint64_t bytes);
  // Whether there is memory behind the first bytes of a slot: somebody has lengthened a mapping of
  // it, and written there.
  bool has_more(std::uint32_t slot, std::uint64_t bytes) const;
  // Gives memory back; it reads as zeros. REQUIRES: whole pages.
  void discard(std::uint32_t slot, std::uint64_t at, std::uint64_t bytes);

  // In the child of a fork: what is mapped stays.
  void close_file() { fd_.reset(); }
  // Likewise: the parent's memory is not reached from here any more.
  void abandon();

 private:
  FrameFile(OwnedFd fd, FileIdentity identity, Bytes memory)
      : fd_(std::move(fd)), identity_(identity), memory_(memory), is_mapped_(kFrameSlots) {}
  OwnedFd fd_;
  FileIdentity identity_;
  Bytes memory_;  // empty after a move
  std::vector<bool> is_mapped_;
};

class PeerFrames {
 public:
  // FAILS WITH ENOENT if that is not such a file of this user
  static Result<PeerFrames, SystemError> open(std::uint32_t pid, int fd);
  PeerFrames(PeerFrames&&) noexcept = default;
  PeerFrames& operator=(PeerFrames&&) = delete;
  ~PeerFrames();

  // In the child of a fork, which does not inherit what is mapped.
  void abandon();

  // Null if it cannot be mapped, or many are already.
  std::byte* slot(std::uint32_t number) {
    if (number < slots_.size() && slots_[number] != nullptr) [[likely]]
      return slots_[number];
    return map(number);
  }

 private:
  explicit PeerFrames(OwnedFd fd) : fd_(std::move(fd)) {}
  std::byte* map(std::uint32_t number);
  OwnedFd fd_;
  std::vector<std::byte*> slots_;
};

}  // namespace softhca::os
