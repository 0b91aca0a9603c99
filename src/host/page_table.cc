#include "host/page_table.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace softhca::host {
namespace {

PhysAddr entry_address(PhysAddr table, VirtAddr at, unsigned level) {
  return advance(table, pte::index(at, level) * sizeof(std::uint64_t));
}

unsigned level_of(std::uint64_t bytes) {
  ASSERT(bytes == kPage4K || bytes == kPage2M || bytes == kPage1G);
  return bytes == kPage4K ? 1 : bytes == kPage2M ? 2 : 3;
}

// Of a table above: the leaves decide.
constexpr std::uint64_t kAnything = pte::kPresent | pte::kWritable | pte::kUser;

std::uint64_t right_bits(PageRights rights) {
  std::uint64_t bits = pte::kPresent;
  if (rights.has(PageRight::Read)) bits |= pte::kUser;
  if (rights.has(PageRight::Write)) bits |= pte::kWritable;
  if (!rights.has(PageRight::Execute)) bits |= pte::kNoExecute;
  return bits;
}

std::uint64_t leaf_value(PhysAddr frame, std::uint64_t bytes, PageRights rights) {
  ASSERT(offset_in(frame, bytes) == 0);
  return frame.value | right_bits(rights) | (bytes == kPage4K ? 0 : pte::kPageSize);
}

std::uint64_t swap_value(std::uint64_t slot) { return slot << 12 | pte::kSwapped; }

}  // namespace

std::uint64_t PageTableView::load(PhysAddr entry_at) const {
  std::uint64_t value = 0;
  if (Range<PhysSpace>{{0}, ram_->size()}.contains(entry_at, sizeof value))
    std::memcpy(&value, ram_->cpu_address(entry_at), sizeof value);
  return value;
}

bool PageTableView::is_canonical(VirtAddr at) const {
  const unsigned unused = 63 - (pte::shift(levels_) + 8);
  const auto extended = static_cast<std::int64_t>(at.value << unused) >> unused;
  return static_cast<std::uint64_t>(extended) == at.value;
}

PageWalk PageTableView::walk(VirtAddr at) const {
  PageWalk walk;
  walk.end = PageWalk::End::NotCanonical;
  if (!is_canonical(at)) return walk;
  bool writable = true;
  bool user = true;
  bool execute = true;
  PhysAddr table = root_;
  for (unsigned level = levels_;; --level) {
    const PhysAddr entry_at = entry_address(table, at, level);
    const std::uint64_t value = load(entry_at);
    walk.steps[walk.steps_made++] = {level, entry_at, value};
    walk.end = PageWalk::End::NotPresent;
    if (!pte::present(value)) return walk;
    writable = writable && (value & pte::kWritable) != 0;
    user = user && (value & pte::kUser) != 0;
    execute = execute && (value & pte::kNoExecute) == 0;
    table = pte::address(value);
    const bool leaf = pte::leaf(value, level);
    walk.end = PageWalk::End::BadEntry;
    const std::uint64_t bytes = leaf ? pte::page_bytes(level) : kPage4K;
    if (leaf && level > 3) return walk;
    if (offset_in(table, bytes) != 0) return walk;
    if (!Range<PhysSpace>{{0}, ram_->size()}.contains(table, bytes)) return walk;
    if (!leaf) continue;
    walk.end = PageWalk::End::Leaf;
    walk.phys = advance(table, offset_in(at, bytes));
    walk.leaf_bytes = bytes;
    walk.dirty = (value & pte::kDirty) != 0;
    if (user) walk.rights |= PageRight::Read;
    if (user && writable) walk.rights |= PageRight::Write;
    if (user && execute) walk.rights |= PageRight::Execute;
    return walk;
  }
}

PageTable::PageTable(Ram& ram, FrameAllocator& frames, Pid owner, unsigned levels)
    : ram_(ram), frames_(frames), owner_(owner), levels_(levels) {
  ASSERT(levels == 4 || levels == 5);
  const auto root = new_table();
  ASSERT(root);
  root_ = *root;
}

PageTable::~PageTable() {
  for (const auto& [table, live] : live_) frames_.release({table}, kPage4K);
}

std::optional<PhysAddr> PageTable::new_table() {
  const auto frame = frames_.take(kPage4K, {FrameUse::PageTable, owner_, {}});
  if (frame) live_.emplace(frame->value, 0);
  return frame;
}

// Keeps count of the entries of the table that are not empty.
void PageTable::store(PhysAddr entry_at, std::uint64_t value) {
  const std::uint64_t old = view().load(entry_at);
  std::memcpy(ram_.cpu_address(entry_at), &value, sizeof value);
  if ((old == 0) == (value == 0)) return;
  const auto live = live_.find(align_down(entry_at, kPage4K).value);
  ASSERT(live != live_.end());
  if (old == 0)
    ++live->second;
  else if (live->second != 0)
    --live->second;
}

bool PageTable::map(VirtAddr at, PhysAddr frame, std::uint64_t bytes, PageRights rights) {
  ASSERT(offset_in(at, bytes) == 0);
  return put(at, bytes, leaf_value(frame, bytes, rights));
}

bool PageTable::map_swapped(VirtAddr at, std::uint64_t slot) {
  return put(at, kPage4K, swap_value(slot));
}

bool PageTable::put(VirtAddr at, std::uint64_t bytes, std::uint64_t value) {
  ASSERT(view().is_canonical(at));
  const unsigned leaf_level = level_of(bytes);
  PhysAddr table = root_;
  for (unsigned level = levels_; level > leaf_level; --level) {
    const PhysAddr entry_at = entry_address(table, at, level);
    const std::uint64_t entry = view().load(entry_at);
    ASSERT(entry == 0 || (entry & pte::kPageSize) == 0);
    if (entry != 0) {
      table = pte::address(entry);
      continue;
    }
    const auto fresh = new_table();
    if (!fresh) {
      drop_tables(at, level);
      return false;
    }
    store(entry_at, fresh->value | kAnything);
    table = *fresh;
  }
  const PhysAddr entry_at = entry_address(table, at, leaf_level);
  ASSERT(view().load(entry_at) == 0);
  store(entry_at, value);
  return true;
}

// Gives back the tables on the way to `at`, from that of `level` upwards, that have no entries.
void PageTable::drop_tables(VirtAddr at, unsigned level) {
  std::array<PhysAddr, kMaxLevels + 1> tables;
  tables[levels_] = root_;
  for (unsigned l = levels_; l > level; --l)
    tables[l - 1] = pte::address(view().load(entry_address(tables[l], at, l)));
  for (unsigned l = level; l < levels_; ++l) {
    const auto live = live_.find(tables[l].value);
    if (live == live_.end() || live->second != 0) return;
    live_.erase(live);
    store(entry_address(tables[l + 1], at, l + 1), 0);
    frames_.release(tables[l], kPage4K);
  }
}

std::optional<PageEntry> PageTable::find(VirtAddr at) const {
  if (!view().is_canonical(at)) return std::nullopt;
  PhysAddr table = root_;
  for (unsigned level = levels_;; --level) {
    const PhysAddr entry_at = entry_address(table, at, level);
    const std::uint64_t value = view().load(entry_at);
    if (value == 0) return std::nullopt;
    if (pte::leaf(value, level)) {
      const std::uint64_t bytes = pte::page_bytes(level);
      return PageEntry{align_down(at, bytes), bytes, entry_at, value};
    }
    table = pte::address(value);
  }
}

std::optional<PageEntry> PageTable::next(VirtAddr from, VirtAddr end) const {
  const VirtAddr upper_half{~std::uint64_t{0} << (pte::shift(levels_) + 8)};
  while (from < end) {
    if (!view().is_canonical(from)) from = std::max(from, upper_half);
    if (from >= end) break;
    PhysAddr table = root_;
    unsigned level = levels_;
    for (;; --level) {
      const PhysAddr entry_at = entry_address(table, from, level);
      const std::uint64_t value = view().load(entry_at);
      if (value == 0) break;
      const std::uint64_t bytes = pte::page_bytes(level);
      if (pte::leaf(value, level))
        return PageEntry{align_down(from, bytes), bytes, entry_at, value};
      table = pte::address(value);
    }
    const VirtAddr start = align_down(from, pte::page_bytes(level));
    from = advance(start, pte::page_bytes(level));
    if (from < start) return std::nullopt;
  }
  return std::nullopt;
}

void PageTable::unmap(const PageEntry& entry) {
  store(entry.entry_at, 0);
  drop_tables(entry.at, level_of(entry.bytes));
}

void PageTable::protect(const PageEntry& entry, PageRights rights) {
  constexpr std::uint64_t kRights = pte::kPresent | pte::kWritable | pte::kUser | pte::kNoExecute;
  ASSERT(entry.present());
  store(entry.entry_at, (view().load(entry.entry_at) & ~kRights) | right_bits(rights));
}

void PageTable::replace_frame(const PageEntry& entry, PhysAddr frame) {
  ASSERT(entry.present() && offset_in(frame, entry.bytes) == 0);
  const std::uint64_t rest = view().load(entry.entry_at) & ~pte::kAddress;
  store(entry.entry_at, rest | frame.value);
}

void PageTable::clear_accessed(const PageEntry& entry) {
  ASSERT(entry.present());
  store(entry.entry_at, view().load(entry.entry_at) & ~pte::kAccessed);
}

void PageTable::swap_out(const PageEntry& entry, std::uint64_t slot) {
  ASSERT(entry.present() && entry.bytes == kPage4K);
  store(entry.entry_at, swap_value(slot));
}

void PageTable::swap_in(const PageEntry& entry, PhysAddr frame, PageRights rights) {
  ASSERT(pte::swapped(entry.value));
  store(entry.entry_at, leaf_value(frame, kPage4K, rights));
}

}  // namespace softhca::host
