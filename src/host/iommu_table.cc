#include "host/iommu_table.h"

#include "base/range.h"

namespace softhca::host {
namespace {

TranslationFault blocked(pcie::Direction direction, bool mapped) {
  const bool read = direction == pcie::Direction::Read;
  return {read ? VtdReason::NoRead : VtdReason::NoWrite, mapped};
}

}  // namespace

trace::Reason reason_of(TranslationFault fault, BusAddr at, std::uint64_t bytes) {
  using enum trace::ReasonId;
  trace::ReasonId id = IommuNotMapped;
  if (fault.vtd == VtdReason::None) id = UnsupportedRequest;
  if (fault.vtd >= VtdReason::NoRootEntry && fault.vtd <= VtdReason::BadContextEntry)
    id = IommuNoContext;
  if (fault.vtd == VtdReason::BeyondWidth) id = IommuBadAddress;
  if (fault.mapped && fault.vtd == VtdReason::NoRead) id = IommuNoRead;
  if (fault.mapped && fault.vtd == VtdReason::NoWrite) id = IommuNoWrite;
  return {.id = id, .object = 0, .address = at.value, .length = bytes, .low = 0, .high = 0};
}

WalkStart IommuView::root() const {
  return {.level = kIommuLevels, .table = root_, .rights = entry::kRead | entry::kWrite};
}

Result<Translation, TranslationFault> IommuView::translate_from(const WalkStart& start, BusAddr at,
                                                                pcie::Direction direction,
                                                                WalkTrail* trail) const {
  if (at.value >> kBusAddressBits != 0) return TranslationFault{VtdReason::BeyondWidth, false};
  const std::uint64_t frames = tables_.size() / kPage4K;
  // One word is read at a time, whole; the memory may be a read-only mapping of a peer's.
  const auto* entries = reinterpret_cast<const std::uint64_t*>(tables_.data());
  std::uint64_t table = start.table;
  std::uint64_t rights = start.rights;
  for (unsigned level = start.level; level >= 1; --level) {
    if (table >= frames) return TranslationFault{VtdReason::BadTable, false};
    const std::uint64_t e = __atomic_load_n(
        entries + table * kTableEntries + entry::index(at, level), __ATOMIC_ACQUIRE);
    if (!entry::present(e)) return blocked(direction, false);
    rights &= e;
    if (!entry::leaf(e, level)) {
      table = (e & entry::kAddress) >> 12;
      if (trail != nullptr) trail->tables[trail->count++] = {level - 1, table, rights};
      continue;
    }
    if (level == kIommuLevels) return TranslationFault{VtdReason::BadTable, false};
    const std::uint64_t leaf_bytes = entry::bytes_of_level(level);
    const PhysAddr leaf = align_down(PhysAddr{e & entry::kAddress}, leaf_bytes);
    const Translation found{.phys = advance(leaf, offset_in(at, leaf_bytes)),
                            .leaf_bytes = leaf_bytes,
                            .rights = BusRights::of_bits(static_cast<std::uint8_t>(rights)),
                            .levels_read = static_cast<std::uint8_t>(start.level + 1 - level)};
    if (!allows(found, direction)) return blocked(direction, true);
    return found;
  }
  return TranslationFault{VtdReason::BadTable, false};
}

}  // namespace softhca::host
