// IommuView: walks a domain's translation table. Reads only; anybody who maps the tables may do it.
//
// The table has four levels of 512 entries, as VT-d's second level: a 48-bit bus address is 9 bits
// of index for each level and 12 bits of offset. An entry (64 bits, little-endian):
//
//   bit 0       R: reads allowed
//   bit 1       W: writes allowed; R = W = 0: not present
//   bit 7       PS: this is a leaf of 2 MiB (level 2) or 1 GiB (level 3); level 1 is always a leaf
//   bits 51:12  leaf: physical address; else index of the next table's frame in TableFrames
//
// Rights are the AND over the levels.
//
// Spec      Intel VT-d, 3.7 (second-level translation), 9.8 (entries), 7.2.3 (fault reasons)
// See also  host/iommu.h, which writes the tables
#pragma once
#include <array>
#include <cstdint>

#include "base/address.h"
#include "base/bytes.h"
#include "base/flags.h"
#include "base/result.h"
#include "host/table_frames.h"
#include "pcie/port.h"
#include "trace/reason.h"

namespace softhca::host {

enum class BusRight : std::uint8_t { Read = 1, Write = 2 };
using BusRights = Flags<BusRight>;
constexpr BusRights operator|(BusRight a, BusRight b) { return BusRights(a) | b; }

constexpr BusRight right_for(pcie::Direction direction) {
  return direction == pcie::Direction::Read ? BusRight::Read : BusRight::Write;
}

inline constexpr unsigned kBusAddressBits = 48;
inline constexpr unsigned kIommuLevels = 4;

// VT-d's numbers. A page that is not mapped answers NoRead or NoWrite, as one without the right.
enum class VtdReason : std::uint8_t {
  None = 0,  // not the IOMMU's refusal: nothing claims the address
  NoRootEntry = 1,
  NoContextEntry = 2,
  BadContextEntry = 3,
  BeyondWidth = 4,
  NoWrite = 5,
  NoRead = 6,
  BadTable = 7
};

struct Translation {
  PhysAddr phys;               // of the byte asked for
  std::uint64_t leaf_bytes{};  // 4 KiB, 2 MiB or 1 GiB
  BusRights rights;
  std::uint8_t levels_read{};  // table entries read to find it; 0 from a cache
  friend bool operator==(const Translation&, const Translation&) = default;
};

struct TranslationFault {
  VtdReason vtd{};
  bool mapped{};  // the page is mapped, only without the right
};

// The reason that our own users are told. `at` is the first byte that failed.
trace::Reason reason_of(TranslationFault fault, BusAddr at, std::uint64_t bytes);

// A place where a walk may start: a table whose entries are of `level`, and the rights that the
// entries above it leave.
struct WalkStart {
  unsigned level = kIommuLevels;
  std::uint64_t table = 0;  // frame
  std::uint64_t rights = 0;
};

// The tables that a walk went on to, from above.
struct WalkTrail {
  std::array<WalkStart, kIommuLevels - 1> tables{};
  unsigned count = 0;
};

class IommuView {
 public:
  IommuView(ConstBytes tables, FrameIndex root) : tables_(tables), root_(root) {}

  Result<Translation, TranslationFault> translate(BusAddr at, pcie::Direction direction) const {
    return translate_from(root(), at, direction, nullptr);
  }

  // The same from a table that is known already; tells the tables on the way if asked (of a walk
  // that ends in a fault too).
  Result<Translation, TranslationFault> translate_from(const WalkStart& start, BusAddr at,
                                                       pcie::Direction direction,
                                                       WalkTrail* trail) const;
  WalkStart root() const;
  ConstBytes tables() const { return tables_; }

  // Does the right allow it? For translations that come from a cache.
  static bool allows(const Translation& found, pcie::Direction direction) {
    return found.rights.has(right_for(direction));
  }

 private:
  ConstBytes tables_;  // as TableFrames::storage(); may be a peer's, so indices are checked
  FrameIndex root_;
};

// Where things are in an entry; for the writer and for tests.
namespace entry {
inline constexpr std::uint64_t kRead = 1u << 0;
inline constexpr std::uint64_t kWrite = 1u << 1;
inline constexpr std::uint64_t kPageSize = 1u << 7;
inline constexpr std::uint64_t kAddress = 0x000f'ffff'ffff'f000;

constexpr bool present(std::uint64_t e) { return (e & (kRead | kWrite)) != 0; }
// Level 1 has 4 KiB leaves, 2 has 2 MiB, 3 has 1 GiB, 4 none.
constexpr bool leaf(std::uint64_t e, unsigned level) { return level == 1 || (e & kPageSize) != 0; }
constexpr std::uint64_t bytes_of_level(unsigned level) {
  return std::uint64_t{1} << (12 + 9 * (level - 1));
}
constexpr std::size_t index(BusAddr at, unsigned level) {
  return static_cast<std::size_t>(at.value >> (12 + 9 * (level - 1))) & (kTableEntries - 1);
}
constexpr FrameIndex next_table(std::uint64_t e) {
  return static_cast<FrameIndex>((e & kAddress) >> 12);
}
}  // namespace entry

}  // namespace softhca::host
