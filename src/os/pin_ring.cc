#include "os/pin_ring.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/address.h"
#include "base/assert.h"

namespace softhca::os {
namespace {

constexpr std::size_t kBufferMax = kPage1G;
constexpr std::uint32_t kPipeMax = 1 << 16;

int register_with(int ring, unsigned opcode, const void* argument, std::size_t bytes) {
  const long rc = ::syscall(SYS_io_uring_register, ring, opcode, argument, bytes);
  return rc < 0 ? -errno : static_cast<int>(rc);
}

std::string_view setup_refusal(int error) {
  switch (error) {
    case ENOSYS:
      return "this kernel has no io_uring";
    case EPERM:
      return "io_uring is disabled (kernel.io_uring_disabled)";
    case EACCES:
      return "io_uring is forbidden here";
    case ENOMEM:
      return "the memlock limit leaves no room for io_uring";
    default:
      return "io_uring cannot be set up";
  }
}

}  // namespace

std::unique_ptr<PinRing> PinRing::open(std::string_view& why) {
  std::unique_ptr<PinRing> ring(new PinRing);
  if (!ring->set_up()) {
    why = setup_refusal(errno);
    return nullptr;
  }
  io_uring_rsrc_register table{};
  table.nr = kSlots;
  table.flags = IORING_RSRC_REGISTER_SPARSE;
  if (register_with(ring->ring_.get(), IORING_REGISTER_BUFFERS2, &table, sizeof table) < 0) {
    why = "this kernel's io_uring has no sparse buffer table (Linux 5.19)";
    return nullptr;
  }
  alignas(kPage4K) static std::byte page[kPage4K];
  const auto pinned = ring->pin(reinterpret_cast<std::uintptr_t>(&page), sizeof page);
  if (!pinned) {
    why = pinned.error() == PinError::Limit ? "the memlock limit allows no page"
                                            : "io_uring cannot pin memory here";
    return nullptr;
  }
  ring->unpin(*pinned);
  return ring;
}

bool PinRing::set_up() {
  io_uring_params params{};
  const long fd = ::syscall(SYS_io_uring_setup, 2u, &params);  // its descriptor is close-on-exec
  if (fd < 0) return false;
  ring_.reset(static_cast<int>(fd));
  const std::size_t submit_bytes = params.sq_off.array + params.sq_entries * sizeof(std::uint32_t);
  const std::size_t complete_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
  if (!map_rings(std::max(submit_bytes, complete_bytes))) return false;

  const auto at = [this](std::uint32_t offset) {
    return reinterpret_cast<std::uint32_t*>(rings_ + offset);
  };
  submit_tail_ = at(params.sq_off.tail);
  submit_array_ = at(params.sq_off.array);
  submit_mask_ = *at(params.sq_off.ring_mask);
  complete_head_ = at(params.cq_off.head);
  complete_tail_ = at(params.cq_off.tail);
  complete_mask_ = *at(params.cq_off.ring_mask);
  completions_ = reinterpret_cast<io_uring_cqe*>(rings_ + params.cq_off.cqes);
  return true;
}

bool PinRing::map_rings(std::size_t ring_bytes) {
  constexpr int kRights = PROT_READ | PROT_WRITE;
  constexpr int kFlags = MAP_SHARED | MAP_POPULATE;
  void* rings = ::mmap(nullptr, ring_bytes, kRights, kFlags, ring_.get(), IORING_OFF_SQ_RING);
  if (rings == MAP_FAILED) return false;
  rings_ = static_cast<std::byte*>(rings);
  rings_bytes_ = ring_bytes;
  void* entries = ::mmap(nullptr, entries_bytes_, kRights, kFlags, ring_.get(), IORING_OFF_SQES);
  if (entries == MAP_FAILED) return false;
  entries_ = static_cast<io_uring_sqe*>(entries);
  // They are the parent's; a child has nothing to do in them.
  ::madvise(rings_, rings_bytes_, MADV_DONTFORK);
  ::madvise(entries_, entries_bytes_, MADV_DONTFORK);
  return true;
}

PinRing::~PinRing() {
  // Pins end now, not when the last descriptor is closed: a forked child may hold a copy.
  if (ring_) register_with(ring_.get(), IORING_UNREGISTER_BUFFERS, nullptr, 0);
  if (entries_ != nullptr) ::munmap(entries_, entries_bytes_);
  if (rings_ != nullptr) ::munmap(rings_, rings_bytes_);
}

void PinRing::abandon() {
  ring_.reset();
  pipe_out_.reset();
  pipe_in_.reset();
  entries_ = nullptr;  // not mapped here
  rings_ = nullptr;
}

int PinRing::update_slot(std::uint32_t slot, std::uintptr_t address, std::size_t bytes) {
  const iovec buffer{reinterpret_cast<void*>(address), bytes};
  io_uring_rsrc_update2 update{};
  update.offset = slot;
  update.data = reinterpret_cast<std::uintptr_t>(&buffer);
  update.nr = 1;
  return register_with(ring_.get(), IORING_REGISTER_BUFFERS_UPDATE, &update, sizeof update);
}

Result<HeldPin, PinError> PinRing::pin(std::uintptr_t address, std::size_t bytes) {
  std::vector<std::uint32_t> taken;
  std::optional<PinError> error;
  for (std::size_t at = 0; at < bytes && !error; at += kBufferMax) {
    const auto slot = slots_.take();
    if (!slot) {
      error = PinError::NoSlots;
      break;
    }
    const int rc = update_slot(*slot, address + at, std::min(kBufferMax, bytes - at));
    if (rc == 1) {
      taken.push_back(*slot);
    } else {
      slots_.give_back(*slot);
      error = rc == -ENOMEM ? PinError::Limit : PinError::NotPinnable;
    }
  }
  if (!error) {
    const HeldPin held{address, bytes, taken.front()};
    lists_.emplace(held.slot_list, std::move(taken));
    return held;
  }
  for (const std::uint32_t slot : taken) {
    update_slot(slot, 0, 0);
    slots_.give_back(slot);
  }
  return *error;
}

void PinRing::unpin(const HeldPin& held) {
  const auto found = lists_.find(held.slot_list);
  ASSERT(found != lists_.end());
  for (const std::uint32_t slot : found->second) {
    update_slot(slot, 0, 0);
    slots_.give_back(slot);
  }
  lists_.erase(found);
}

bool PinRing::have_pipe() {
  if (pipe_out_) return true;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  pipe_out_.reset(ends[0]);
  pipe_in_.reset(ends[1]);
  // What fits an empty pipe never waits.
  const int capacity = ::fcntl(ends[1], F_GETPIPE_SZ);
  pipe_bytes_ = capacity > 0 ? std::min(static_cast<std::uint32_t>(capacity), kPipeMax)
                             : static_cast<std::uint32_t>(kPage4K);
  return true;
}

bool PinRing::drop_pipe() {
  pipe_out_.reset();
  pipe_in_.reset();
  return false;
}

PinRing::Transfer PinRing::next_transfer(const HeldPin& held, std::size_t offset,
                                         std::size_t bytes) const {
  const auto& list = lists_.at(held.slot_list);
  const std::size_t in_slot = kBufferMax - offset % kBufferMax;
  return {.opcode = 0,
          .pipe_end = -1,
          .address = held.address + offset,
          .bytes = static_cast<std::uint32_t>(
              std::min({bytes, in_slot, static_cast<std::size_t>(pipe_bytes_)})),
          .slot = list[offset / kBufferMax]};
}

bool PinRing::copy_from(const HeldPin& held, std::size_t offset, Bytes to) {
  ASSERT(offset <= held.bytes && to.size() <= held.bytes - offset);
  if (!have_pipe()) return false;
  while (!to.empty()) {
    Transfer transfer = next_transfer(held, offset, to.size());
    transfer.opcode = IORING_OP_WRITE_FIXED;
    transfer.pipe_end = pipe_in_.get();
    const int moved = run(transfer);
    if (moved <= 0) return drop_pipe();
    const auto count = static_cast<std::size_t>(moved);
    if (::read(pipe_out_.get(), to.data(), count) != moved) return drop_pipe();
    to = to.subspan(count);
    offset += count;
  }
  return true;
}

bool PinRing::copy_to(const HeldPin& held, std::size_t offset, ConstBytes from) {
  ASSERT(offset <= held.bytes && from.size() <= held.bytes - offset);
  if (!have_pipe()) return false;
  while (!from.empty()) {
    Transfer transfer = next_transfer(held, offset, from.size());
    if (::write(pipe_in_.get(), from.data(), transfer.bytes) != transfer.bytes) return drop_pipe();
    transfer.opcode = IORING_OP_READ_FIXED;
    transfer.pipe_end = pipe_out_.get();
    from = from.subspan(transfer.bytes);
    offset += transfer.bytes;
    while (transfer.bytes != 0) {
      const int moved = run(transfer);
      if (moved <= 0) return drop_pipe();
      transfer.address += static_cast<std::uint32_t>(moved);
      transfer.bytes -= static_cast<std::uint32_t>(moved);
    }
  }
  return true;
}

int PinRing::run(const Transfer& transfer) {
  std::atomic_ref<std::uint32_t> tail(*submit_tail_);
  const std::uint32_t index = tail.load(std::memory_order_relaxed) & submit_mask_;
  io_uring_sqe& sqe = entries_[index];
  sqe = {};
  sqe.opcode = transfer.opcode;
  sqe.fd = transfer.pipe_end;
  sqe.off = UINT64_MAX;  // a stream has no offset
  sqe.addr = transfer.address;
  sqe.len = transfer.bytes;
  sqe.buf_index = static_cast<std::uint16_t>(transfer.slot);
  submit_array_[index] = index;
  tail.store(tail.load(std::memory_order_relaxed) + 1, std::memory_order_release);

  std::atomic_ref<std::uint32_t> done(*complete_tail_);
  std::atomic_ref<std::uint32_t> head(*complete_head_);
  const std::uint32_t seen = head.load(std::memory_order_relaxed);
  unsigned to_submit = 1;
  while (done.load(std::memory_order_acquire) == seen) {
    const long rc = ::syscall(SYS_io_uring_enter, ring_.get(), to_submit, 1u,
                              IORING_ENTER_GETEVENTS, nullptr, 0);
    if (rc < 0 && errno != EINTR && errno != EAGAIN) return -errno;
    if (rc > 0) to_submit = 0;
  }
  const int result = completions_[seen & complete_mask_].res;
  head.store(seen + 1, std::memory_order_release);
  return result;
}

}  // namespace softhca::os
