#include "host/mmu.h"

#include <cstring>

namespace softhca::host {
namespace {

PageRight right_needed(CpuAccess kind) {
  return kind == CpuAccess::Load    ? PageRight::Read
         : kind == CpuAccess::Store ? PageRight::Write
                                    : PageRight::Execute;
}

void set_bits(Ram& ram, const PageWalk::Step& step, std::uint64_t bits) {
  if ((step.value & bits) == bits) return;
  const std::uint64_t value = step.value | bits;
  std::memcpy(ram.cpu_address(step.entry_at), &value, sizeof value);
}

}  // namespace

PageFault Mmu::fault(VirtAddr at, CpuAccess kind, std::uint32_t code) {
  ++counts_.faults;
  code |= fault_code::kUser;
  if (kind == CpuAccess::Store) code |= fault_code::kWrite;
  if (kind == CpuAccess::Fetch) code |= fault_code::kFetch;
  return {at, code};
}

Result<CpuTranslation, PageFault> Mmu::access(const CpuContext& context, VirtAddr at,
                                              CpuAccess kind, Time now) {
  const PageRight right = right_needed(kind);
  const bool write = kind == CpuAccess::Store;
  if (const auto known = tlb_.lookup(context.pcid, at);
      known && known->rights.has(right) && (!write || known->dirty)) {
    ++counts_.tlb_hits;
    const PhysAddr phys = advance(known->frame, offset_in(at, known->bytes));
    tracer_.emit(trace::EventKind::TlbHit, now, context.pid.value, at.value, phys.value,
                 known->bytes);
    return CpuTranslation{phys, known->bytes, 0};
  }
  const PageWalk walk = PageTableView(ram_, context.root, levels_).walk(at);
  ++counts_.walks;
  counts_.levels_read += walk.steps_made;
  const bool allowed = walk.end == PageWalk::End::Leaf && walk.rights.has(right);
  tracer_.emit(trace::EventKind::MmuWalk, now, context.pid.value, at.value,
               allowed ? walk.phys.value : 0, walk.leaf_bytes, walk.steps_made, write ? 1 : 0);
  if (!allowed) {
    // A fault makes the processor forget what it knew of the page.
    tlb_.invalidate(context.pcid, {at, 1});
    if (walk.end == PageWalk::End::BadEntry)
      return fault(at, kind, fault_code::kPresent | fault_code::kReserved);
    return fault(at, kind, walk.end == PageWalk::End::Leaf ? fault_code::kPresent : 0);
  }
  for (unsigned i = 0; i + 1 < walk.steps_made; ++i) set_bits(ram_, walk.steps[i], pte::kAccessed);
  set_bits(ram_, walk.last(), pte::kAccessed | (write ? pte::kDirty : 0));
  tlb_.insert(
      context.pcid, at,
      {align_down(walk.phys, walk.leaf_bytes), walk.leaf_bytes, walk.rights, walk.dirty || write});
  return CpuTranslation{walk.phys, walk.leaf_bytes, walk.steps_made};
}

std::uint32_t Mmu::shoot_down(const CpuContext& context, Range<VirtSpace> range, Time now) {
  const std::uint32_t entries = tlb_.invalidate(context.pcid, range);
  tracer_.emit(trace::EventKind::TlbShootdown, now, context.pid.value, range.start.value,
               range.length, entries);
  return entries;
}

}  // namespace softhca::host
