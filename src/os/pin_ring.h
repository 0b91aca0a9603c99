// PinRing: an io_uring used for its table of registered buffers, and for copies through it.
//
// The table is made sparse, one slot or a few for each pin (a buffer holds at most 1 GiB). A fixed
// read or write names a slot, and the kernel copies to or from the pinned pages themselves: what
// the program has mapped at the address since does not matter. The other end is a pipe of our own.
//
// Spec      io_uring_register(2): IORING_REGISTER_BUFFERS2 with IORING_RSRC_REGISTER_SPARSE,
//           IORING_REGISTER_BUFFERS_UPDATE (Linux 5.19)
// See also  os/kernel_pin.h, its only user
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/free_list.h"
#include "os/kernel_pin.h"
#include "os/owned_fd.h"

struct io_uring_sqe;
struct io_uring_cqe;

namespace softhca::os {

class PinRing {
 public:
  // Null if io_uring cannot pin here; then `why` says the reason.
  static std::unique_ptr<PinRing> open(std::string_view& why);
  ~PinRing();
  PinRing(const PinRing&) = delete;
  PinRing& operator=(const PinRing&) = delete;

  Result<HeldPin, PinError> pin(std::uintptr_t address, std::size_t bytes);
  void unpin(const HeldPin& held);
  bool copy_from(const HeldPin& held, std::size_t offset, Bytes to);
  bool copy_to(const HeldPin& held, std::size_t offset, ConstBytes from);
  // In the child of a fork: closes its descriptors and leaves the parent's pins alone.
  void abandon();

 private:
  static constexpr std::uint32_t kSlots = 1u << 14;  // the kernel's own bound

  // One fixed transfer within one slot.
  struct Transfer {
    std::uint8_t opcode{};
    int pipe_end{};
    std::uintptr_t address{};
    std::uint32_t bytes{};
    std::uint32_t slot{};
  };

  PinRing() : slots_(0, kSlots) {}
  bool set_up();
  bool map_rings(std::size_t ring_bytes);
  int update_slot(std::uint32_t slot, std::uintptr_t address, std::size_t bytes);
  bool have_pipe();
  bool drop_pipe();  // after a failure it may hold bytes; false, for the caller to return
  // The transfer's part that lies in one slot and fits the pipe.
  Transfer next_transfer(const HeldPin& held, std::size_t offset, std::size_t bytes) const;
  // Bytes moved, or -errno.
  int run(const Transfer& transfer);

  OwnedFd ring_;
  OwnedFd pipe_out_;  // made with the first copy
  OwnedFd pipe_in_;
  std::uint32_t pipe_bytes_ = 0;
  FreeList slots_;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> lists_;  // first slot -> all of it

  // The kernel's shared rings: queue indices are read and written with acquire and release.
  std::byte* rings_ = nullptr;
  std::size_t rings_bytes_ = 0;
  io_uring_sqe* entries_ = nullptr;
  std::size_t entries_bytes_ = 0;
  std::uint32_t* submit_tail_ = nullptr;
  std::uint32_t* submit_array_ = nullptr;
  std::uint32_t submit_mask_ = 0;
  std::uint32_t* complete_head_ = nullptr;
  std::uint32_t* complete_tail_ = nullptr;
  std::uint32_t complete_mask_ = 0;
  io_uring_cqe* completions_ = nullptr;
};

}  // namespace softhca::os
