#include "host/structure_cache.h"

#include <algorithm>

namespace softhca::host {
namespace {

std::uint64_t region_of(BusAddr at, unsigned level) {
  return at.value / entry::bytes_of_level(level + 1);  // an entry of the level above covers a table
}

}  // namespace

StructureCache::StructureCache(const StructureCacheShape& shape) {
  levels_[0].room = shape.level1;
  levels_[1].room = shape.level2;
  levels_[2].room = shape.level3;
}

std::optional<WalkStart> StructureCache::lookup(BusAddr at) {
  for (unsigned level = 1; level < kIommuLevels; ++level) {
    std::vector<Known>& known = levels_[level - 1].known;
    const auto found = std::ranges::find(known, region_of(at, level), &Known::region);
    if (found == known.end()) continue;
    found->last_used = ++uses_;
    return found->start;
  }
  return std::nullopt;
}

void StructureCache::insert(BusAddr at, const WalkTrail& trail) {
  for (unsigned i = 0; i < trail.count; ++i) {
    const WalkStart& table = trail.tables[i];
    Level& level = levels_[table.level - 1];
    if (level.room == 0) continue;
    const Known fresh{region_of(at, table.level), ++uses_, table};
    const auto old = std::ranges::find(level.known, fresh.region, &Known::region);
    if (old != level.known.end())
      *old = fresh;
    else if (level.known.size() < level.room)
      level.known.push_back(fresh);
    else
      *std::ranges::min_element(level.known, {}, &Known::last_used) = fresh;
  }
}

void StructureCache::invalidate(Range<BusSpace> range) {
  if (range.length == 0) return;
  const BusAddr last = advance(range.start, range.length - 1);
  for (unsigned level = 1; level < kIommuLevels; ++level)
    std::erase_if(levels_[level - 1].known, [&](const Known& known) {
      return known.region >= region_of(range.start, level) &&
             known.region <= region_of(last, level);
    });
}

void StructureCache::invalidate_all() {
  for (Level& level : levels_) level.known.clear();
}

std::size_t StructureCache::entries() const {
  std::size_t sum = 0;
  for (const Level& level : levels_) sum += level.known.size();
  return sum;
}

}  // namespace softhca::host
