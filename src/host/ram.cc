#include "host/ram.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/assert.h"
#include "base/ordered_copy.h"
#include "base/range.h"
#include "host/pin.h"
#include "os/reserved_memory.h"

namespace softhca::host {
namespace {

template <class Buffer>
constexpr bool kReading = std::is_same_v<Buffer, Bytes>;  // out of the frames, into the buffer

Moved stopped(trace::ReasonId id, std::uint64_t at, std::uint64_t asked, std::uint64_t done) {
  return {.reason = {.id = id, .object = 0, .address = at, .length = asked, .low = 0, .high = 0},
          .done_bytes = done};
}

trace::ReasonId reason_of(os::CopyFault fault) {
  return fault == os::CopyFault::Gone ? trace::ReasonId::FrameGone
                                      : trace::ReasonId::FrameProtected;
}

template <class Part>
os::CopyOutcome copy_guarded(const os::GuardedCopy& copy, std::span<const os::MemoryPiece> pieces,
                             std::span<const Part> parts) {
  if constexpr (kReading<Part>)
    return copy.from_memory(pieces, parts);
  else
    return copy.to_memory(pieces, parts);
}

}  // namespace

Ram Ram::of_process(const os::GuardedCopy& copy) {
  Ram ram;
  ram.copy_ = &copy;
  return ram;
}

Ram Ram::arena(std::uint64_t bytes) {
  ASSERT(bytes > 0);
  Ram ram;
  ram.arena_.reset(static_cast<std::byte*>(std::calloc(bytes, 1)));
  ASSERT(ram.arena_ != nullptr);
  ram.base_ = reinterpret_cast<std::uintptr_t>(ram.arena_.get());
  ram.size_ = bytes;
  return ram;
}

std::byte* Ram::cpu_address(PhysAddr at) const {
  if (at.value >= size_) [[unlikely]] {
    const Window* window = window_at(at);
    ASSERT(window != nullptr);
    return window->memory.data() + distance(window->range.start, at);
  }
  return reinterpret_cast<std::byte*>(base_ + at.value);
}

void Ram::zero(Range<PhysSpace> range) {
  ASSERT(arena_ != nullptr && (Range<PhysSpace>{{0}, size_}.contains(range.start, range.length)));
  if (range.length == 0) return;
  std::byte* const start = cpu_address(range.start);
  if (range.length < kPage2M) {
    std::memset(start, 0, range.length);
    return;
  }
  // The arena does not start at a page of this process, so the edges are written.
  const std::uint64_t head =
      (kPage4K - reinterpret_cast<std::uintptr_t>(start) % kPage4K) % kPage4K;
  const std::uint64_t whole = (range.length - head) / kPage4K * kPage4K;
  std::memset(start, 0, head);
  os::discard_pages({start + head, whole});
  std::memset(start + head + whole, 0, range.length - head - whole);
}

PhysAddr Ram::frame_of(const void* at) const {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  for (const Window& window : windows_) {
    const auto first = reinterpret_cast<std::uintptr_t>(window.memory.data());
    if (address >= first && address - first < window.memory.size())
      return advance(window.range.start, address - first);
  }
  ASSERT(address >= base_ && address - base_ < size_);
  return {address - base_};
}

void Ram::add_window(Range<PhysSpace> range, Bytes memory) {
  ASSERT(!is_process() && range.length == memory.size() && range.start.value >= size_);
  for (const Window& window : windows_) ASSERT(!window.range.overlaps(range));
  windows_.push_back({range, memory});
}

const Ram::Window* Ram::window_at(PhysAddr at) const {
  const auto found = std::ranges::find_if(
      windows_, [&](const Window& window) { return window.range.contains(at, 1); });
  return found == windows_.end() ? nullptr : &*found;
}

bool Ram::reaches(Range<PhysSpace> range) const {
  if (Range<PhysSpace>{{0}, size_}.contains(range.start, range.length)) return true;
  const Window* window = window_at(range.start);
  return window != nullptr && window->range.contains(range.start, range.length);
}

Moved Ram::read(std::span<const pcie::Span> from, Bytes to) { return move(from, to); }
Moved Ram::write(std::span<const pcie::Span> to, ConstBytes from) { return move(to, from); }

template <class Buffer>
Moved Ram::move(std::span<const pcie::Span> spans, Buffer buffer) {
  if (copy_ == nullptr) return move_in_arena(spans, buffer);
  if (is_owned(spans)) return move_owned(spans, buffer);
  return pins_ == nullptr ? move_guarded(spans, buffer) : move_by_frame(spans, buffer);
}

template <class Buffer>
Moved Ram::move_in_arena(std::span<const pcie::Span> spans, Buffer buffer) {
  std::uint64_t done = 0;
  for (const pcie::Span& span : spans) {
    ASSERT(span.bytes <= buffer.size() - done);
    if (!reaches({span.start, span.bytes}))
      return stopped(trace::ReasonId::FrameGone, span.start.value, span.bytes, done);
    if (span.bytes == 0) continue;
    if constexpr (kReading<Buffer>)
      std::memcpy(buffer.data() + done, cpu_address(span.start), span.bytes);
    else
      std::memcpy(cpu_address(span.start), buffer.data() + done, span.bytes);
    done += span.bytes;
  }
  ASSERT(done == buffer.size());
  return {.reason = {}, .done_bytes = done};
}

bool Ram::is_owned(std::span<const pcie::Span> spans) const {
  return own_.length != 0 && std::ranges::all_of(spans, [&](const pcie::Span& span) {
           return own_.contains(span.start, span.bytes) || (!lent_.empty() && is_lent(span));
         });
}

bool Ram::is_lent(const pcie::Span& span) const {
  return std::ranges::any_of(
      lent_, [&](const Range<PhysSpace>& range) { return range.contains(span.start, span.bytes); });
}

void Ram::disown(Range<PhysSpace> range) {
  const auto found = std::ranges::find_if(lent_, [&](const Range<PhysSpace>& one) {
    return one.start == range.start && one.length == range.length;
  });
  ASSERT(found != lent_.end());
  lent_.erase(found);
}

template <class Buffer>
Moved Ram::move_owned(std::span<const pcie::Span> spans, Buffer buffer) {
  std::uint64_t done = 0;
  for (const pcie::Span& span : spans) {
    ASSERT(span.bytes <= buffer.size() - done);
    const Buffer part = buffer.subspan(done, span.bytes);
    if constexpr (kReading<Buffer>)
      copy_from_shared(part, cpu_address(span.start));
    else
      copy_to_shared(cpu_address(span.start), part);
    done += span.bytes;
  }
  ASSERT(done == buffer.size());
  return {.reason = {}, .done_bytes = done};
}

template <class Buffer>
Moved Ram::move_guarded(std::span<const pcie::Span> spans, Buffer buffer) {
  std::uint64_t done = 0;
  while (!spans.empty()) {
    const auto some = spans.first(std::min(spans.size(), kSpansAtOnce));
    std::uint64_t bytes = 0;
    for (const pcie::Span& span : some) bytes += span.bytes;
    ASSERT(bytes <= buffer.size() - done);
    const Buffer part = buffer.subspan(done, bytes);
    Moved moved = move_at_once(some, std::span<const Buffer>(&part, 1));
    done += moved.done_bytes;
    if (!moved) {
      moved.reason.length = buffer.size();
      moved.done_bytes = done;
      return moved;
    }
    spans = spans.subspan(some.size());
  }
  ASSERT(done == buffer.size());
  return {.reason = {}, .done_bytes = done};
}

template <class Part>
Moved Ram::move_at_once(std::span<const pcie::Span> spans, std::span<const Part> parts) {
  ASSERT(spans.size() <= kSpansAtOnce);
  std::array<os::MemoryPiece, kSpansAtOnce> pieces;
  std::uint64_t asked = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    pieces[i] = {spans[i].start.value, spans[i].bytes};
    asked += spans[i].bytes;
  }
  const os::CopyOutcome copied = copy_guarded(*copy_, std::span(pieces).first(spans.size()), parts);
  if (copied.fault != os::CopyFault::None)
    return stopped(reason_of(copied.fault), copied.fault_address, asked, copied.done_bytes);
  ASSERT(copied.done_bytes == asked);
  return {.reason = {}, .done_bytes = asked};
}

Moved Ram::read(std::span<const pcie::Span> from, std::span<const Bytes> to) {
  return move_at_once(from, to);
}
Moved Ram::write(std::span<const pcie::Span> to, std::span<const ConstBytes> from) {
  return move_at_once(to, from);
}

template <class Buffer>
Moved Ram::move_by_frame(std::span<const pcie::Span> spans, Buffer buffer) {
  const std::uint64_t asked = buffer.size();
  std::uint64_t done = 0;
  for (const pcie::Span& span : spans) {
    ASSERT(span.bytes <= asked - done);
    for (std::uint64_t offset = 0; offset < span.bytes;) {
      const PhysAddr at = advance(span.start, offset);
      const Pins::Hold hold = pins_->hold_at(at, span.bytes - offset);
      const Buffer part = buffer.subspan(done, hold.bytes);
      if (hold.kind == Pins::HoldKind::Frame) {
        bool copied;
        if constexpr (kReading<Buffer>)
          copied = pins_->copy_from_frame(hold.id, at, part);
        else
          copied = pins_->copy_to_frame(hold.id, at, part);
        if (!copied) return stopped(trace::ReasonId::FrameGone, at.value, asked, done);
      } else {
        const bool replaced =
            hold.kind == Pins::HoldKind::Locked && !pins_->still_locked(at, hold.bytes);
        std::byte first_byte;
        const os::MemoryPiece probe{at.value, 1};
        const os::MemoryPiece whole{at.value, hold.bytes};
        const os::CopyOutcome copied =
            replaced ? copy_->from_memory({&probe, 1}, Bytes(&first_byte, 1))
                     : copy_guarded(*copy_, {&whole, 1}, std::span<const Buffer>(&part, 1));
        if (copied.fault != os::CopyFault::None)
          return stopped(reason_of(copied.fault), copied.fault_address, asked,
                         done + (replaced ? 0 : copied.done_bytes));
        if (replaced) return stopped(trace::ReasonId::FrameReplaced, at.value, asked, done);
      }
      offset += hold.bytes;
      done += hold.bytes;
    }
  }
  ASSERT(done == asked);
  return {.reason = {}, .done_bytes = done};
}

}  // namespace softhca::host
