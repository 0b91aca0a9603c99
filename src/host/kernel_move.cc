// How the kernel moves pages to other frames.
#include <algorithm>

#include "base/assert.h"
#include "host/kernel.h"
#include "host/kernel_parts.h"

namespace softhca::host {

// All programs that have the frame. Frames are shared by fork alone, so all have it at one address.
std::vector<Program*> Kernel::sharers(PhysAddr frame, VirtAddr page) {
  const std::uint32_t count = frames_.shares(frame);
  std::vector<Program*> found;
  const auto add = [&](Program& program) {
    const auto entry = program.table.find(page);
    if (entry && entry->present() && entry->frame() == frame) found.push_back(&program);
  };
  const std::uint32_t owner = frames_.owner_of(frame).pid.value;
  if (const auto first = programs_.find(owner); first != programs_.end()) add(*first->second);
  for (auto program = programs_.begin(); found.size() < count && program != programs_.end();
       ++program)
    if (program->first != owner) add(*program->second);
  return found;
}

// Says so in the journal if it is.
bool Kernel::is_pinned(Pid pid, VirtAddr page, PhysAddr frame, std::uint64_t bytes, PageWish wish,
                       Time now) {
  const std::uint32_t pins = pins_.most_in({frame, bytes});
  if (pins == 0) return false;
  tracer_.emit(trace::EventKind::FrameKept, now, pid.value, page.value, frame.value,
               number_of(wish), pins);
  return true;
}

MoveAnswer Kernel::move_page(VirtAddr page, PhysAddr frame, std::uint64_t bytes,
                             Range<PhysSpace> avoid, PageWish wish, Time now) {
  const std::vector<Program*> programs = sharers(frame, page);
  if (programs.empty() || programs.size() != frames_.shares(frame)) return MoveAnswer::NotThere;
  if (is_pinned(programs[0]->pid, page, frame, bytes, wish, now)) return MoveAnswer::Pinned;
  const auto fresh = frames_.take(bytes, frames_.owner_of(frame), avoid);
  if (!fresh) return MoveAnswer::NoRoom;
  for (const Program* program : programs) tell_watchers(*program, {page, bytes}, now);
  copy_frame(frame, *fresh, bytes);
  bool first = true;
  for (Program* program : programs) {
    program->table.replace_frame(*program->table.find(page), *fresh);
    mmu_.shoot_down(program->context(), {page, bytes}, now);
    if (!first) frames_.share(*fresh);
    first = false;
    frames_.release(frame, bytes);
    tracer_.emit(trace::EventKind::FrameMoved, now, program->pid.value, page.value, frame.value,
                 fresh->value, number_of(wish));
  }
  return MoveAnswer::Done;
}

MoveAnswer Kernel::migrate(Pid pid, VirtAddr at, Time now) {
  const auto entry = running(pid).table.find(at);
  if (!entry || !entry->present()) return MoveAnswer::NotThere;
  return move_page(entry->at, entry->frame(), entry->bytes, {}, PageWish::Migrate, now);
}

// True: all that lies in the window can be moved, and there is room for it elsewhere.
bool Kernel::can_empty(Range<PhysSpace> window, Compaction& outcome, Time now) {
  bool movable = true;
  bool told = false;
  std::uint64_t count = 0;
  for (PhysAddr at = window.start; at < advance(window.start, window.length);) {
    const FrameOwner owner = frames_.owner_of(at);
    const std::uint64_t bytes = frames_.frame_bytes(at);
    if (owner.use == FrameUse::Program || owner.use == FrameUse::Orphan) {
      const bool pinned = told ? pins_.most_in({at, bytes}) != 0
                               : is_pinned(owner.pid, owner.at, at, bytes, PageWish::Compact, now);
      outcome.kept += pinned ? bytes / kPage4K : 0;
      told = told || pinned;
      movable = movable && !pinned && owner.use == FrameUse::Program && bytes == kPage4K;
      ++count;
    } else if (owner.use != FrameUse::Free) {
      movable = false;
    }
    at = advance(at, std::min(bytes, window.length));
  }
  return movable && count <= frames_.free_frames() - frames_.free_in(window);
}

Compaction Kernel::compact(Time now, std::uint64_t huge_bytes) {
  ASSERT(huge_bytes == kPage2M || huge_bytes == kPage1G);
  Compaction outcome;
  reap_orphans();
  outcome.made = frames_.free_huge(huge_bytes) != 0;
  if (outcome.made) return outcome;
  const Range<PhysSpace> all = frames_.range();
  std::vector<Range<PhysSpace>> windows;  // fullest last
  for (Range<PhysSpace> window{align_down(all.start, huge_bytes), huge_bytes};
       window.start < advance(all.start, all.length);
       window.start = advance(window.start, huge_bytes))
    if (all.contains(window.start, window.length) && can_empty(window, outcome, now))
      windows.push_back(window);
  std::ranges::stable_sort(windows, std::ranges::greater{},
                           [&](Range<PhysSpace> window) { return frames_.free_in(window); });
  for (const Range<PhysSpace>& window : windows) {
    bool emptied = true;
    for (PhysAddr at = window.start; emptied && at < advance(window.start, window.length);
         at = advance(at, kPage4K)) {
      const FrameOwner owner = frames_.owner_of(at);
      if (owner.use == FrameUse::Free) continue;
      emptied =
          move_page(owner.at, at, kPage4K, window, PageWish::Compact, now) == MoveAnswer::Done;
      outcome.moved += emptied ? 1 : 0;
    }
    outcome.made = emptied;
    if (emptied) break;
  }
  return outcome;
}

}  // namespace softhca::host
