#include "host/pin.h"

#include <algorithm>

#include "base/assert.h"

namespace softhca::host {
namespace {

std::uintptr_t address_of(std::uint64_t page) { return page * kPage4K; }

}  // namespace

Pins::~Pins() {
  if (kernel_ == nullptr) return;
  for (const auto& [id, pin] : pins_)
    if (pin.held) kernel_->unpin(*pin.held);
  for (const auto& [first, run] : runs_)
    if (run.locked_by_us) kernel_->unpin({address_of(first), (run.end - first) * kPage4K, 0});
}

Result<Pinned, trace::Reason> Pins::pin(Range<PhysSpace> range, Time now) {
  ASSERT(range.length > 0 && !range.wraps());
  Pin pin{.first_page = range.start.value / kPage4K,
          .pages = pages_touched(range, kPage4K),
          .counted_only = false,
          .held = std::nullopt};
  const std::uint64_t limit_pages = policy_.memlock_limit / kPage4K;
  bool over_limit = pages_charged_ > limit_pages || pin.pages > limit_pages - pages_charged_;
  const trace::Reason refusal{.id = trace::ReasonId::MemlockExceeded,
                              .object = 0,
                              .address = range.start.value,
                              .length = range.length,
                              .low = 0,
                              .high = policy_.memlock_limit};
  if (policy_.strict && over_limit) return refusal;

  count_up(pin);
  if (const auto error = pin_in_kernel(pin)) {
    over_limit |= *error == os::PinError::Limit;
    if (policy_.strict && over_limit) {
      count_down(pin);
      return refusal;
    }
    pin.counted_only = true;
  }
  merge_around(pin.first_page, pin.first_page + pin.pages);

  const PinId id{next_id_++};
  if (pin.held) {
    frame_holds_.emplace(pin.first_page, id.value);
    longest_hold_ = std::max(longest_hold_, pin.pages);
  }
  pages_charged_ += pin.pages;
  tracer_.count(
      pin.counted_only ? trace::Counter::PagesCountedNotPinned : trace::Counter::PagesPinned,
      pin.pages);
  tracer_.emit(trace::EventKind::Pin, now, 0, address_of(pin.first_page), pin.pages,
               static_cast<std::uint64_t>(pin.counted_only ? os::PinBackend::Counted : backend()));
  const Pinned pinned{id, pin.pages, pin.counted_only, over_limit};
  pins_.emplace(id.value, std::move(pin));
  return pinned;
}

void Pins::unpin(PinId id, Time now) {
  const auto found = pins_.find(id.value);
  ASSERT(found != pins_.end());
  const Pin pin = found->second;
  pins_.erase(found);
  count_down(pin);
  if (pin.held) {
    kernel_->unpin(*pin.held);
    forget_frame(pin.first_page, id);
  }
  pages_charged_ -= pin.pages;
  if (!pin.counted_only) tracer_.count(trace::Counter::PagesUnpinned, pin.pages);
  tracer_.emit(trace::EventKind::Unpin, now, 0, address_of(pin.first_page), pin.pages,
               static_cast<std::uint64_t>(pin.counted_only ? os::PinBackend::Counted : backend()));
}

// Nothing, or why the kernel holds none of the pages for us.
std::optional<os::PinError> Pins::pin_in_kernel(Pin& pin) {
  if (kernel_ == nullptr) return std::nullopt;  // the count is the pin
  if (kernel_->backend() == os::PinBackend::Counted) return os::PinError::NotPinnable;
  if (kernel_->backend() == os::PinBackend::Mlock) return lock_runs(pin);
  const auto held = kernel_->pin(address_of(pin.first_page), pin.pages * kPage4K);
  if (!held) return held.error();
  pin.held = *held;
  return std::nullopt;
}

// Locks what this pin is the first to hold. Pages held before are locked again, since they may have
// been mapped anew; where they were not locked by us they are left alone.
std::optional<os::PinError> Pins::lock_runs(const Pin& pin) {
  const std::uint64_t end = pin.first_page + pin.pages;
  const auto pages_of = [](Runs::const_iterator run) {
    return os::HeldPin{address_of(run->first), (run->second.end - run->first) * kPage4K, 0};
  };
  std::optional<os::PinError> error;
  const auto first = runs_.lower_bound(pin.first_page);
  auto run = first;
  for (; run != runs_.end() && run->first < end; ++run) {
    const os::HeldPin pages = pages_of(run);
    if (run->second.count > 1 && !run->second.locked_by_us) continue;
    if (run->second.count == 1 && os::is_locked(pages.address, pages.bytes)) continue;
    const auto locked = kernel_->pin(pages.address, pages.bytes);
    if (run->second.count > 1) continue;
    if (!locked) {
      error = locked.error();
      break;
    }
    run->second.locked_by_us = true;
  }
  if (!error) return std::nullopt;
  for (auto undo = first; undo != run; ++undo) {
    if (undo->second.count > 1 || !undo->second.locked_by_us) continue;
    kernel_->unpin(pages_of(undo));
    undo->second.locked_by_us = false;
  }
  return error;
}

// The first run at or behind `page`, after cutting one that reaches across it.
Pins::Runs::iterator Pins::split_at(std::uint64_t page) {
  const auto at = runs_.lower_bound(page);
  if (at == runs_.begin()) return at;
  const auto before = std::prev(at);
  if (before->second.end <= page) return at;
  Run rest = before->second;
  before->second.end = page;
  return runs_.emplace_hint(at, page, rest);
}

void Pins::merge_around(std::uint64_t first, std::uint64_t end) {
  auto run = runs_.lower_bound(first);
  if (run != runs_.begin()) --run;
  while (run != runs_.end()) {
    const auto next = std::next(run);
    if (next == runs_.end() || next->first > end) return;
    if (run->second.end == next->first && run->second.same_as(next->second)) {
      run->second.end = next->second.end;
      runs_.erase(next);
    } else {
      run = next;
    }
  }
}

// Leaves the runs cut at both ends of the pin; merge_around() follows.
void Pins::count_up(const Pin& pin) {
  const std::uint64_t end = pin.first_page + pin.pages;
  split_at(end);
  auto run = split_at(pin.first_page);
  std::uint64_t page = pin.first_page;
  while (page < end) {
    if (run == runs_.end() || run->first > page) {
      const std::uint64_t gap_end = run == runs_.end() ? end : std::min(end, run->first);
      run = runs_.emplace_hint(run, page, Run{gap_end, 1, false});
      pages_held_ += gap_end - page;
    } else {
      ++run->second.count;
    }
    page = run->second.end;
    ++run;
  }
}

void Pins::count_down(const Pin& pin) {
  const std::uint64_t end = pin.first_page + pin.pages;
  split_at(end);
  auto run = split_at(pin.first_page);
  while (run != runs_.end() && run->first < end) {
    if (--run->second.count > 0) {
      ++run;
      continue;
    }
    const std::uint64_t pages = run->second.end - run->first;
    if (run->second.locked_by_us) kernel_->unpin({address_of(run->first), pages * kPage4K, 0});
    pages_held_ -= pages;
    run = runs_.erase(run);
  }
  merge_around(pin.first_page, end);
}

void Pins::forget_frame(std::uint64_t first_page, PinId id) {
  const auto [begin, end] = frame_holds_.equal_range(first_page);
  const auto found =
      std::find_if(begin, end, [&](const auto& hold) { return hold.second == id.value; });
  ASSERT(found != end);
  frame_holds_.erase(found);
  if (frame_holds_.empty()) longest_hold_ = 0;
}

std::uint32_t Pins::count_at(PhysAddr at) const {
  const std::uint64_t page = at.value / kPage4K;
  const auto behind = runs_.upper_bound(page);
  if (behind == runs_.begin()) return 0;
  const Run& run = std::prev(behind)->second;
  return page < run.end ? run.count : 0;
}

std::uint32_t Pins::most_in(Range<PhysSpace> range) const {
  ASSERT(range.length > 0 && !range.wraps());
  const std::uint64_t first = range.start.value / kPage4K;
  const std::uint64_t end = first + pages_touched(range, kPage4K);
  auto run = runs_.upper_bound(first);
  if (run != runs_.begin() && std::prev(run)->second.end > first) --run;
  std::uint32_t most = 0;
  for (; run != runs_.end() && run->first < end; ++run) most = std::max(most, run->second.count);
  return most;
}

Pins::Hold Pins::hold_at(PhysAddr at, std::uint64_t bytes) const {
  const std::uint64_t page = at.value / kPage4K;
  const auto up_to = [&](std::uint64_t end_page) {
    return std::min(bytes, end_page * kPage4K - at.value);
  };
  const auto behind = runs_.upper_bound(page);
  if (behind == runs_.begin() || std::prev(behind)->second.end <= page)
    return {HoldKind::None, up_to(page + 1), {}};
  const Run& run = std::prev(behind)->second;
  if (run.locked_by_us) return {HoldKind::Locked, up_to(run.end), {}};

  // The newest pin that contains the page; no pin is longer than longest_hold_.
  PinId newest{};
  std::uint64_t newest_end = page + 1;
  auto hold = frame_holds_.upper_bound(page);
  while (hold != frame_holds_.begin()) {
    --hold;
    if (hold->first + longest_hold_ <= page) break;
    const std::uint64_t end = hold->first + pins_.at(hold->second).pages;
    if (end <= page || hold->second <= newest.value) continue;
    newest = {hold->second};
    newest_end = end;
  }
  // Where a single pin holds the pages, they are the same until it or the run ends.
  const std::uint64_t same_to = run.count == 1 ? std::min(run.end, newest_end) : page + 1;
  return {newest.value == 0 ? HoldKind::None : HoldKind::Frame, up_to(same_to), newest};
}

bool Pins::copy_from_frame(PinId id, PhysAddr at, Bytes to) {
  const os::HeldPin& held = *pins_.at(id.value).held;
  return kernel_->copy_from_pinned(held, at.value - held.address, to);
}

bool Pins::copy_to_frame(PinId id, PhysAddr at, ConstBytes from) {
  const os::HeldPin& held = *pins_.at(id.value).held;
  return kernel_->copy_to_pinned(held, at.value - held.address, from);
}

bool Pins::still_locked(PhysAddr at, std::uint64_t bytes) const {
  return kernel_->still_locked(at.value, bytes);
}

}  // namespace softhca::host
