#include "host/tlb.h"

#include <bit>

#include "base/assert.h"

namespace softhca::host {
namespace {

unsigned shift_of(std::uint64_t page_bytes) {
  return static_cast<unsigned>(std::countr_zero(page_bytes));
}

constexpr std::array<unsigned, 3> kShifts{12, 21, 30};

}  // namespace

Tlb::Tlb(const TlbShape& shape) {
  const std::array<CacheSize, kLevels> sizes{shape.first_4k, shape.first_2m, shape.first_1g,
                                             shape.second, shape.second_1g};
  for (std::size_t i = 0; i < kLevels; ++i) {
    ASSERT(std::has_single_bit(sizes[i].sets) && sizes[i].ways > 0);
    levels_[i] = {sizes[i], std::vector<Slot>(std::size_t{sizes[i].sets} * sizes[i].ways)};
  }
}

Tlb::Slot* Tlb::find(Level& level, Pcid pcid, VirtAddr at, unsigned shift) {
  const std::uint64_t page = at.value >> shift;
  Slot* const set = level.slots.data() + (page & (level.size.sets - 1)) * level.size.ways;
  for (Slot* slot = set; slot != set + level.size.ways; ++slot)
    if (slot->last_used != 0 && slot->page == page && slot->shift == shift && slot->pcid == pcid)
      return slot;
  return nullptr;
}

void Tlb::put(Level& level, Pcid pcid, VirtAddr at, const TlbEntry& entry) {
  const unsigned shift = shift_of(entry.bytes);
  const std::uint64_t page = at.value >> shift;
  Slot* slot = find(level, pcid, at, shift);
  if (slot == nullptr) {
    Slot* const set = level.slots.data() + (page & (level.size.sets - 1)) * level.size.ways;
    slot = set;
    for (Slot* other = set; other != set + level.size.ways; ++other)
      if (other->last_used < slot->last_used) slot = other;
  }
  *slot = {page, ++uses_, entry, pcid, static_cast<std::uint8_t>(shift)};
}

std::optional<TlbEntry> Tlb::lookup(Pcid pcid, VirtAddr at) {
  for (std::size_t i = 0; i < kShifts.size(); ++i)
    if (Slot* slot = find(levels_[kFirst4K + i], pcid, at, kShifts[i])) {
      slot->last_used = ++uses_;
      return slot->entry;
    }
  for (const unsigned shift : kShifts) {
    Level& second = levels_[shift == kShifts[2] ? kSecond1G : kSecond];
    if (Slot* slot = find(second, pcid, at, shift)) {
      slot->last_used = ++uses_;
      const TlbEntry entry = slot->entry;
      const std::size_t first = shift == kShifts[0]   ? kFirst4K
                                : shift == kShifts[1] ? kFirst2M
                                                      : kFirst1G;
      put(levels_[first], pcid, at, entry);
      return entry;
    }
  }
  return std::nullopt;
}

void Tlb::insert(Pcid pcid, VirtAddr at, const TlbEntry& entry) {
  ASSERT(entry.bytes == kPage4K || entry.bytes == kPage2M || entry.bytes == kPage1G);
  const bool giga = entry.bytes == kPage1G;
  put(levels_[giga ? kFirst1G : entry.bytes == kPage2M ? kFirst2M : kFirst4K], pcid, at, entry);
  put(levels_[giga ? kSecond1G : kSecond], pcid, at, entry);
}

// What the first level knows the second may know too: a page counts once.
template <class Condition>
std::uint32_t Tlb::forget(Condition condition) {
  std::uint32_t forgotten = 0;
  for (std::size_t i = 0; i < kLevels; ++i)
    for (Slot& slot : levels_[i].slots) {
      if (slot.last_used == 0 || !condition(slot)) continue;
      slot.last_used = 0;
      Level& second = levels_[slot.shift == kShifts[2] ? kSecond1G : kSecond];
      const VirtAddr at{slot.page << slot.shift};
      if (i >= kSecond || find(second, slot.pcid, at, slot.shift) == nullptr) ++forgotten;
    }
  return forgotten;
}

std::uint32_t Tlb::invalidate(Pcid pcid, Range<VirtSpace> range) {
  if (range.length > kPage4K)
    return forget([&](const Slot& slot) {
      return slot.pcid == pcid &&
             Range<VirtSpace>{{slot.page << slot.shift}, std::uint64_t{1} << slot.shift}.overlaps(
                 range);
    });
  std::uint32_t forgotten = 0;
  for (const unsigned shift : kShifts) {
    bool found = false;
    for (Level& level : levels_)
      for (const VirtAddr at : {range.start, advance(range.start, range.length - 1)})
        if (Slot* slot = find(level, pcid, at, shift)) {
          slot->last_used = 0;
          found = true;
        }
    forgotten += found ? 1 : 0;
  }
  return forgotten;
}

std::uint32_t Tlb::invalidate_pcid(Pcid pcid) {
  return forget([&](const Slot& slot) { return slot.pcid == pcid; });
}

std::uint32_t Tlb::invalidate_all() {
  return forget([](const Slot&) { return true; });
}

std::uint32_t Tlb::entries() const {
  std::uint32_t used = 0;
  for (const Level& level : levels_)
    for (const Slot& slot : level.slots) used += slot.last_used != 0 ? 1 : 0;
  return used;
}

}  // namespace softhca::host
