#include "host/table_frames.h"

#include <cstring>

namespace softhca::host {

TableFrames::TableFrames(Bytes storage, FrameIndex first)
    : storage_(storage),
      first_(first),
      capacity_(static_cast<std::uint32_t>(storage.size() / kPage4K) - first) {
  ASSERT(storage.size() / kPage4K >= first);
  ASSERT(reinterpret_cast<std::uintptr_t>(storage.data()) % alignof(std::uint64_t) == 0);
}

std::optional<FrameIndex> TableFrames::take() {
  FrameIndex frame;
  if (!given_back_.empty()) {
    frame = given_back_.back();
    given_back_.pop_back();
  } else if (live_.size() < capacity_) {
    frame = first_ + static_cast<FrameIndex>(live_.size());
    live_.push_back(0);
    std::memset(storage_.data() + frame * kPage4K, 0, kPage4K);
  } else {
    return std::nullopt;
  }
  ++in_use_;
  return frame;
}

void TableFrames::give_back(FrameIndex frame) {
  // Empty by its count, so it is zero again: take() need not clear it.
  ASSERT(is_known(frame) && live_[frame - first_] == 0 && in_use_ > 0);
  given_back_.push_back(frame);
  --in_use_;
}

void TableFrames::store(FrameIndex frame, std::size_t entry, std::uint64_t value) {
  const std::atomic_ref<std::uint64_t> cell = this->cell(frame, entry);
  const bool was = cell.load(std::memory_order_relaxed) != 0;
  const bool is = value != 0;
  if (is && !was) ++live_[frame - first_];
  if (!is && was) --live_[frame - first_];
  cell.store(value, std::memory_order_release);
}

}  // namespace softhca::host
