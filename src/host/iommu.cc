#include "host/iommu.h"

#include <algorithm>
#include <optional>

#include "base/assert.h"

namespace softhca::host {
namespace {

constexpr std::uint64_t kBusSpaceEnd = std::uint64_t{1} << kBusAddressBits;

FrameIndex root_of(TableFrames& frames) {
  const std::optional<FrameIndex> root = frames.take();
  ASSERT(root.has_value());
  return *root;
}

// The level of the largest leaf that fits at this place.
unsigned leaf_level(BusAddr bus, PhysAddr phys, std::uint64_t bytes) {
  for (unsigned level = 3; level > 1; --level) {
    const std::uint64_t size = entry::bytes_of_level(level);
    if (bytes >= size && ((bus.value | phys.value) & (size - 1)) == 0) return level;
  }
  return 1;
}

std::uint64_t leaf_entry(PhysAddr phys, unsigned level, BusRights rights) {
  static_assert(static_cast<std::uint64_t>(BusRight::Read) == entry::kRead &&
                static_cast<std::uint64_t>(BusRight::Write) == entry::kWrite);
  return phys.value | rights.bits | (level > 1 ? entry::kPageSize : 0);
}

}  // namespace

Iommu::Iommu(TableFrames& frames, RequesterId requester, trace::Tracer& tracer)
    : frames_(frames), requester_(requester), tracer_(tracer), root_(root_of(frames)) {
  tracer_.count(trace::Counter::IommuTablePages);
}

Iommu::~Iommu() {
  clear(root_, kIommuLevels, 0, kBusSpaceEnd - 1);
  frames_.give_back(root_);
}

// The table whose entries are leaves of `level` for `bus`; tables on the way are made.
// False when no frame is left.
bool Iommu::find_table(BusAddr bus, unsigned level, FrameIndex& frame) {
  const std::uint64_t region = bus.value / entry::bytes_of_level(level) / kTableEntries;
  if (last_.valid && last_.level == level && last_.region == region) {
    frame = last_.frame;
    return true;
  }
  frame = root_;
  for (unsigned at_level = kIommuLevels; at_level > level; --at_level) {
    const std::size_t index = entry::index(bus, at_level);
    const std::uint64_t e = frames_.load(frame, index);
    if (entry::present(e)) {
      ASSERT(!entry::leaf(e, at_level));
      frame = entry::next_table(e);
      continue;
    }
    const std::optional<FrameIndex> fresh = frames_.take();
    if (!fresh) return false;
    ++tables_;
    tracer_.count(trace::Counter::IommuTablePages);
    frames_.store(frame, index, std::uint64_t{*fresh} << 12 | entry::kRead | entry::kWrite);
    frame = *fresh;
  }
  last_ = {.valid = true, .level = level, .region = region, .frame = frame};
  return true;
}

Result<std::uint64_t, trace::Reason> Iommu::map(BusAddr bus, PhysAddr phys, std::uint64_t bytes,
                                                BusRights rights, Time now) {
  ASSERT(bytes > 0 && ((bus.value | phys.value | bytes) & (kPage4K - 1)) == 0);
  ASSERT(!rights.empty());
  ASSERT((Range<BusSpace>{{0}, kBusSpaceEnd}.contains(bus, bytes)));
  ASSERT((Range<PhysSpace>{{0}, entry::kAddress}.contains(phys, bytes)));
  ASSERT(!kInterruptRange.overlaps({bus, bytes}));

  std::uint64_t leaves = 0;
  std::uint64_t done = 0;
  while (done < bytes) {
    const BusAddr run_bus = advance(bus, done);
    const PhysAddr run_phys = advance(phys, done);
    const unsigned level = leaf_level(run_bus, run_phys, bytes - done);
    const std::uint64_t size = entry::bytes_of_level(level);
    FrameIndex table = 0;
    if (!find_table(run_bus, level, table)) {
      last_ = {};
      clear(root_, kIommuLevels, bus.value, run_bus.value + (size - 1));
      return trace::Reason{.id = trace::ReasonId::AddressesExhausted,
                           .object = 0,
                           .address = bus.value,
                           .length = bytes,
                           .low = 0,
                           .high = 0};
    }
    // Fill this table as far as leaves of this size go.
    std::uint64_t run_leaves = 0;
    std::size_t index = entry::index(run_bus, level);
    do {
      ASSERT(!entry::present(frames_.load(table, index)));
      frames_.store(table, index++, leaf_entry(advance(phys, done), level, rights));
      done += size;
      ++run_leaves;
    } while (index < kTableEntries && done < bytes &&
             leaf_level(advance(bus, done), advance(phys, done), bytes - done) == level);
    leaves += run_leaves;
    tracer_.emit(trace::EventKind::IommuMap, now, 0, run_bus.value, run_phys.value, size,
                 run_leaves, rights.bits);
  }
  leaves_ += leaves;
  tracer_.count(trace::Counter::IommuLeavesMapped, leaves);
  return leaves;
}

std::uint64_t Iommu::unmap(BusAddr bus, std::uint64_t bytes, Time now, EmptyTables empty) {
  ASSERT(bytes > 0 && ((bus.value | bytes) & (kPage4K - 1)) == 0);
  ASSERT((Range<BusSpace>{{0}, kBusSpaceEnd}.contains(bus, bytes)));
  last_ = {};
  const std::uint64_t leaves =
      clear(root_, kIommuLevels, bus.value, bus.value + (bytes - 1), empty);
  leaves_ -= leaves;
  tracer_.count(trace::Counter::IommuLeavesUnmapped, leaves);
  tracer_.emit(trace::EventKind::IommuUnmap, now, 0, bus.value, bytes, leaves);
  return leaves;
}

void Iommu::prune(Range<BusSpace> range) {
  last_ = {};
  prune(root_, kIommuLevels, range.start.value, range.start.value + (range.length - 1));
}

// Leaves stay; tables below `table` that hold nothing go.
void Iommu::prune(FrameIndex table, unsigned level, std::uint64_t first, std::uint64_t last) {
  const std::uint64_t size = entry::bytes_of_level(level);
  for (std::uint64_t at = first; at <= last && frames_.live_entries(table) != 0;
       at = (at | (size - 1)) + 1) {
    const std::size_t index = entry::index({at}, level);
    const std::uint64_t e = frames_.load(table, index);
    if (!entry::present(e) || entry::leaf(e, level)) continue;
    const FrameIndex below = entry::next_table(e);
    if (level > 2) prune(below, level - 1, at, std::min(at | (size - 1), last));
    if (frames_.live_entries(below) == 0) drop_table(table, index, below);
  }
}

void Iommu::drop_table(FrameIndex above, std::size_t index, FrameIndex empty) {
  frames_.store(above, index, 0);
  frames_.give_back(empty);
  --tables_;
}

// Clears the entries of `table` between the bus addresses `first` and `last`, both within what the
// table covers, and gives back the tables below it that become empty. Returns the leaves cleared.
std::uint64_t Iommu::clear(FrameIndex table, unsigned level, std::uint64_t first,
                           std::uint64_t last, EmptyTables empty) {
  std::uint64_t leaves = 0;
  const std::uint64_t size = entry::bytes_of_level(level);
  for (std::uint64_t at = first; at <= last && frames_.live_entries(table) != 0;
       at = (at | (size - 1)) + 1) {
    const std::size_t index = entry::index({at}, level);
    const std::uint64_t e = frames_.load(table, index);
    if (!entry::present(e)) continue;
    const std::uint64_t entry_last = at | (size - 1);
    if (entry::leaf(e, level)) {
      ASSERT((at & (size - 1)) == 0 && entry_last <= last);
      frames_.store(table, index, 0);
      ++leaves;
      continue;
    }
    const FrameIndex below = entry::next_table(e);
    leaves += clear(below, level - 1, at, std::min(entry_last, last), empty);
    if (empty == EmptyTables::GiveBack && frames_.live_entries(below) == 0)
      drop_table(table, index, below);
  }
  return leaves;
}

trace::Reason Iommu::record_fault(TranslationFault fault, BusAddr at, std::uint64_t bytes,
                                  pcie::Direction direction, Time now) {
  faults_.add({.at_time = now,
               .page = align_down(at, kPage4K),
               .requester = requester_,
               .vtd = fault.vtd,
               .direction = direction});
  tracer_.count(trace::Counter::IommuFaults);
  tracer_.emit(trace::EventKind::IommuFault, now, 0, at.value, bytes,
               direction == pcie::Direction::Write ? 1 : 0, static_cast<std::uint64_t>(fault.vtd),
               requester_.value);
  return reason_of(fault, at, bytes);
}

}  // namespace softhca::host
