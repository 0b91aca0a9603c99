// Iotlb: remembers translations, so that most accesses read no table.
//
// One set-associative cache for each leaf size, least recently used entry out first. It does not
// notice when tables change: whoever unmaps must invalidate, or the device still reaches the frame.
//
// Threads  owned by the device's owner
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/address.h"
#include "base/range.h"
#include "host/cache_size.h"
#include "host/iommu_table.h"

namespace softhca::host {

struct IotlbShape {
  CacheSize pages_4k{64, 4};
  CacheSize pages_2m{8, 4};
  CacheSize pages_1g{4, 4};
};

class Iotlb {
 public:
  explicit Iotlb(const IotlbShape& shape = {});

  // The translation of `at`, levels_read 0, or nothing. Rights are the caller's to check.
  // Inline: every access of the device begins with it.
  std::optional<Translation> lookup(BusAddr at) {
    for (Level& level : levels_) {
      if (level.used == 0) continue;
      const std::uint64_t tag = at.value >> level.shift;
      for (Entry& entry : level.set_of(tag)) {
        if (entry.tag != tag || entry.last_used == 0) continue;
        entry.last_used = ++uses_;
        const std::uint64_t leaf_bytes = std::uint64_t{1} << level.shift;
        return Translation{.phys = advance(PhysAddr{entry.phys}, offset_in(at, leaf_bytes)),
                           .leaf_bytes = leaf_bytes,
                           .rights = entry.rights,
                           .levels_read = 0};
      }
    }
    return std::nullopt;
  }

  // REQUIRES: `found` is what the tables say about `at`.
  void insert(BusAddr at, const Translation& found);

  // Forgets every entry that overlaps the range.
  void invalidate(Range<BusSpace> range);
  void invalidate_all();

  std::uint32_t entries() const;  // in use now

 private:
  struct Entry {
    std::uint64_t tag{};        // bus address / leaf size
    std::uint64_t phys{};       // start of the leaf
    std::uint64_t last_used{};  // 0: free
    BusRights rights;
  };
  struct Level {
    unsigned shift{};  // log2 of the leaf size
    CacheSize size;
    std::uint32_t used = 0;
    std::vector<Entry> entries;  // set after set

    std::span<Entry> set_of(std::uint64_t tag) {
      return {entries.data() + (tag & (size.sets - 1)) * size.ways, size.ways};
    }
  };

  std::array<Level, 3> levels_;
  std::uint64_t uses_ = 0;
};

}  // namespace softhca::host
