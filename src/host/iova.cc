#include "host/iova.h"

#include <algorithm>

#include "base/assert.h"
#include "base/prng.h"

namespace softhca::host {

std::uint64_t best_leaf(Range<PhysSpace> range) {
  for (const std::uint64_t leaf : {kPage1G, kPage2M}) {
    const std::uint64_t to_first = (leaf - offset_in(range.start, leaf)) & (leaf - 1);
    if (range.length >= to_first && range.length - to_first >= leaf) return leaf;
  }
  return kPage4K;
}

IovaSpace::IovaSpace(std::uint64_t seed, Range<BusSpace> window) {
  ASSERT(window.length > 0 && ((window.start.value | window.length) & (kPage4K - 1)) == 0);
  ASSERT((Range<BusSpace>{{0}, std::uint64_t{1} << kBusAddressBits}.contains(window.start,
                                                                             window.length)));
  free_.emplace(window.start.value, window.start.value + window.length);
  if (window.overlaps(kInterruptRange)) exclude(kInterruptRange);
  next_ = window.start.value + Prng(seed).below(window.length / kPage4K) * kPage4K;
}

std::optional<BusAddr> IovaSpace::allocate(std::uint64_t bytes, std::uint64_t alignment,
                                           std::uint64_t phase) {
  ASSERT(bytes > 0 && alignment >= kPage4K && (alignment & (alignment - 1)) == 0);
  ASSERT((phase & (kPage4K - 1)) == 0);
  if (bytes > std::uint64_t{1} << kBusAddressBits) return std::nullopt;
  const std::uint64_t length = (bytes + kPage4K - 1) & ~(kPage4K - 1);
  // The first place at or behind `from`.
  const auto place = [&](std::uint64_t from) { return from + ((phase - from) & (alignment - 1)); };
  const auto fits = [&](std::uint64_t from, std::uint64_t end) {
    const std::uint64_t start = place(from);
    return start >= from && start <= end && length <= end - start;
  };

  // From `next_` to the end, then all stretches from the first one on.
  auto stretch = free_.upper_bound(next_);
  if (stretch != free_.begin() && std::prev(stretch)->second > next_) --stretch;
  bool wrapped = false;
  std::uint64_t from = next_;
  while (true) {
    if (stretch == free_.end()) {
      if (wrapped) return std::nullopt;
      wrapped = true;
      from = 0;
      stretch = free_.begin();
      continue;
    }
    const std::uint64_t first = std::max(from, stretch->first);
    if (fits(first, stretch->second)) {
      const std::uint64_t start = place(first);
      carve(stretch, start, start + length);
      next_ = start + length;
      in_use_ += length;
      return BusAddr{start};
    }
    ++stretch;
  }
}

void IovaSpace::carve(Free::iterator stretch, std::uint64_t start, std::uint64_t end) {
  const auto [free_start, free_end] = *stretch;
  free_.erase(stretch);
  if (free_start < start) free_.emplace(free_start, start);
  if (end < free_end) free_.emplace(end, free_end);
}

void IovaSpace::exclude(Range<BusSpace> range) {
  const auto [window_start, window_end] = *free_.begin();
  carve(free_.begin(), std::max(window_start, range.start.value),
        std::min(window_end, range.start.value + range.length));
}

void IovaSpace::release(BusAddr start, std::uint64_t bytes) {
  const std::uint64_t length = (bytes + kPage4K - 1) & ~(kPage4K - 1);
  std::uint64_t first = start.value;
  std::uint64_t end = start.value + length;
  ASSERT(in_use_ >= length);
  auto behind = free_.lower_bound(first);
  ASSERT(behind == free_.end() || behind->first >= end);
  if (behind != free_.end() && behind->first == end) {
    end = behind->second;
    behind = free_.erase(behind);
  }
  if (behind != free_.begin()) {
    const auto before = std::prev(behind);
    ASSERT(before->second <= first);
    if (before->second == first) {
      first = before->first;
      free_.erase(before);
    }
  }
  free_.emplace(first, end);
  in_use_ -= length;
}

}  // namespace softhca::host
