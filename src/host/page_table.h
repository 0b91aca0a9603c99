// PageTable: a program's translation table as an x86-64 processor reads it, in frames of RAM.
//
// Four levels (or five) of 512 entries of 64 bits, little-endian. A virtual address is 9 bits of
// index for each level and 12 bits of offset, sign-extended.
//
//   bit 0 P, 1 RW, 2 US, 5 A, 6 D, 63 XD    bits 51:12 frame
//   bit 7 PS: a leaf of 2 MiB (level 2) or 1 GiB (level 3); level 1 is always a leaf
//   P = 0 and not all zero: the page is in a swap slot, whose number lies in bits 51:12
//
// Rights are the AND over the levels. PageTableView only reads, as the processor's walker does;
// PageTable is the kernel's side, and gives tables back that have no entries left.
//
// Spec  Intel SDM 3A, 4.5 (4-level and 5-level paging), tables 4-15 to 4-20
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "base/address.h"
#include "base/flags.h"
#include "base/range.h"
#include "host/frame_allocator.h"
#include "host/ram.h"

namespace softhca::host {

// Write and Execute need Read.
enum class PageRight : std::uint8_t { Read = 1, Write = 2, Execute = 4 };
using PageRights = Flags<PageRight>;
constexpr PageRights operator|(PageRight a, PageRight b) { return PageRights(a) | b; }

inline constexpr unsigned kMaxLevels = 5;

// Where things are in an entry.
namespace pte {
inline constexpr std::uint64_t kPresent = std::uint64_t{1} << 0;
inline constexpr std::uint64_t kWritable = std::uint64_t{1} << 1;
inline constexpr std::uint64_t kUser = std::uint64_t{1} << 2;
inline constexpr std::uint64_t kAccessed = std::uint64_t{1} << 5;
inline constexpr std::uint64_t kDirty = std::uint64_t{1} << 6;
inline constexpr std::uint64_t kPageSize = std::uint64_t{1} << 7;
inline constexpr std::uint64_t kNoExecute = std::uint64_t{1} << 63;
inline constexpr std::uint64_t kAddress = 0x000f'ffff'ffff'f000;
// Not present: a swap slot. A bit that the processor ignores there tells it from an empty entry.
inline constexpr std::uint64_t kSwapped = std::uint64_t{1} << 9;

constexpr bool present(std::uint64_t e) { return (e & kPresent) != 0; }
constexpr bool swapped(std::uint64_t e) { return !present(e) && (e & kSwapped) != 0; }
constexpr bool leaf(std::uint64_t e, unsigned level) { return level == 1 || (e & kPageSize) != 0; }
constexpr PhysAddr address(std::uint64_t e) { return {e & kAddress}; }
constexpr std::uint64_t swap_slot(std::uint64_t e) { return (e & kAddress) >> 12; }
constexpr unsigned shift(unsigned level) { return 12 + 9 * (level - 1); }
constexpr std::uint64_t page_bytes(unsigned level) { return std::uint64_t{1} << shift(level); }
constexpr std::size_t index(VirtAddr at, unsigned level) {
  return static_cast<std::size_t>(at.value >> shift(level)) & 511;
}
// US clear stands for no right at all: the program may not, whatever else the entry says.
constexpr PageRights rights(std::uint64_t e) {
  if (!present(e) || (e & kUser) == 0) return {};
  PageRights all = PageRight::Read;
  if ((e & kWritable) != 0) all |= PageRight::Write;
  if ((e & kNoExecute) == 0) all |= PageRight::Execute;
  return all;
}
}  // namespace pte

// The entry of one page: a leaf, or a page in swap.
struct PageEntry {
  VirtAddr at;            // start of the page
  std::uint64_t bytes{};  // 4 KiB, 2 MiB or 1 GiB
  PhysAddr entry_at;      // where the entry lies in RAM
  std::uint64_t value{};

  bool present() const { return pte::present(value); }
  PhysAddr frame() const { return {value & pte::kAddress & ~(bytes - 1)}; }
  bool writable() const { return (value & pte::kWritable) != 0; }
  bool accessed() const { return (value & pte::kAccessed) != 0; }
  bool dirty() const { return (value & pte::kDirty) != 0; }
};

// A walk as the processor makes it, step by step.
struct PageWalk {
  enum class End : std::uint8_t { Leaf, NotPresent, BadEntry, NotCanonical };
  struct Step {
    unsigned level{};   // 4 (or 5) down to 1
    PhysAddr entry_at;  // where the entry lies in RAM
    std::uint64_t value{};
  };

  End end{};
  unsigned steps_made{};
  std::array<Step, kMaxLevels> steps{};
  PhysAddr phys;  // Leaf: of the byte asked for
  std::uint64_t leaf_bytes{};
  PageRights rights;  // Leaf: AND over the levels
  bool dirty{};       // Leaf: its D bit

  const Step& last() const { return steps[steps_made - 1]; }
};

class PageTableView {
 public:
  // OWNS nothing; `ram` outlives this. REQUIRES: levels 4 or 5.
  PageTableView(const Ram& ram, PhysAddr root, unsigned levels = 4)
      : ram_(&ram), root_(root), levels_(levels) {}

  PageWalk walk(VirtAddr at) const;
  bool is_canonical(VirtAddr at) const;
  PhysAddr root() const { return root_; }
  unsigned levels() const { return levels_; }

  // 64 bits of a table; 0, which is "not present", beyond the end of RAM.
  std::uint64_t load(PhysAddr entry_at) const;

 private:
  const Ram* ram_;
  PhysAddr root_;
  unsigned levels_;
};

class PageTable {
 public:
  // Takes a frame for the root. OWNS nothing else; `ram` and `frames` outlive this.
  // REQUIRES: a 4 KiB frame is free; levels 4 or 5.
  PageTable(Ram& ram, FrameAllocator& frames, Pid owner, unsigned levels = 4);
  // Gives all tables back, whatever they say.
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  // Maps one page. False: no frame for a table; then nothing has changed.
  // REQUIRES: bytes 4 KiB, 2 MiB or 1 GiB, both addresses aligned to it; nothing mapped there.
  [[nodiscard]] bool map(VirtAddr at, PhysAddr frame, std::uint64_t bytes, PageRights rights);
  // The same for a 4 KiB page that lies in swap.
  [[nodiscard]] bool map_swapped(VirtAddr at, std::uint64_t slot);

  // The entry of the page that holds the address; nothing where it is empty.
  std::optional<PageEntry> find(VirtAddr at) const;
  // The first entry that is not empty at or behind `from`, before `end`.
  std::optional<PageEntry> next(VirtAddr from, VirtAddr end) const;

  // REQUIRES for all: `entry` is what find() or next() says now.
  void unmap(const PageEntry& entry);  // empties it, and gives tables without entries back
  void protect(const PageEntry& entry, PageRights rights);
  void replace_frame(const PageEntry& entry, PhysAddr frame);
  void clear_accessed(const PageEntry& entry);
  void swap_out(const PageEntry& entry, std::uint64_t slot);
  void swap_in(const PageEntry& entry, PhysAddr frame, PageRights rights);

  PageTableView view() const { return {ram_, root_, levels_}; }
  PageWalk walk(VirtAddr at) const { return view().walk(at); }
  PhysAddr root() const { return root_; }
  std::uint64_t tables() const { return live_.size(); }  // frames, the root included

 private:
  bool put(VirtAddr at, std::uint64_t bytes, std::uint64_t value);
  std::optional<PhysAddr> new_table();
  void drop_tables(VirtAddr at, unsigned leaf_level);
  void store(PhysAddr entry_at, std::uint64_t value);

  Ram& ram_;
  FrameAllocator& frames_;
  Pid owner_;
  unsigned levels_;
  PhysAddr root_;
  std::unordered_map<std::uint64_t, std::uint32_t> live_;  // table -> entries that are not empty
};

}  // namespace softhca::host
