#include "os/kernel_pin.h"

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/address.h"
#include "base/assert.h"
#include "os/pin_ring.h"

namespace softhca::os {
namespace {

struct PageSpan {
  void* start;
  std::size_t bytes;
};

PageSpan pages_around(std::uintptr_t address, std::size_t bytes) {
  const std::uintptr_t first = address & ~(kPage4K - 1);
  const std::uintptr_t end = (address + bytes + kPage4K - 1) & ~(kPage4K - 1);
  return {reinterpret_cast<void*>(first), end - first};
}

// The kernel asks for the capability in the initial user namespace; root of another one has it in
// name only.
bool in_initial_user_namespace() {
  std::FILE* file = std::fopen("/proc/self/uid_map", "re");
  if (file == nullptr) return true;  // a kernel without user namespaces
  unsigned long inside = 1;
  unsigned long outside = 1;
  unsigned long count = 0;
  const int fields = std::fscanf(file, "%lu %lu %lu", &inside, &outside, &count);
  std::fclose(file);
  return fields == 3 && inside == 0 && outside == 0 && count == UINT32_MAX;
}

bool may_lock_without_limit() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};
  if (::syscall(SYS_capget, &header, sets) != 0) return false;
  return (sets[0].effective & (1u << CAP_IPC_LOCK)) != 0 && in_initial_user_namespace();
}

// Called directly: sanitizers replace the C library's functions by ones that do nothing.
bool call_mlock(void* start, std::size_t bytes) { return ::syscall(SYS_mlock, start, bytes) == 0; }
bool call_munlock(void* start, std::size_t bytes) {
  return ::syscall(SYS_munlock, start, bytes) == 0;
}

bool all_mapped(PageSpan pages) { return ::msync(pages.start, pages.bytes, MS_ASYNC) == 0; }

std::optional<PinError> lock(PageSpan pages) {
  if (call_mlock(pages.start, pages.bytes)) return std::nullopt;
  const int error = errno;
  call_munlock(pages.start, pages.bytes);
  if (error == EPERM) return PinError::Limit;
  return error == ENOMEM && all_mapped(pages) ? PinError::Limit : PinError::NotPinnable;
}

bool lock_works() {
  alignas(kPage4K) static std::byte page[kPage4K];
  if (lock(pages_around(reinterpret_cast<std::uintptr_t>(&page), 1))) return false;
  call_munlock(&page, kPage4K);
  return true;
}

}  // namespace

std::string_view pin_backend_name(PinBackend backend) {
  switch (backend) {
    case PinBackend::IoUring:
      return "io_uring";
    case PinBackend::Mlock:
      return "mlock";
    case PinBackend::Counted:
      return "counted";
  }
  return "?";
}

std::uint64_t memlock_limit() {
  rlimit limit{};
  if (may_lock_without_limit() || ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return UINT64_MAX;
  return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

bool is_locked(std::uintptr_t address, std::size_t bytes) {
  const PageSpan pages = pages_around(address, bytes);
  return ::msync(pages.start, pages.bytes, MS_INVALIDATE) != 0 && errno == EBUSY;
}

KernelPins KernelPins::open(std::optional<PinBackend> preferred) {
  std::string_view why;
  if (!preferred || *preferred == PinBackend::IoUring) {
    KernelPins pins(PinBackend::IoUring);
    pins.ring_ = PinRing::open(why);
    if (pins.ring_) return pins;
  }
  if (preferred != PinBackend::Counted) {
    KernelPins pins(PinBackend::Mlock);
    pins.why_not_better_ = why;
    if (lock_works()) return pins;
    why = "the memlock limit allows no page";
  }
  KernelPins pins(PinBackend::Counted);
  pins.why_not_better_ = why;
  return pins;
}

KernelPins::KernelPins(PinBackend backend) : backend_(backend) {}
KernelPins::KernelPins(KernelPins&&) noexcept = default;
KernelPins& KernelPins::operator=(KernelPins&&) noexcept = default;
KernelPins::~KernelPins() = default;

Result<HeldPin, PinError> KernelPins::pin(std::uintptr_t address, std::size_t bytes) {
  ASSERT(bytes > 0 && address + (bytes - 1) >= address);
  if (backend_ == PinBackend::IoUring) return ring_->pin(address, bytes);
  if (backend_ == PinBackend::Mlock)
    if (const auto error = lock(pages_around(address, bytes))) return *error;
  return HeldPin{address, bytes, 0};
}

void KernelPins::unpin(const HeldPin& held) {
  if (backend_ == PinBackend::IoUring) return ring_->unpin(held);
  if (backend_ != PinBackend::Mlock) return;
  // A part may be unmapped by now, and then munlock stops there: go on behind it, page by page.
  const PageSpan pages = pages_around(held.address, held.bytes);
  if (call_munlock(pages.start, pages.bytes)) return;
  for (std::size_t at = 0; at < pages.bytes; at += kPage4K)
    call_munlock(static_cast<std::byte*>(pages.start) + at, kPage4K);
}

bool KernelPins::copy_from_pinned(const HeldPin& held, std::size_t offset, Bytes to) {
  ASSERT(backend_ == PinBackend::IoUring);
  return ring_->copy_from(held, offset, to);
}

bool KernelPins::copy_to_pinned(const HeldPin& held, std::size_t offset, ConstBytes from) {
  ASSERT(backend_ == PinBackend::IoUring);
  return ring_->copy_to(held, offset, from);
}

void KernelPins::abandon() {
  if (ring_) ring_->abandon();
}

bool KernelPins::still_locked(std::uintptr_t address, std::size_t bytes) const {
  const PageSpan pages = pages_around(address, bytes);
  const auto first = reinterpret_cast<std::uintptr_t>(pages.start);
  for (std::size_t at = 0; at < pages.bytes; at += kPage4K)
    if (!is_locked(first + at, kPage4K)) return false;
  return true;
}

}  // namespace softhca::os
