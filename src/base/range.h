// Range: a start and a length; the only code that adds an address and a length.
//
// Nothing here wraps: a range that would pass 2^64 is refused when it is asked about.
#pragma once
#include <cstdint>

#include "base/address.h"

namespace softhca {

template <class Space>
struct Range {
  Address<Space> start;
  std::uint64_t length{};

  friend constexpr bool operator==(Range, Range) = default;

  // True iff [at, at + bytes) lies within this range. An empty access at the end is within.
  constexpr bool contains(Address<Space> at, std::uint64_t bytes) const {
    if (at < start) return false;
    const std::uint64_t offset = at.value - start.value;
    return offset <= length && bytes <= length - offset;
  }

  constexpr bool overlaps(Range other) const {
    if (length == 0 || other.length == 0) return false;
    return start < other.start ? other.start.value - start.value < length
                               : start.value - other.start.value < other.length;
  }

  // True iff start + length passes 2^64 (a range that ends exactly there does not).
  constexpr bool wraps() const { return length != 0 && start.value + (length - 1) < start.value; }
};

// The address `bytes` further on. REQUIRES: no wrap; callers check a Range first.
template <class Space>
constexpr Address<Space> advance(Address<Space> at, std::uint64_t bytes) {
  return {at.value + bytes};
}

// How far `to` lies behind `from`. REQUIRES: from <= to.
template <class Space>
constexpr std::uint64_t distance(Address<Space> from, Address<Space> to) {
  return to.value - from.value;
}

template <class Space>
constexpr std::uint64_t offset_in(Address<Space> at, std::uint64_t page) {
  return at.value & (page - 1);
}

template <class Space>
constexpr Address<Space> align_down(Address<Space> at, std::uint64_t page) {
  return {at.value & ~(page - 1)};
}

// How many pages of `page` bytes the range touches. REQUIRES: !range.wraps().
template <class Space>
constexpr std::uint64_t pages_touched(Range<Space> range, std::uint64_t page) {
  if (range.length == 0) return 0;
  const std::uint64_t first = range.start.value / page;
  const std::uint64_t last = (range.start.value + (range.length - 1)) / page;
  return last - first + 1;
}

}  // namespace softhca
