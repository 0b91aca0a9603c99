// The kernel's regions and page faults.
#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "host/kernel.h"
#include "host/kernel_parts.h"

namespace softhca::host {
namespace {

constexpr std::uint64_t kReclaimPages = 32;  // at a time, when memory is short
constexpr unsigned kMostFaults = 4;          // of one access; more: the tables make no sense

bool is_page_size(std::uint64_t bytes) {
  return bytes == kPage4K || bytes == kPage2M || bytes == kPage1G;
}

bool is_sane(PageRights rights) { return rights.empty() || rights.has(PageRight::Read); }

PageRight right_for(CpuAccess kind) {
  return kind == CpuAccess::Load    ? PageRight::Read
         : kind == CpuAccess::Store ? PageRight::Write
                                    : PageRight::Execute;
}

// Page aligned, not empty, and where programs may have memory.
bool is_proper(Range<VirtSpace> range) {
  return range.length != 0 && offset_in(range.start, kPage4K) == 0 && range.length % kPage4K == 0 &&
         kProgramSpace.contains(range.start, range.length);
}

VirtAddr end_of(Range<VirtSpace> range) { return advance(range.start, range.length); }

}  // namespace

Result<VirtAddr, MemoryError> Kernel::map_memory(Pid pid, std::uint64_t bytes,
                                                 std::uint64_t page_bytes, PageRights rights) {
  Program& program = running(pid);
  if (!is_page_size(page_bytes) || bytes == 0 || bytes > kProgramEnd.value)
    return MemoryError::BadArgument;
  bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
  VirtAddr at{program.next_address};
  for (;;) {
    at = align_down(advance(at, page_bytes - 1), page_bytes);
    if (!kProgramSpace.contains(at, bytes)) return MemoryError::OutOfMemory;
    const auto next = program.regions.lower_bound(at.value + bytes);
    if (next == program.regions.begin() || std::prev(next)->second.end <= at.value) break;
    at = {std::prev(next)->second.end};
  }
  const auto mapped = map_at(pid, at, bytes, page_bytes, rights);
  if (!mapped) return mapped.error();
  program.next_address = at.value + bytes + kPage4K;  // a page that is never there
  return at;
}

Result<void, MemoryError> Kernel::map_at(Pid pid, VirtAddr at, std::uint64_t bytes,
                                         std::uint64_t page_bytes, PageRights rights) {
  Program& program = running(pid);
  if (!is_page_size(page_bytes) || !is_sane(rights) || !is_proper({at, bytes}) ||
      offset_in(at, page_bytes) != 0 || bytes % page_bytes != 0)
    return MemoryError::BadArgument;
  const auto next = program.regions.lower_bound(at.value + bytes);
  if (next != program.regions.begin() && std::prev(next)->second.end > at.value)
    return MemoryError::Occupied;
  program.regions.emplace(at.value, Region{at.value + bytes, page_bytes, rights, true});
  return {};
}

// Cuts regions at both ends of the range. False, and nothing is cut, where an end is in a page.
bool Kernel::split_regions(Program& program, Range<VirtSpace> range) {
  const VirtAddr ends[] = {range.start, end_of(range)};
  for (const VirtAddr at : ends) {
    const Region* region = program.region_at(at);
    if (region != nullptr && offset_in(at, region->page_bytes) != 0) return false;
  }
  for (const VirtAddr at : ends) {
    const auto next = program.regions.upper_bound(at.value);
    if (next == program.regions.begin()) continue;
    const auto region = std::prev(next);
    if (region->first == at.value || region->second.end <= at.value) continue;
    const Region rest = region->second;
    region->second.end = at.value;
    program.regions.emplace_hint(next, at.value, rest);
  }
  return true;
}

Result<void, MemoryError> Kernel::unmap(Pid pid, Range<VirtSpace> range, Time now) {
  Program& program = running(pid);
  if (!is_proper(range) || !split_regions(program, range)) return MemoryError::BadArgument;
  tell_watchers(program, range, now);
  drop_pages(program, range, now);
  program.regions.erase(program.regions.lower_bound(range.start.value),
                        program.regions.lower_bound(end_of(range).value));
  return {};
}

// Frees what can be freed of the range, and makes orphans of what devices have.
void Kernel::drop_pages(Program& program, Range<VirtSpace> range, Time now) {
  bool any = false;
  VirtAddr at = range.start;
  while (const auto entry = program.table.next(at, end_of(range))) {
    any = true;
    at = advance(entry->at, entry->bytes);
    program.table.unmap(*entry);
    if (entry->present())
      let_go(program, entry->at, entry->frame(), entry->bytes, now);
    else
      release_slot(pte::swap_slot(entry->value));
  }
  if (any) mmu_.shoot_down(program.context(), range, now);
}

// The program's table does not name the frame any more.
void Kernel::let_go(const Program& program, VirtAddr page, PhysAddr frame, std::uint64_t bytes,
                    Time now) {
  const FrameOwner owner = frames_.owner_of(frame);
  // Who wrote into our page tables made us name a frame that is not this page's.
  if (owner.use != FrameUse::Program || owner.at != page || frames_.frame_bytes(frame) != bytes)
    return;
  const std::uint32_t pins = pins_.most_in({frame, bytes});
  if (frames_.shares(frame) == 1 && pins != 0) {
    frames_.set_owner(frame, bytes, {FrameUse::Orphan, program.pid, page});
    orphans_.emplace(frame.value, bytes);
    tracer_.emit(trace::EventKind::FrameOrphaned, now, program.pid.value, page.value, frame.value,
                 pins);
    return;
  }
  if (frames_.release(frame, bytes) || owner.pid != program.pid) return;
  const std::vector<Program*> left = sharers(frame, page);
  if (!left.empty()) frames_.set_owner(frame, bytes, {FrameUse::Program, left[0]->pid, page});
}

Result<void, MemoryError> Kernel::protect(Pid pid, Range<VirtSpace> range, PageRights rights,
                                          Time now) {
  Program& program = running(pid);
  if (!is_proper(range) || !is_sane(rights)) return MemoryError::BadArgument;
  for (VirtAddr at = range.start; at < end_of(range);) {
    const Region* region = program.region_at(at);
    if (region == nullptr) return MemoryError::NotMapped;
    at = {region->end};
  }
  if (!split_regions(program, range)) return MemoryError::BadArgument;
  tell_watchers(program, range, now);
  const auto end = program.regions.lower_bound(end_of(range).value);
  for (auto region = program.regions.lower_bound(range.start.value); region != end; ++region)
    region->second.rights = rights;
  VirtAddr at = range.start;
  bool any = false;
  while (const auto entry = program.table.next(at, end_of(range))) {
    any = true;
    at = advance(entry->at, entry->bytes);
    // A page that may be shared becomes writable when it is written to.
    if (entry->present())
      program.table.protect(*entry, entry->writable() ? rights : read_only(rights));
  }
  if (any) mmu_.shoot_down(program.context(), range, now);
  return {};
}

Result<void, MemoryError> Kernel::set_inherited(Pid pid, Range<VirtSpace> range, bool inherited) {
  Program& program = running(pid);
  if (!is_proper(range)) return MemoryError::BadArgument;
  for (VirtAddr at = range.start; at < end_of(range);) {
    const Region* region = program.region_at(at);
    if (region == nullptr) return MemoryError::NotMapped;
    at = {region->end};
  }
  if (!split_regions(program, range)) return MemoryError::BadArgument;
  const auto end = program.regions.lower_bound(end_of(range).value);
  for (auto region = program.regions.lower_bound(range.start.value); region != end; ++region)
    region->second.inherited = inherited;
  return {};
}

template <class Buffer>
Result<void, AccessFault> Kernel::move(Pid pid, VirtAddr at, Buffer buffer, CpuAccess kind,
                                       Time now) {
  Program& program = running(pid);
  unsigned faults = 0;
  while (!buffer.empty()) {
    const auto found = mmu_.access(program.context(), at, kind, now);
    if (!found) {
      const PageFault fault = found.error();
      const MemoryError error = ++faults > kMostFaults
                                    ? MemoryError::BadTable
                                    : resolve(program, at, kind, fault.error_code, now);
      if (error != MemoryError::None) return AccessFault{error, at, fault.error_code};
      continue;
    }
    faults = 0;
    const std::uint64_t rest = found->leaf_bytes - offset_in(at, found->leaf_bytes);
    const std::size_t bytes = std::min<std::size_t>(rest, buffer.size());
    if constexpr (std::is_same_v<Buffer, Bytes>)
      std::memcpy(buffer.data(), ram_.cpu_address(found->phys), bytes);
    else
      std::memcpy(ram_.cpu_address(found->phys), buffer.data(), bytes);
    buffer = buffer.subspan(bytes);
    at = advance(at, bytes);
  }
  return {};
}

Result<void, AccessFault> Kernel::load(Pid pid, VirtAddr from, Bytes to, Time now) {
  return move(pid, from, to, CpuAccess::Load, now);
}

Result<void, AccessFault> Kernel::store(Pid pid, VirtAddr to, ConstBytes from, Time now) {
  return move(pid, to, from, CpuAccess::Store, now);
}

// Makes the page such that the access succeeds, if the program has the right to it.
MemoryError Kernel::resolve(Program& program, VirtAddr at, CpuAccess kind, std::uint32_t code,
                            Time now) {
  const Region* region = program.region_at(at);
  MemoryError error = MemoryError::None;
  FaultAnswer answer = FaultAnswer::Refused;
  if (region == nullptr) {
    error = MemoryError::NotMapped;
  } else if (!region->rights.has(right_for(kind))) {
    error = MemoryError::NoRight;
  } else if (program.table.walk(at).end == PageWalk::End::BadEntry) {
    error = MemoryError::BadTable;
  } else {
    const VirtAddr page = align_down(at, region->page_bytes);
    const Kept kept(*this, program.pid, {page, region->page_bytes});
    const auto entry = program.table.find(page);
    if (!entry) {
      error = give_page(program, *region, page, now);
      answer = FaultAnswer::ZeroPage;
    } else if (!entry->present()) {
      error = swap_in(program, *region, *entry, now);
      answer = FaultAnswer::SwappedIn;
    } else if (kind == CpuAccess::Store) {
      error = own_page(program, *region, *entry, now, answer);
    }
  }
  if (error != MemoryError::None) answer = FaultAnswer::Refused;
  if (tracer_.recording()) {
    const PageWalk walk = program.table.walk(at);
    tracer_.emit(trace::EventKind::PageFault, now, program.pid.value, at.value, code,
                 walk.phys.value, number_of(answer));
  }
  return error;
}

MemoryError Kernel::give_page(Program& program, const Region& region, VirtAddr page, Time now) {
  const auto frame = take_frame(region.page_bytes, {FrameUse::Program, program.pid, page}, now);
  if (!frame) return MemoryError::OutOfMemory;
  while (!program.table.map(page, *frame, region.page_bytes, region.rights))
    if (!make_room(now)) {
      frames_.release(*frame, region.page_bytes);
      return MemoryError::OutOfMemory;
    }
  return MemoryError::None;
}

// Makes a page that is present the program's alone, with all rights of its region.
MemoryError Kernel::own_page(Program& program, const Region& region, const PageEntry& entry,
                             Time now, FaultAnswer& answer) {
  const PhysAddr old = entry.frame();
  answer = FaultAnswer::MadeWritable;
  if (frames_.shares(old) == 1) {
    program.table.protect(entry, region.rights);
    return MemoryError::None;
  }
  const auto fresh = take_frame(entry.bytes, {FrameUse::Program, program.pid, entry.at}, now);
  if (!fresh) return MemoryError::OutOfMemory;
  answer = FaultAnswer::Copied;
  const Range<VirtSpace> page{entry.at, entry.bytes};
  tell_watchers(program, page, now);
  copy_frame(old, *fresh, entry.bytes);
  program.table.replace_frame(entry, *fresh);
  program.table.protect(entry, region.rights);
  mmu_.shoot_down(program.context(), page, now);
  tracer_.emit(trace::EventKind::PageCopied, now, program.pid.value, entry.at.value, old.value,
               fresh->value, number_of(PageWish::CopyOnWrite));
  let_go(program, entry.at, old, entry.bytes, now);
  return MemoryError::None;
}

// As a frame that is free, or one that can be made so.
std::optional<PhysAddr> Kernel::take_frame(std::uint64_t bytes, const FrameOwner& owner, Time now) {
  if (const auto frame = frames_.take(bytes, owner)) return frame;
  if (bytes == kPage4K) return make_room(now) ? frames_.take(bytes, owner) : std::nullopt;
  return compact(now, bytes).made ? frames_.take(bytes, owner) : std::nullopt;
}

// True: at least one more 4 KiB frame is free than before.
bool Kernel::make_room(Time now) { return reap_orphans() != 0 || reclaim(kReclaimPages, now) != 0; }

// REQUIRES: `to` is zero. What is zero already is not touched.
void Kernel::copy_frame(PhysAddr from, PhysAddr to, std::uint64_t bytes) {
  for (std::uint64_t offset = 0; offset < bytes; offset += kPage4K) {
    const std::byte* source = ram_.cpu_address(advance(from, offset));
    const bool zero =
        source[0] == std::byte{0} && std::memcmp(source, source + 1, kPage4K - 1) == 0;
    if (!zero) std::memcpy(ram_.cpu_address(advance(to, offset)), source, kPage4K);
  }
}

trace::Reason Kernel::fault_in(Pid pid, Range<VirtSpace> range, bool write, Time now) {
  Program& program = running(pid);
  const auto refused = [&](trace::ReasonId id, VirtAddr at) {
    return trace::Reason{
        .id = id, .address = align_down(at, kPage4K).value, .length = range.length};
  };
  if (range.length == 0) return {};
  if (!kProgramSpace.contains(range.start, range.length))
    return refused(trace::ReasonId::HoleInRange, range.start);
  const Kept kept(*this, pid, range);
  const CpuAccess kind = write ? CpuAccess::Store : CpuAccess::Load;
  for (VirtAddr at = range.start; at < end_of(range);) {
    const Region* region = program.region_at(at);
    if (region == nullptr || region->rights.empty())
      return refused(trace::ReasonId::HoleInRange, at);
    if (write && !region->rights.has(PageRight::Write))
      return refused(trace::ReasonId::PageReadOnly, at);
    const auto entry = program.table.find(at);
    const bool present = entry && entry->present();
    if (present && frames_.shares(entry->frame()) == 0)  // somebody wrote into the table
      return refused(trace::ReasonId::HoleInRange, at);
    MemoryError error = MemoryError::None;
    if (!present || (write && !entry->writable())) {
      const std::uint32_t code =
          (present ? fault_code::kPresent : 0) | (write ? fault_code::kWrite : 0);
      error = resolve(program, at, kind, code, now);
    } else if (settings_.copy_pinned_at_fork && frames_.shares(entry->frame()) > 1) {
      FaultAnswer answer{};
      error = own_page(program, *region, *entry, now, answer);
    }
    if (error != MemoryError::None) return refused(trace::ReasonId::OutOfMemory, at);
    at = advance(align_down(at, region->page_bytes), region->page_bytes);
  }
  return {};
}

std::vector<pcie::Span> Kernel::frames_of(Pid pid, Range<VirtSpace> pages) const {
  const Program& owner = program(pid);
  std::vector<pcie::Span> spans;
  for (VirtAddr at = pages.start; at < end_of(pages);) {
    const auto entry = owner.table.find(at);
    ASSERT(entry && entry->present());
    const PhysAddr start = advance(entry->frame(), distance(entry->at, at));
    const std::uint64_t bytes =
        std::min(distance(at, advance(entry->at, entry->bytes)), distance(at, end_of(pages)));
    if (!spans.empty() && advance(spans.back().start, spans.back().bytes) == start)
      spans.back().bytes += bytes;
    else
      spans.push_back({start, bytes});
    at = advance(at, bytes);
  }
  return spans;
}

}  // namespace softhca::host
