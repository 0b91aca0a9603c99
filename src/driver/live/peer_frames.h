// FramesOfPeer: one-sided requests in the frames of a peer's device, by loads and stores.
//
// Where the peer's bytes lie in its frames, they are mapped here, too. If this process's bytes are
// memory that is always there (its own frames, inline data) no system call is needed; else the
// kernel copies between both, since the program may have unmapped its own.
//
// Threads  the owner of the device, inside the peer's memory (local/accessors.h)
// See also docs/frames.md
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "driver/table_memory.h"
#include "nic/same_host.h"
#include "os/frames/frame_file.h"
#include "os/guarded_copy.h"
#include "pcie/port.h"

namespace softhca::driver {

// Spans of a process as the kernel's calls take them. REQUIRES: room for all.
std::span<const os::MemoryPiece> pieces_of(std::span<const pcie::Span> spans,
                                           std::span<os::MemoryPiece> room);

// The peer's bytes, as this process sees them, piece by piece.
class FramePieces {
 public:
  // A piece more than spans for each end of a slot within a move.
  static constexpr std::size_t kCapacity = pcie::SpanList::kCapacity + 2;
  bool append(std::byte* start, std::uint64_t bytes);
  std::span<const Bytes> all() const { return std::span(pieces_).first(count_); }

 private:
  std::array<Bytes, kCapacity> pieces_;
  std::size_t count_ = 0;
};

class FramesOfPeer {
 public:
  // None if the peer's device has no frames, or they cannot be mapped.
  static std::optional<FramesOfPeer> open(std::uint32_t pid, const TableHeader& header);

  // False if not all of it lies there.
  bool find(std::span<const pcie::Span> remote, FramePieces& into);
  void abandon() {
    if (memory_) memory_->abandon();
  }

 private:
  FramesOfPeer(std::optional<os::PeerFrames> memory, std::uint64_t start)
      : memory_(std::move(memory)), range_{{start}, os::kFrameSlots * os::kSlotBytes} {}
  std::byte* slot(std::uint32_t number);
  // Nothing: they are this process's, which has them mapped already. A second mapping would look
  // like one of the program's.
  std::optional<os::PeerFrames> memory_;
  Range<PhysSpace> range_;  // in the peer's process
};

// Moves bytes between `local` spans of this process and the pieces, which are as long together.
// `is_plain`: the local ones are always there. False if they are not; some bytes may have moved.
bool write_frames(std::span<const pcie::Span> local, bool is_plain, const FramePieces& to);
bool read_frames(std::span<const pcie::Span> local, bool is_plain, const FramePieces& from);

// Executes an atomic on the word, whose value before goes to `local`. One step for whoever uses
// processor atomics there, too. REQUIRES: the lock of atomics; an aligned word.
bool change_frame(const nic::DirectRequest& request, bool is_swap, std::byte* word,
                  std::span<const pcie::Span> local, bool is_plain);

}  // namespace softhca::driver
