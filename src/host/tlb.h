// Tlb: a processor's memory of translations, tagged by address space (PCID).
//
// A first level for each page size and a larger second one that 4 KiB and 2 MiB pages share; least
// recently used entry out first. It does not notice when tables change: the kernel invalidates.
//
// Spec  Intel SDM 3A, 4.10. The default sizes are those of a Skylake core, as the table of its TLBs
//       in Intel's Optimization Reference Manual has them
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/address.h"
#include "base/range.h"
#include "host/cache_size.h"
#include "host/page_table.h"

namespace softhca::host {

using Pcid = std::uint16_t;  // 12 bits

struct TlbShape {
  CacheSize first_4k{16, 4};
  CacheSize first_2m{8, 4};
  CacheSize first_1g{1, 4};
  CacheSize second{128, 12};  // 4 KiB and 2 MiB
  CacheSize second_1g{4, 4};
};

struct TlbEntry {
  PhysAddr frame;  // start of the page
  std::uint64_t bytes{};
  PageRights rights;
  bool dirty{};  // the D bit is set in the table: a write needs no walk
};

class Tlb {
 public:
  explicit Tlb(const TlbShape& shape = {});

  // What is remembered of the page that holds `at`. Rights are the caller's to check.
  std::optional<TlbEntry> lookup(Pcid pcid, VirtAddr at);

  // REQUIRES: `entry` is what the tables say about `at`.
  void insert(Pcid pcid, VirtAddr at, const TlbEntry& entry);

  // Each says how many pages were forgotten.
  std::uint32_t invalidate(Pcid pcid, Range<VirtSpace> range);  // every page that overlaps it
  std::uint32_t invalidate_pcid(Pcid pcid);
  std::uint32_t invalidate_all();

  std::uint32_t entries() const;  // in use now, in all levels

 private:
  struct Slot {
    std::uint64_t page{};       // virtual address / page size
    std::uint64_t last_used{};  // 0: free
    TlbEntry entry;
    Pcid pcid{};
    std::uint8_t shift{};
  };
  struct Level {
    CacheSize size;
    std::vector<Slot> slots;  // set after set
  };
  enum : std::size_t { kFirst4K, kFirst2M, kFirst1G, kSecond, kSecond1G, kLevels };

  Slot* find(Level& level, Pcid pcid, VirtAddr at, unsigned shift);
  void put(Level& level, Pcid pcid, VirtAddr at, const TlbEntry& entry);
  template <class Condition>
  std::uint32_t forget(Condition condition);

  std::array<Level, kLevels> levels_;
  std::uint64_t uses_ = 0;
};

}  // namespace softhca::host
