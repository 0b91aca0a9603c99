#include "host/iotlb.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"

namespace softhca::host {

Iotlb::Iotlb(const IotlbShape& shape) {
  const std::array<std::pair<unsigned, CacheSize>, 3> sizes = {
      {{12, shape.pages_4k}, {21, shape.pages_2m}, {30, shape.pages_1g}}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto [shift, size] = sizes[i];
    ASSERT(std::has_single_bit(size.sets) && size.ways > 0);
    levels_[i].shift = shift;
    levels_[i].size = size;
    levels_[i].entries.resize(std::size_t{size.sets} * size.ways);
  }
}

void Iotlb::insert(BusAddr at, const Translation& found) {
  bool inserted = false;  // a leaf has one of the three sizes
  for (Level& level : levels_) {
    if (found.leaf_bytes != std::uint64_t{1} << level.shift) continue;
    inserted = true;
    const std::uint64_t tag = at.value >> level.shift;
    const std::span<Entry> set = level.set_of(tag);
    Entry* victim = set.data();  // the entry of this page, or else the one unused for longest
    for (Entry& e : set) {
      if (e.tag == tag && e.last_used != 0) {
        victim = &e;
        break;
      }
      if (e.last_used < victim->last_used) victim = &e;
    }
    if (victim->last_used == 0) ++level.used;
    *victim = {.tag = tag,
               .phys = align_down(found.phys, found.leaf_bytes).value,
               .last_used = ++uses_,
               .rights = found.rights};
  }
  ASSERT(inserted);
}

void Iotlb::invalidate(Range<BusSpace> range) {
  if (range.length == 0) return;
  const std::uint64_t last_byte = range.start.value + (range.length - 1);
  for (Level& level : levels_) {
    if (level.used == 0) continue;
    const std::uint64_t first = range.start.value >> level.shift;
    const std::uint64_t last = last_byte >> level.shift;
    const auto drop = [&](Entry& entry) {
      if (entry.last_used == 0 || entry.tag < first || entry.tag > last) return;
      entry = {};
      --level.used;
    };
    // Few pages: only their sets. Many: every set once.
    if (last - first < level.size.sets) {
      for (std::uint64_t tag = first; tag <= last; ++tag)
        std::ranges::for_each(level.set_of(tag), drop);
    } else {
      std::ranges::for_each(level.entries, drop);
    }
  }
}

void Iotlb::invalidate_all() {
  for (Level& level : levels_) {
    std::ranges::fill(level.entries, Entry{});
    level.used = 0;
  }
}

std::uint32_t Iotlb::entries() const {
  std::uint32_t sum = 0;
  for (const Level& level : levels_) sum += level.used;
  return sum;
}

}  // namespace softhca::host
