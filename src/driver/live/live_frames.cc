#include "driver/live/live_frames.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/assert.h"
#include "os/kernel_pin.h"
#include "os/thread.h"

namespace softhca::driver {

using os::OwnMapping;
using trace::Counter;
using trace::Reason;
using trace::ReasonId;

namespace {

constexpr std::uint64_t kSlotPages = os::kSlotBytes / kPage4K;
// A child copies a gigabyte in less than one.
constexpr Duration kChildCopies = seconds(10);

// Until the kernel has forgotten a thread that has ended.
constexpr Duration kWaitForAThread = microseconds(100);
constexpr int kTriesForAThread = 5;

// Two devices of one process would not know of each other's ordinary regions.
std::atomic<bool> g_frames_are_taken{false};

std::uint64_t end_of(Range<VirtSpace> range) { return range.start.value + range.length; }

Range<VirtSpace> common_part(Range<VirtSpace> a, Range<VirtSpace> b) {
  const std::uint64_t start = std::max(a.start.value, b.start.value);
  const std::uint64_t end = std::min(end_of(a), end_of(b));
  return {{start}, end > start ? end - start : 0};
}

// What lies beside a region in its first and last page may be anybody's, the allocator's own
// records too.
Range<VirtSpace> whole_pages_in(Range<VirtSpace> buffer) {
  const VirtAddr first = align_down(advance(buffer.start, kPage4K - 1), kPage4K);
  const VirtAddr end = align_down(advance(buffer.start, buffer.length), kPage4K);
  return {first, first < end ? distance(first, end) : 0};
}

Reason exhausted(const os::SystemError& error, Range<VirtSpace> pages) {
  return {.id = ReasonId::FramesExhausted,
          .object = static_cast<std::uint32_t>(error.number),
          .address = pages.start.value,
          .length = pages.length};
}

}  // namespace

Result<std::unique_ptr<LiveFrames>, Reason> LiveFrames::open(const os::GuardedCopy& copy,
                                                             trace::Tracer& tracer, Tell tell) {
  const Reason unavailable{.id = ReasonId::FramesUnavailable};
  if (g_frames_are_taken.exchange(true)) return unavailable;
  auto file = os::FrameFile::create();
  if (!file) {
    g_frames_are_taken = false;
    return unavailable;
  }
  return std::unique_ptr<LiveFrames>(
      new LiveFrames(std::move(*file), copy, tracer, std::move(tell)));
}

LiveFrames::LiveFrames(os::FrameFile file, const os::GuardedCopy& copy, trace::Tracer& tracer,
                       Tell tell)
    : file_(std::move(file)),
      mover_(os::PageMover::open(copy)),
      tracer_(tracer),
      tell_(std::move(tell)) {}

LiveFrames::~LiveFrames() {
  sweep();
  g_frames_are_taken = false;
}

Range<PhysSpace> LiveFrames::memory() const {
  return {{reinterpret_cast<std::uint64_t>(file_.memory().data())}, file_.memory().size()};
}

bool LiveFrames::is_frame(const pcie::Span& span) const {
  return memory().contains(span.start, span.bytes);
}

void LiveFrames::append(Spans& spans, pcie::Span span) const {
  if (!spans.empty() && spans.back().start.value + spans.back().bytes == span.start.value &&
      is_frame(spans.back()) == is_frame(span))
    spans.back().bytes += span.bytes;
  else
    spans.push_back(span);
}

std::vector<pcie::Span> LiveFrames::take(Range<VirtSpace> buffer) {
  const VirtAddr first = align_down(buffer.start, kPage4K);
  const Range<VirtSpace> pages{first, pages_touched(buffer, kPage4K) * kPage4K};
  const Range<VirtSpace> whole = whole_pages_in(buffer);
  Spans spans;
  std::uint64_t at = pages.start.value;
  const auto leave_until = [&](std::uint64_t end) {
    if (end > at) append(spans, {{at}, end - at});
    at = std::max(at, end);
  };
  const auto mappings = os::own_mappings(pages);
  if (!mappings) tell_(exhausted(mappings.error(), pages));
  for (const OwnMapping& mapping : mappings ? *mappings : std::vector<OwnMapping>{}) {
    const Range<VirtSpace> part = common_part(mapping.range, pages);
    if (part.length == 0 || part.start.value < at) continue;
    leave_until(part.start.value);
    if (mapping.is_of(file_.identity())) {
      take_again(mapping, part, spans);
      at = end_of(part);
      continue;
    }
    const Range<VirtSpace> inner = common_part(part, whole);
    if (inner.length == 0) continue;
    leave_until(inner.start.value);
    take_part(mapping, inner, spans);
    at = end_of(inner);
  }
  leave_until(end_of(pages));
  for (const pcie::Span& span : spans)
    if (!is_frame(span)) keep_addresses({{span.start.value}, span.bytes});
  return spans;
}

// Memory that may be moved, but for what is kept by its address.
void LiveFrames::take_part(const OwnMapping& mapping, Range<VirtSpace> part, Spans& into) {
  const ReasonId why_not = why_not_movable(mapping, part);
  if (why_not != ReasonId::None) {
    tell_({.id = why_not, .address = part.start.value, .length = part.length});
    return append(into, {{part.start.value}, part.length});
  }
  for (std::uint64_t at = part.start.value; at < end_of(part);) {
    const std::uint64_t free_to = std::min(kept_from(at), end_of(part));
    if (free_to > at) {
      move_all_in({{at}, free_to - at}, into);
      at = free_to;
      continue;
    }
    const std::uint64_t kept_until = std::min(kept_to(at), end_of(part));
    tell_({.id = ReasonId::FramesKeptByAddress, .address = at, .length = kept_until - at});
    append(into, {{at}, kept_until - at});
    at = kept_until;
  }
}

void LiveFrames::move_all_in(Range<VirtSpace> pages, Spans& into) {
  for (std::uint64_t done = 0; done < pages.length; done += os::kSlotBytes) {
    const Range<VirtSpace> some{advance(pages.start, done),
                                std::min(pages.length - done, os::kSlotBytes)};
    if (const Reason bad = move_in(some, into)) {
      tell_(bad);
      return append(into, {{some.start.value}, pages.length - done});
    }
  }
}

// Pages that lie in frames already: of another region, or of one that was.
void LiveFrames::take_again(const OwnMapping& mapping, Range<VirtSpace> part, Spans& into) {
  const std::uint64_t offset = mapping.offset + (part.start.value - mapping.range.start.value);
  const std::uint32_t number = os::slot_of_offset(offset);
  const auto slot = slots_.find(number);
  for (std::uint64_t done = 0; done < part.length; done += kPage4K) {
    const std::uint64_t page = (os::in_slot(offset) + done) / kPage4K;
    const Range<VirtSpace> here{advance(part.start, done), kPage4K};
    if (slot == slots_.end() || page >= kSlotPages || slot->second.pages[page] != Page::Used) {
      append(into, {{here.start.value}, here.length});
      continue;
    }
    ++slot->second.users[page];
    append(into, {{reinterpret_cast<std::uint64_t>(file_.slot(number)) + page * kPage4K}, kPage4K});
  }
}

// A thread of ours that was joined is counted by the kernel for a moment more.
bool LiveFrames::may_move() const {
  if (mover_.holds_writers()) return true;
  for (int tries = 0;; ++tries) {
    const std::uint64_t others = os::own_thread_count() - os::own_threads() - 1;
    if (others == 0) return true;
    if (others != 1 || tries == kTriesForAThread) return false;
    os::pause_for(kWaitForAThread);
  }
}

ReasonId LiveFrames::why_not_movable(const OwnMapping& mapping, Range<VirtSpace> part) const {
  const bool is_plain =
      mapping.name.empty() || mapping.name == "[heap]" || mapping.name.starts_with("[anon:");
  if (!is_plain || mapping.shared || mapping.file.inode != 0 || !mapping.readable ||
      !mapping.writable || mapping.executable || os::is_locked(part.start.value, part.length) ||
      os::PageMover::is_in_use(part))
    return ReasonId::FramesNotMovable;
  return may_move() ? ReasonId::None : ReasonId::FramesOtherThreads;
}

Reason LiveFrames::move_in(Range<VirtSpace> pages, Spans& into) {
  const std::uint32_t number = new_slot();
  if (number == os::kFrameSlots) return exhausted({}, pages);
  auto moved = file_.prepare(number, pages.length);
  const Bytes alias{file_.slot(number), pages.length};
  if (moved) moved = mover_.to_file(pages, file_.fd(), os::slot_offset(number), alias);
  if (!moved) {
    file_.discard(number, 0, pages.length);
    free_slots_.push_back(number);
    return exhausted(moved.error(), pages);
  }
  const std::uint64_t count = pages.length / kPage4K;
  Slot slot{.users = std::vector<std::uint32_t>(count, 1),
            .pages = std::vector<Page>(count, Page::Used),
            .used = static_cast<std::uint32_t>(count),
            .start = pages.start,
            .bytes = pages.length};
  slot.users.resize(kSlotPages);
  slot.pages.resize(kSlotPages);
  slots_.emplace(number, std::move(slot));
  tracer_.count(Counter::FramesMoved, count);
  append(into, {{reinterpret_cast<std::uint64_t>(alias.data())}, pages.length});
  return {};
}

std::uint32_t LiveFrames::new_slot() {
  if (free_slots_.empty()) return next_slot_ == os::kFrameSlots ? next_slot_ : next_slot_++;
  const std::uint32_t number = free_slots_.back();
  free_slots_.pop_back();
  return number;
}

void LiveFrames::keep_addresses(Range<VirtSpace> pages) {
  ++kept_[{pages.start.value, end_of(pages)}];
  longest_kept_ = std::max(longest_kept_, pages.length);
}

// The first one that may end behind `at`.
LiveFrames::Stretches::const_iterator LiveFrames::kept_near(std::uint64_t at) const {
  return kept_.lower_bound({at - std::min(at, longest_kept_), 0});
}

// Where the first stretch begins that is kept by its address and ends behind `at`, but not before
// `at`; and how far the longest one reaches that has `at`.
std::uint64_t LiveFrames::kept_from(std::uint64_t at) const {
  std::uint64_t from = ~std::uint64_t{0};
  for (auto one = kept_near(at); one != kept_.end() && one->first.first < from; ++one)
    if (one->first.second > at) from = std::max(one->first.first, at);
  return from;
}

std::uint64_t LiveFrames::kept_to(std::uint64_t at) const {
  std::uint64_t to = at;
  for (auto one = kept_near(at); one != kept_.end() && one->first.first <= at; ++one)
    to = std::max(to, one->first.second);
  return to;
}

void LiveFrames::give_back(std::span<const pcie::Span> spans) {
  for (const pcie::Span& span : spans) {
    if (!is_frame(span)) {
      const auto kept = kept_.find({span.start.value, span.start.value + span.bytes});
      ASSERT(kept != kept_.end());
      if (--kept->second == 0) kept_.erase(kept);
      if (kept_.empty()) longest_kept_ = 0;
      continue;
    }
    const std::uint64_t first = (span.start.value - memory().start.value) / kPage4K;
    for (std::uint64_t page = first; page < first + span.bytes / kPage4K; ++page) {
      const auto number = static_cast<std::uint32_t>(page / kSlotPages);
      std::uint32_t& users = slots_.at(number).users[page % kSlotPages];
      ASSERT(users != 0);
      if (--users == 0) idle_.insert(number);
    }
  }
  sweep();
}

bool LiveFrames::is_own_view(const OwnMapping& mapping) const {
  return memory().contains({mapping.range.start.value}, mapping.range.length);
}

void LiveFrames::sweep() {
  if (idle_.empty()) return;
  if (!may_move()) return tell_({.id = ReasonId::FramesLeftShared});
  const auto move_back_slots = [this](const std::vector<OwnMapping>& mappings) {
    for (const OwnMapping& mapping : mappings)
      if (mapping.is_of(file_.identity()) && !is_own_view(mapping) &&
          idle_.contains(os::slot_of_offset(mapping.offset)))
        move_back(mapping, slots_.at(os::slot_of_offset(mapping.offset)));
  };
  for (const std::uint32_t number : idle_) slots_.at(number).is_mapped = false;
  // Most are where they were. The others may be anywhere.
  bool is_all_found = true;
  for (const std::uint32_t number : idle_) {
    const Slot& slot = slots_.at(number);
    if (const auto near = os::own_mappings({slot.start, os::kSlotBytes})) move_back_slots(*near);
    for (std::uint64_t page = 0; page < kSlotPages; ++page)
      is_all_found &= slot.pages[page] != Page::Used || slot.users[page] != 0;
    is_all_found &= !file_.has_more(number, slot.bytes);
  }
  if (!is_all_found) {
    if (const auto all = os::own_mappings_of(file_.identity()))
      move_back_slots(*all);
    else
      keep_unfound(all.error());
  }
  for (auto at = idle_.begin(); at != idle_.end();) {
    const std::uint32_t number = *at;
    Slot& slot = slots_.at(number);
    free_unmapped(number, slot);
    at = slot.is_mapped ? std::next(at) : idle_.erase(at);
    if (slot.used != 0 || slot.is_mapped) continue;
    if (file_.has_more(number, slot.bytes)) file_.discard(number, 0, os::slot_offset(1));
    slots_.erase(number);
    free_slots_.push_back(number);
  }
}

// The kernel does not say what is mapped; what was not found may be.
void LiveFrames::keep_unfound(const os::SystemError& error) {
  tell_({.id = ReasonId::FramesLeftShared, .object = static_cast<std::uint32_t>(error.number)});
  for (const std::uint32_t number : idle_) {
    Slot& slot = slots_.at(number);
    slot.is_mapped |= file_.has_more(number, slot.bytes);
    for (std::uint64_t page = 0; page < kSlotPages; ++page) {
      if (slot.pages[page] != Page::Used || slot.users[page] != 0) continue;
      slot.pages[page] = Page::Kept;
      slot.is_mapped = true;
    }
  }
}

// Also what lies behind the slot's pages, where the program has lengthened its mapping.
void LiveFrames::move_back(const OwnMapping& mapping, Slot& slot) {
  const bool has_users = std::ranges::any_of(slot.users, [](auto users) { return users != 0; });
  const std::uint64_t first = os::in_slot(mapping.offset) / kPage4K;
  const std::uint64_t end = first + mapping.range.length / kPage4K;
  const auto is_idle = [&](std::uint64_t page) {
    return page < kSlotPages ? slot.users[page] == 0 : !has_users;
  };
  for (std::uint64_t page = first; page < end;) {
    if (!is_idle(page)) {
      ++page;
      continue;
    }
    const std::uint64_t limit = page < kSlotPages ? std::min(end, kSlotPages) : end;
    std::uint64_t behind = page;
    while (behind < limit && is_idle(behind)) ++behind;
    const Range<VirtSpace> run{advance(mapping.range.start, (page - first) * kPage4K),
                               (behind - page) * kPage4K};
    const bool moved = move_run_back(mapping, run);
    slot.is_mapped |= !moved;
    for (; page < behind; ++page)
      if (page < kSlotPages && slot.pages[page] != Page::Free)
        slot.pages[page] = moved ? Page::Returned : Page::Kept;
  }
}

// The bytes as the device sees them; those that it does not see, at their place.
std::optional<ConstBytes> LiveFrames::bytes_of(const OwnMapping& mapping,
                                               Range<VirtSpace> run) const {
  const std::uint64_t offset = mapping.offset + (run.start.value - mapping.range.start.value);
  const std::uint64_t place = os::in_slot(offset);
  if (place < os::kSlotBytes && run.length <= os::kSlotBytes - place)
    return ConstBytes{file_.slot(os::slot_of_offset(offset)) + place, run.length};
  if (!mapping.readable) return std::nullopt;
  return ConstBytes{reinterpret_cast<const std::byte*>(run.start.value), run.length};
}

bool LiveFrames::move_run_back(const OwnMapping& mapping, Range<VirtSpace> run) {
  const auto bytes = bytes_of(mapping, run);
  if (!bytes || kept_from(run.start.value) < end_of(run) || os::PageMover::is_in_use(run))
    return false;
  const auto moved =
      mover_.to_private(run, *bytes, {.readable = mapping.readable, .writable = mapping.writable});
  if (moved) return true;
  tell_({.id = ReasonId::FramesLeftShared,
         .object = static_cast<std::uint32_t>(moved.error().number),
         .address = run.start.value,
         .length = run.length});
  return false;
}

// What is nowhere any more was unmapped while a region had it: an orphan, which is freed now.
void LiveFrames::free_unmapped(std::uint32_t number, Slot& slot) {
  const auto is_left = [&](std::uint64_t page) {
    return slot.users[page] == 0 &&
           (slot.pages[page] == Page::Used || slot.pages[page] == Page::Returned);
  };
  for (std::uint64_t page = 0; page < kSlotPages; ++page) {
    const std::uint64_t first = page;
    for (; page < kSlotPages && is_left(page); ++page) {
      const bool is_orphan = slot.pages[page] == Page::Used;
      tracer_.count(is_orphan ? Counter::FramesOrphaned : Counter::FramesReturned);
      slot.pages[page] = Page::Free;
      --slot.used;
    }
    if (page != first) file_.discard(number, first * kPage4K, (page - first) * kPage4K);
    if (page < kSlotPages && slot.pages[page] == Page::Kept) slot.pages[page] = Page::Used;
  }
}

void LiveFrames::before_fork() {
  if (slots_.empty()) return;
  if (auto wait = os::ChildWait::open()) child_.emplace(std::move(*wait));
}

void LiveFrames::after_fork_in_parent() {
  if (child_) child_->await(kChildCopies);
  child_.reset();
}

std::uint64_t LiveFrames::leave_behind() {
  mover_.abandon();
  file_.close_file();  // to read what is mapped takes a descriptor
  std::uint64_t shared_bytes = 0;
  const auto mappings = os::own_mappings_of(file_.identity());
  if (!mappings)
    for (const auto& [number, slot] : slots_) shared_bytes += slot.used * kPage4K;
  for (const OwnMapping& mapping : mappings ? *mappings : std::vector<OwnMapping>{}) {
    if (is_own_view(mapping)) continue;
    const auto bytes = bytes_of(mapping, mapping.range);
    if (!bytes || !mover_.to_private(mapping.range, *bytes,
                                     {.readable = mapping.readable, .writable = mapping.writable}))
      shared_bytes += mapping.range.length;
  }
  file_.abandon();
  g_frames_are_taken = false;
  if (child_) child_->done();
  child_.reset();
  return shared_bytes;
}

}  // namespace softhca::driver
