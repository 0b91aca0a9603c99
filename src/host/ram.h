// Ram: the frames of a machine, and the only code that moves bytes in and out of them.
//
// A *modelled machine* owns an arena; frame 0 is its first page. In a *live process* the frames
// are the pages of this process: base 0, so that a PhysAddr has the value of the virtual address,
// and every copy is guarded, since the program may have unmapped what it registered.
//
//   by address  (default) a copy reaches what is mapped at the address now
//   by frame    (strict)  a copy reaches the frame that was pinned, as hardware would: an io_uring
//               pin is copied through, a locked page must still be the one that was locked
//
// Threads     owned by the device's owner
// Invariants  a copy never faults the program; what fails names its first byte
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/range.h"
#include "os/guarded_copy.h"
#include "pcie/port.h"
#include "trace/reason.h"

namespace softhca::host {

class Pins;

// What a copy came to. `reason` is None, FrameGone, FrameProtected or FrameReplaced; its address
// is the first byte that was not copied.
struct Moved {
  trace::Reason reason{};
  std::uint64_t done_bytes{};
  explicit operator bool() const { return !reason; }
};

class Ram {
 public:
  // OWNS nothing; `copy` outlives this.
  static Ram of_process(const os::GuardedCopy& copy);

  // Zeroed memory of its own; only what is used takes space. REQUIRES: bytes > 0.
  static Ram arena(std::uint64_t bytes);

  // Live only: copies go by frame from now on (null: by address again). `pins` outlives this.
  void go_by_frame(Pins* pins) { pins_ = pins; }

  // Live only: memory that driver and device share. It is always there, so copies are plain, and
  // ordered as on the bus: the last 8 bytes of a write appear last (release), and a read of 8 bytes
  // sees all that was written before them (acquire). REQUIRES: mapped for as long as this lives.
  void own(Range<PhysSpace> range) { own_ = range; }
  // The same for memory that the program lends for queues, until disown(). REQUIRES: what
  // own_also() was given.
  void own_also(Range<PhysSpace> range) { lent_.push_back(range); }
  void disown(Range<PhysSpace> range);
  // Whether all of it is such memory.
  bool is_owned(std::span<const pcie::Span> spans) const;

  // Gathers the spans into `to`, or scatters `from` over the spans. An arena knows no frames beyond
  // its end: FrameGone. REQUIRES: sizes equal the sum of the spans.
  Moved read(std::span<const pcie::Span> from, Bytes to);
  Moved write(std::span<const pcie::Span> to, ConstBytes from);

  // The same for a buffer in parts. REQUIRES: moves_parts().
  Moved read(std::span<const pcie::Span> from, std::span<const Bytes> to);
  Moved write(std::span<const pcie::Span> to, std::span<const ConstBytes> from);
  // Whether one guarded copy can do it.
  bool moves_parts(std::span<const pcie::Span> spans) const {
    return copy_ != nullptr && pins_ == nullptr && spans.size() <= kSpansAtOnce && !is_owned(spans);
  }

  // Arena only: zeroes the range. Large ones take no memory any more until they are used again.
  // REQUIRES: within the arena.
  void zero(Range<PhysSpace> range);

  bool is_process() const { return copy_ != nullptr; }

  // Where the CPU finds a byte: live its virtual address, in an arena a place in it.
  // REQUIRES: within the arena or a window.
  std::byte* cpu_address(PhysAddr at) const;

  // The inverse. REQUIRES: within the arena or a window.
  PhysAddr frame_of(const void* at) const;

  // Are there frames, or a window, behind all of it? Always, for a process.
  bool reaches(Range<PhysSpace> range) const;

  // Arena only: memory of a device that the CPU sees at these addresses (a BAR). OWNS nothing.
  // REQUIRES: beyond the arena, overlaps no other window, as long as the memory.
  void add_window(Range<PhysSpace> range, Bytes memory);

  // Bytes of the arena; UINT64_MAX for a process.
  std::uint64_t size() const { return size_; }

 private:
  struct Freed {
    void operator()(std::byte* p) const { std::free(p); }
  };
  static constexpr std::size_t kSpansAtOnce = 64;
  Ram() = default;

  template <class Buffer>
  Moved move(std::span<const pcie::Span> spans, Buffer buffer);
  template <class Buffer>
  Moved move_in_arena(std::span<const pcie::Span> spans, Buffer buffer);
  template <class Buffer>
  Moved move_owned(std::span<const pcie::Span> spans, Buffer buffer);
  bool is_lent(const pcie::Span& span) const;
  template <class Buffer>
  Moved move_guarded(std::span<const pcie::Span> spans, Buffer buffer);
  template <class Part>
  Moved move_at_once(std::span<const pcie::Span> spans, std::span<const Part> parts);
  template <class Buffer>
  Moved move_by_frame(std::span<const pcie::Span> spans, Buffer buffer);

  struct Window {
    Range<PhysSpace> range;
    Bytes memory;
  };
  const Window* window_at(PhysAddr at) const;

  std::uintptr_t base_ = 0;  // CPU address of frame 0
  std::uint64_t size_ = UINT64_MAX;
  std::unique_ptr<std::byte, Freed> arena_;
  std::vector<Window> windows_;
  const os::GuardedCopy* copy_ = nullptr;  // live only
  Range<PhysSpace> own_;                   // live only; empty: none
  std::vector<Range<PhysSpace>> lent_;     // live only
  Pins* pins_ = nullptr;                   // live and by frame only
};

}  // namespace softhca::host
