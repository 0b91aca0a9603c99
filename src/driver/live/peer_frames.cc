#include "driver/live/peer_frames.h"

#include <algorithm>
#include <atomic>

#include "base/ordered_copy.h"
#include "os/peer_memory.h"
#include "os/self.h"

namespace softhca::driver {
namespace {

using Iovecs = std::array<os::MemoryPiece, FramePieces::kCapacity>;

std::span<const os::MemoryPiece> pieces_of(std::span<const Bytes> pieces, Iovecs& room) {
  std::ranges::transform(pieces, room.begin(), [](Bytes piece) {
    return os::MemoryPiece{reinterpret_cast<std::uintptr_t>(piece.data()), piece.size()};
  });
  return std::span(room).first(pieces.size());
}

// move(here, there) for each stretch that is in one piece on both sides, as far as the shorter
// goes.
template <class Move>
void for_each_stretch(std::span<const pcie::Span> local, std::span<const Bytes> remote, Move move) {
  std::uint64_t done_there = 0;
  for (const pcie::Span& span : local) {
    auto* here = reinterpret_cast<std::byte*>(span.start.value);
    for (std::uint64_t left = span.bytes; left != 0 && !remote.empty();) {
      const Bytes there = remote.front().subspan(done_there);
      const std::uint64_t bytes = std::min<std::uint64_t>(left, there.size());
      move(Bytes(here, bytes), there.first(bytes));
      here += bytes;
      left -= bytes;
      done_there += bytes;
      if (done_there != remote.front().size()) continue;
      remote = remote.subspan(1);
      done_there = 0;
    }
  }
}

}  // namespace

std::span<const os::MemoryPiece> pieces_of(std::span<const pcie::Span> spans,
                                           std::span<os::MemoryPiece> room) {
  std::ranges::transform(spans, room.begin(), [](const pcie::Span& span) {
    return os::MemoryPiece{span.start.value, span.bytes};
  });
  return room.first(spans.size());
}

bool FramePieces::append(std::byte* start, std::uint64_t bytes) {
  if (start == nullptr || count_ == kCapacity) return false;
  pieces_[count_++] = {start, bytes};
  return true;
}

std::optional<FramesOfPeer> FramesOfPeer::open(std::uint32_t pid, const TableHeader& header) {
  if (header.frames_file == 0) return std::nullopt;
  if (pid == os::own_pid()) return FramesOfPeer(std::nullopt, header.frames_at);
  auto memory = os::PeerFrames::open(pid, header.frames_file - 1);
  if (!memory) return std::nullopt;
  return FramesOfPeer(std::move(*memory), header.frames_at);
}

std::byte* FramesOfPeer::slot(std::uint32_t number) {
  if (memory_) return memory_->slot(number);
  return reinterpret_cast<std::byte*>(range_.start.value) + number * os::kSlotBytes;
}

bool FramesOfPeer::find(std::span<const pcie::Span> remote, FramePieces& into) {
  for (const pcie::Span& span : remote) {
    if (!range_.contains(span.start, span.bytes)) return false;
    const std::uint64_t offset = distance(range_.start, span.start);
    for (std::uint64_t done = 0; done < span.bytes;) {
      const std::uint64_t at = offset + done;
      const std::uint64_t in_slot = at % os::kSlotBytes;
      const std::uint64_t bytes = std::min(span.bytes - done, os::kSlotBytes - in_slot);
      std::byte* const start = slot(static_cast<std::uint32_t>(at / os::kSlotBytes));
      if (start == nullptr || !into.append(start + in_slot, bytes)) return false;
      done += bytes;
    }
  }
  return true;
}

bool write_frames(std::span<const pcie::Span> local, bool is_plain, const FramePieces& to) {
  if (is_plain) {
    for_each_stretch(local, to.all(),
                     [](Bytes here, Bytes there) { copy_to_shared(there.data(), here); });
    return true;
  }
  Iovecs here;
  Iovecs there;
  return to.all().size() <= os::kPiecesAtOnce &&
         os::read_from(os::own_pid(), pieces_of(local, here), pieces_of(to.all(), there));
}

bool read_frames(std::span<const pcie::Span> local, bool is_plain, const FramePieces& from) {
  if (is_plain) {
    for_each_stretch(local, from.all(),
                     [](Bytes here, Bytes there) { copy_from_shared(here, there.data()); });
    return true;
  }
  Iovecs here;
  Iovecs there;
  return from.all().size() <= os::kPiecesAtOnce &&
         os::write_to(os::own_pid(), pieces_of(from.all(), there), pieces_of(local, here));
}

// The program gets the value before the word changes: where it cannot, nothing has happened.
bool change_frame(const nic::DirectRequest& request, bool is_swap, std::byte* word,
                  std::span<const pcie::Span> local, bool is_plain) {
  const std::atomic_ref value(*reinterpret_cast<std::uint64_t*>(word));
  std::uint64_t original = value.load();
  for (;;) {
    FramePieces from;
    from.append(writable_bytes_of(original).data(), sizeof original);
    if (!read_frames(local, is_plain, from)) return false;
    if (is_swap && original != request.compare) return true;
    const std::uint64_t changed = is_swap ? request.swap_or_add : original + request.swap_or_add;
    if (value.compare_exchange_strong(original, changed)) return true;
  }
}

}  // namespace softhca::driver
