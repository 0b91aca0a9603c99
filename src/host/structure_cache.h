// StructureCache: remembers where the tables of a walk lie, so that a miss in the IOTLB reads one
// to four entries instead of always four.
//
// One small cache for each level of tables, least recently used entry out first. An invalidation
// that says LeafOnly leaves it alone; that is right only while no table was given back.
//
// Spec      Intel VT-d, 6.2.4 (paging-structure caches), 6.5.1.2 (invalidation hint)
// Threads   owned by the device's owner
// See also  host/iotlb.h, which remembers whole translations
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/address.h"
#include "base/range.h"
#include "host/iommu_table.h"

namespace softhca::host {

// How many tables of each level are remembered; 0: none. A table of level 1 holds 4 KiB leaves.
struct StructureCacheShape {
  std::size_t level1 = 0;
  std::size_t level2 = 0;
  std::size_t level3 = 0;
};

class StructureCache {
 public:
  explicit StructureCache(const StructureCacheShape& shape);

  // The lowest table that is known for `at`: where a walk may start.
  std::optional<WalkStart> lookup(BusAddr at);
  void insert(BusAddr at, const WalkTrail& trail);

  // Forgets every table that covers a part of the range.
  void invalidate(Range<BusSpace> range);
  void invalidate_all();

  std::size_t entries() const;  // in use now

 private:
  struct Known {
    std::uint64_t region{};     // bus address / bytes that the table covers
    std::uint64_t last_used{};  // the newest has the largest
    WalkStart start;
  };
  struct Level {
    std::size_t room{};
    std::vector<Known> known;
  };

  std::array<Level, kIommuLevels - 1> levels_;  // [0]: tables of level 1
  std::uint64_t uses_ = 0;
};

}  // namespace softhca::host
