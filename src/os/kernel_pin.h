// KernelPins: keeps pages of this process where they are, by the best means this kernel grants.
//
// IoUring  io_uring's registered buffers: the long-term pin that a kernel driver takes, for any
//          user, within the memlock limit. It nests, MADV_DONTNEED keeps working, and the frame
//          stays even if the program unmaps it: fixed reads and writes still reach the old one.
//          Needs writable pages.
// Mlock    mlock: keeps pages in RAM. Does not nest (one munlock undoes all), MADV_DONTNEED
//          refuses locked pages, and an unmapped page is simply gone.
// Counted  nothing is asked of the kernel.
//
// Threads     owned by the device's owner; no locks. A forked child may only abandon() it.
// Invariants  (1) what was pinned is released by unpin() or by the end of this object
//             (2) the object holds at most three descriptors, all close-on-exec
// See also    host/pin.h, which counts per page
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"

namespace softhca::os {

enum class PinBackend : std::uint8_t { IoUring, Mlock, Counted };
std::string_view pin_backend_name(PinBackend backend);

enum class PinError : std::uint8_t {
  Limit,        // RLIMIT_MEMLOCK is reached
  NoSlots,      // the backend's table is full
  NotPinnable,  // hole, read-only or special pages: this backend cannot pin them
};

// What one pin() holds.
struct HeldPin {
  std::uintptr_t address{};
  std::size_t bytes{};
  std::uint32_t slot_list = 0;  // IoUring: which slots; others: 0
};

// Bytes that this process may lock or pin, UINT64_MAX without a limit (CAP_IPC_LOCK). The kernel
// counts io_uring's pins per user and mlock's per process, each against this number.
std::uint64_t memlock_limit();

// True iff any of the pages lies in a locked mapping (mlock, by whomever).
bool is_locked(std::uintptr_t address, std::size_t bytes);

class PinRing;  // os/pin_ring.h

class KernelPins {
 public:
  // `preferred`, or if that is not available (or not given) the best that is.
  static KernelPins open(std::optional<PinBackend> preferred = std::nullopt);
  KernelPins(KernelPins&&) noexcept;
  KernelPins& operator=(KernelPins&&) noexcept;
  ~KernelPins();

  PinBackend backend() const { return backend_; }
  // Why a better backend was not taken: "" or a short text for `doctor`.
  std::string_view why_not_better() const { return why_not_better_; }

  // Pins the pages that the bytes touch, all or none. REQUIRES: bytes > 0, no wrap.
  // Mlock: asking again for locked pages is harmless; if the call fails, what it may have locked is
  // unlocked, so ask for pages that are locked already in a call of their own.
  Result<HeldPin, PinError> pin(std::uintptr_t address, std::size_t bytes);

  // REQUIRES: `held` came from pin() and was not released. Mlock and Counted: a part of what was
  // pinned, as {address, bytes}, may be released alone.
  void unpin(const HeldPin& held);

  // IoUring only: copies out of, or into, the frames that were pinned, whatever is mapped at their
  // address now. False if the kernel refused. REQUIRES: offset + size within what is held.
  bool copy_from_pinned(const HeldPin& held, std::size_t offset, Bytes to);
  bool copy_to_pinned(const HeldPin& held, std::size_t offset, ConstBytes from);

  // In the child of a fork: closes what it inherited. The parent's pins stay; the child has none.
  void abandon();

  // Mlock only: whether the bytes are still the mapping that was locked (false: gone or replaced).
  bool still_locked(std::uintptr_t address, std::size_t bytes) const;

 private:
  explicit KernelPins(PinBackend backend);

  PinBackend backend_;
  std::string_view why_not_better_;
  std::unique_ptr<PinRing> ring_;  // IoUring only
};

}  // namespace softhca::os
