// How the kernel takes pages that are not used, and gives them back when they are.
#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "host/kernel.h"
#include "host/kernel_parts.h"

namespace softhca::host {

std::optional<std::uint64_t> Kernel::take_slot() {
  std::uint64_t slot = slots_.size();
  if (!free_slots_.empty()) {
    slot = free_slots_.back();
    free_slots_.pop_back();
  } else if (slot < settings_.swap_bytes / kPage4K) {
    slots_.emplace_back();
  } else {
    return std::nullopt;
  }
  slots_[slot].page = std::make_unique<std::byte[]>(kPage4K);
  return slot;
}

void Kernel::release_slot(std::uint64_t slot) {
  ASSERT(slot < slots_.size() && slots_[slot].users > 0);
  if (--slots_[slot].users != 0) return;
  slots_[slot].page.reset();
  free_slots_.push_back(slot);
}

bool Kernel::is_kept_in(const std::vector<Program*>& programs, VirtAddr page) const {
  return std::ranges::any_of(kept_, [&](const KeptRange& kept) {
    return Range<VirtSpace>{page, kPage4K}.overlaps(kept.range) &&
           std::ranges::any_of(programs, [&](const Program* p) { return p->pid == kept.pid; });
  });
}

MoveAnswer Kernel::swap_out(Pid pid, VirtAddr at, Time now) {
  const auto entry = running(pid).table.find(at);
  if (!entry || !entry->present()) return MoveAnswer::NotThere;
  return swap_page(*entry, now);
}

MoveAnswer Kernel::swap_page(const PageEntry& entry, Time now) {
  if (entry.bytes != kPage4K) return MoveAnswer::NotMovable;
  const VirtAddr page = entry.at;
  const PhysAddr frame = entry.frame();
  const std::vector<Program*> programs = sharers(frame, page);
  if (programs.empty() || programs.size() != frames_.shares(frame)) return MoveAnswer::NotThere;
  if (is_kept_in(programs, page)) return MoveAnswer::NotMovable;
  if (is_pinned(programs[0]->pid, page, frame, kPage4K, PageWish::SwapOut, now))
    return MoveAnswer::Pinned;
  const auto slot = take_slot();
  if (!slot) return MoveAnswer::NoRoom;
  for (const Program* program : programs) tell_watchers(*program, {page, kPage4K}, now);
  std::memcpy(slots_[*slot].page.get(), ram_.cpu_address(frame), kPage4K);
  slots_[*slot].users = static_cast<std::uint32_t>(programs.size());
  for (Program* program : programs) {
    program->table.swap_out(*program->table.find(page), *slot);
    mmu_.shoot_down(program->context(), {page, kPage4K}, now);
    frames_.release(frame, kPage4K);
    tracer_.emit(trace::EventKind::SwapOut, now, program->pid.value, page.value, frame.value,
                 *slot);
  }
  return MoveAnswer::Done;
}

MemoryError Kernel::swap_in(Program& program, const Region& region, const PageEntry& entry,
                            Time now) {
  const std::uint64_t slot = pte::swap_slot(entry.value);
  ASSERT(slot < slots_.size() && slots_[slot].page != nullptr);
  const FrameOwner owner{FrameUse::Program, program.pid, entry.at};
  auto frame = take_frame(kPage4K, owner, now);
  std::unique_ptr<std::byte[]> page;
  if (!frame && slots_[slot].users == 1) {  // memory and swap are full: let another page have it
    page = std::move(slots_[slot].page);
    release_slot(slot);
    frame = take_frame(kPage4K, owner, now);
    if (!frame) {
      ASSERT(take_slot() == slot);  // nobody could be swapped out, so nobody took it
      slots_[slot] = {std::move(page), 1};
    }
  }
  if (!frame) return MemoryError::OutOfMemory;
  const std::byte* from = page ? page.get() : slots_[slot].page.get();
  std::memcpy(ram_.cpu_address(*frame), from, kPage4K);
  program.table.swap_in(entry, *frame, region.rights);
  if (!page) release_slot(slot);
  tracer_.emit(trace::EventKind::SwapIn, now, program.pid.value, entry.at.value, frame->value,
               slot);
  return MemoryError::None;
}

std::uint64_t Kernel::reclaim(std::uint64_t pages, Time now) {
  const std::uint64_t swapped = sweep(pages, false, now);
  return swapped == pages ? swapped : swapped + sweep(pages - swapped, true, now);
}

// Once around all pages, from where the last one ended. A page that was used since then gets
// another chance, unless `also_used`.
std::uint64_t Kernel::sweep(std::uint64_t pages, bool also_used, Time now) {
  struct Part {
    Program* program;
    VirtAddr from, end;
  };
  std::vector<Part> parts;
  for (const auto& [pid, program] : programs_) parts.push_back({program.get(), {}, kProgramEnd});
  const auto hand =
      std::ranges::find_if(parts, [&](const Part& part) { return part.program->pid >= hand_pid_; });
  std::rotate(parts.begin(), hand, parts.end());
  if (!parts.empty() && parts[0].program->pid == hand_pid_) {
    parts.push_back({parts[0].program, {}, hand_at_});
    parts[0].from = hand_at_;
  }
  std::uint64_t swapped = 0;
  for (const Part& part : parts) {
    VirtAddr at = part.from;
    while (const auto entry = part.program->table.next(at, part.end)) {
      if (swapped == pages) break;
      at = advance(entry->at, entry->bytes);
      hand_pid_ = part.program->pid;
      hand_at_ = at;
      if (!entry->present() || entry->bytes != kPage4K) continue;
      if (entry->accessed() && !also_used) {
        part.program->table.clear_accessed(*entry);
        continue;
      }
      const MoveAnswer answer = swap_page(*entry, now);
      if (answer == MoveAnswer::NoRoom) return swapped;
      swapped += answer == MoveAnswer::Done ? 1 : 0;
    }
    if (swapped == pages) break;
  }
  return swapped;
}

}  // namespace softhca::host
