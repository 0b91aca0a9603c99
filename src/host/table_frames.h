// TableFrames: 4 KiB frames for translation tables, named by index, in memory that others may map.
//
// The owner gives a span (live: a part of its table memfd); nothing in it is a pointer, so that a
// peer that maps the same memory elsewhere can walk the tables. A frame is touched only when it is
// first taken: the span may be sparse.
//
// In a modelled machine the span is its RAM from address 0 on, and the frames from `first` on are
// reserved for tables: there an index is the frame's number in RAM, as in real tables.
//
// Threads     one owner takes and gives back; readers see each entry whole (64-bit stores)
// Invariants  a taken frame is all zero; a given-back one is given out again before a fresh one
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/address.h"
#include "base/assert.h"
#include "base/bytes.h"

namespace softhca::host {

using FrameIndex = std::uint32_t;

inline constexpr std::size_t kTableEntries = kPage4K / sizeof(std::uint64_t);

class TableFrames {
 public:
  // OWNS nothing; `storage` outlives this. Frames before `first` are somebody else's.
  // REQUIRES: 8-byte aligned; a rest below 4 KiB is unused.
  explicit TableFrames(Bytes storage, FrameIndex first = 0);

  // A zeroed frame; nothing when all are out.
  std::optional<FrameIndex> take();
  // REQUIRES: `frame` is out and has no live entries.
  void give_back(FrameIndex frame);

  std::uint64_t load(FrameIndex frame, std::size_t entry) const {
    return cell(frame, entry).load(std::memory_order_acquire);
  }

  // Writes an entry and keeps count of those that are not zero.
  void store(FrameIndex frame, std::size_t entry, std::uint64_t value);

  // How many entries of the frame are not zero.
  std::uint32_t live_entries(FrameIndex frame) const { return live_[frame - first_]; }

  ConstBytes storage() const { return storage_; }
  std::uint32_t capacity() const { return capacity_; }
  std::uint32_t in_use() const { return in_use_; }
  std::uint32_t ever_touched() const { return static_cast<std::uint32_t>(live_.size()); }

 private:
  std::atomic_ref<std::uint64_t> cell(FrameIndex frame, std::size_t entry) const {
    ASSERT(is_known(frame) && entry < kTableEntries);
    return std::atomic_ref<std::uint64_t>(
        reinterpret_cast<std::uint64_t*>(storage_.data())[frame * kTableEntries + entry]);
  }

  // Was it ever taken? (A frame before first_ wraps.)
  bool is_known(FrameIndex frame) const { return frame - first_ < live_.size(); }

  Bytes storage_;
  FrameIndex first_;
  std::uint32_t capacity_;
  std::uint32_t in_use_ = 0;
  std::vector<std::uint16_t> live_;     // by frame from first_ on, as far as ever taken
  std::vector<FrameIndex> given_back_;  // used as a stack: a warm frame first
};

}  // namespace softhca::host
