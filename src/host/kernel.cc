#include "host/kernel.h"

#include <algorithm>

#include "base/assert.h"
#include "host/kernel_parts.h"

namespace softhca::host {
namespace {

// Where programs' regions begin, and over how many pages the first ones are spread.
constexpr std::uint64_t kFirstRegion = 0x5500'0000'0000;
constexpr std::uint64_t kSpreadPages = std::uint64_t{1} << 28;
constexpr std::uint32_t kPcids = 4095;  // 12 bits, 0 is the kernel's own

}  // namespace

std::string_view memory_error_name(MemoryError error) {
  switch (error) {
    case MemoryError::None:
      return "none";
    case MemoryError::NotMapped:
      return "not mapped";
    case MemoryError::NoRight:
      return "no right";
    case MemoryError::OutOfMemory:
      return "out of memory";
    case MemoryError::BadArgument:
      return "bad argument";
    case MemoryError::Occupied:
      return "occupied";
    case MemoryError::BadTable:
      return "bad page table";
  }
  return "?";
}

Kernel::Kernel(Ram& ram, Pins& pins, const KernelSettings& settings, trace::Tracer& tracer)
    : ram_(ram),
      pins_(pins),
      settings_(settings),
      tracer_(tracer),
      frames_(ram, settings.memory, settings.seed, settings.fragmentation),
      mmu_(ram, settings.levels, settings.tlb, tracer),
      prng_(~settings.seed),
      pcids_(1, kPcids),
      names_{"kernel"} {}

Kernel::~Kernel() = default;

Program& Kernel::running(Pid pid) {
  const auto found = programs_.find(pid.value);
  ASSERT(found != programs_.end());
  return *found->second;
}

const Program& Kernel::program(Pid pid) const {
  const auto found = programs_.find(pid.value);
  ASSERT(found != programs_.end());
  return *found->second;
}

std::string_view Kernel::name_of(Pid pid) const {
  return pid.value < names_.size() ? std::string_view(names_[pid.value]) : std::string_view("?");
}

std::string Kernel::owner_text(PhysAddr at) const {
  const FrameOwner owner = frames_.owner_of(at);
  const auto program_text = [&] {
    return std::string(name_of(owner.pid)) + " (pid " + std::to_string(owner.pid.value) + ")";
  };
  switch (owner.use) {
    case FrameUse::PageTable:
      return "page table of " + program_text();
    case FrameUse::Program:
      return "program " + program_text();
    case FrameUse::Orphan:
      return "orphan of " + program_text();
    default:
      return std::string(frame_use_name(owner.use));
  }
}

Result<Program*, MemoryError> Kernel::new_program(Time now) {
  if (frames_.free_frames() == 0 && !make_room(now)) return MemoryError::OutOfMemory;
  const auto pcid = pcids_.take();
  if (!pcid) return MemoryError::OutOfMemory;
  const Pid pid{static_cast<std::uint32_t>(names_.size())};
  auto program =
      std::make_unique<Program>(ram_, frames_, pid, static_cast<Pcid>(*pcid), settings_.levels);
  return programs_.emplace(pid.value, std::move(program)).first->second.get();
}

Result<Pid, MemoryError> Kernel::spawn(std::string_view name, Time now) {
  const auto program = new_program(now);
  if (!program) return program.error();
  names_.emplace_back(name);
  (*program)->next_address = kFirstRegion + prng_.below(kSpreadPages) * kPage4K;
  return (*program)->pid;
}

Result<Pid, MemoryError> Kernel::fork(Pid parent_pid, Time now) {
  Program& parent = running(parent_pid);
  const auto made = new_program(now);
  if (!made) return made.error();
  Program& child = **made;
  names_.push_back(names_[parent_pid.value]);
  child.next_address = parent.next_address;
  if (const MemoryError error = inherit(parent, child, now); error != MemoryError::None) {
    exit(child.pid, now);
    return error;
  }
  return child.pid;
}

MemoryError Kernel::inherit(Program& parent, Program& child, Time now) {
  for (const auto& [start, region] : parent.regions) {
    if (!region.inherited) continue;
    child.regions.emplace(start, region);
    const Range<VirtSpace> range{{start}, region.end - start};
    tell_watchers(parent, range, now);
    MemoryError error = MemoryError::None;
    VirtAddr at{start};
    while (error == MemoryError::None) {
      const auto entry = parent.table.next(at, {region.end});
      if (!entry) break;
      error = inherit_page(parent, child, region, *entry, now);
      at = advance(entry->at, entry->bytes);
    }
    mmu_.shoot_down(parent.context(), range, now);  // the parent may have lost the right to write
    if (error != MemoryError::None) return error;
  }
  return MemoryError::None;
}

MemoryError Kernel::inherit_page(Program& parent, Program& child, const Region& region,
                                 const PageEntry& entry, Time now) {
  const Kept kept(*this, parent.pid, {entry.at, entry.bytes});
  if (!entry.present()) {
    const std::uint64_t slot = pte::swap_slot(entry.value);
    while (!child.table.map_swapped(entry.at, slot))
      if (!make_room(now)) return MemoryError::OutOfMemory;
    ++slots_[slot].users;
    return MemoryError::None;
  }
  PhysAddr frame = entry.frame();
  const bool copied = settings_.copy_pinned_at_fork && pins_.most_in({frame, entry.bytes}) != 0;
  if (copied) {
    const auto fresh = take_frame(entry.bytes, {FrameUse::Program, child.pid, entry.at}, now);
    if (!fresh) return MemoryError::OutOfMemory;
    copy_frame(frame, *fresh, entry.bytes);
    tracer_.emit(trace::EventKind::PageCopied, now, child.pid.value, entry.at.value, frame.value,
                 fresh->value, number_of(PageWish::CopyAtFork));
    frame = *fresh;
  }
  const PageRights rights = copied ? region.rights : read_only(region.rights);
  while (!child.table.map(entry.at, frame, entry.bytes, rights))
    if (!make_room(now)) {
      if (copied) frames_.release(frame, entry.bytes);
      return MemoryError::OutOfMemory;
    }
  if (copied) return MemoryError::None;
  frames_.share(frame);
  parent.table.protect(entry, read_only(region.rights));
  return MemoryError::None;
}

void Kernel::exit(Pid pid, Time now) {
  Program& program = running(pid);
  tell_watchers(program, kProgramSpace, now);
  drop_pages(program, kProgramSpace, now);
  mmu_.tlb().invalidate_pcid(program.pcid);
  pcids_.give_back(program.pcid);
  programs_.erase(pid.value);
}

void Kernel::watch(Pid pid, Range<VirtSpace> range, TranslationWatcher& watcher) {
  running(pid).watchers.emplace_back(range, &watcher);
}

void Kernel::unwatch(Pid pid, const TranslationWatcher& watcher) {
  const auto found = programs_.find(pid.value);
  if (found == programs_.end()) return;
  std::erase_if(found->second->watchers, [&](const auto& w) { return w.second == &watcher; });
}

void Kernel::tell_watchers(const Program& program, Range<VirtSpace> range, Time now) {
  if (program.watchers.empty()) return;
  const auto watchers = program.watchers;  // one that is told may end its watch
  for (const auto& [watched, watcher] : watchers)
    if (watched.overlaps(range)) watcher->before_change(program.pid, range, now);
}

std::uint64_t Kernel::reap_orphans() {
  std::uint64_t freed = 0;
  for (auto orphan = orphans_.begin(); orphan != orphans_.end();) {
    const auto [frame, bytes] = *orphan;
    if (pins_.most_in({{frame}, bytes}) != 0) {
      ++orphan;
      continue;
    }
    frames_.release({frame}, bytes);
    freed += bytes / kPage4K;
    orphan = orphans_.erase(orphan);
  }
  return freed;
}

}  // namespace softhca::host
