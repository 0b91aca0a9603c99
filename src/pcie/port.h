// DmaPort: how a device reaches memory that is not its own. The device's side of the bus.
//
// Two steps, always: *resolve* an access into spans of memory or a fault, then *move* bytes once.
// Nothing is moved by an access that does not resolve as a whole. The host side (host/root_port)
// translates through the IOMMU; a test or a peer's memory may stand there instead.
//
// Time      `now` goes in, `ready_at` comes out: what depends on the access is not visible before.
//           Live, ready_at equals now.
// Faults    a read that is blocked is answered (Unsupported Request); a posted write that is
//           blocked vanishes on real PCIe and nobody tells the device. This port tells its caller
//           about both, since software that knows and hides it would help nobody; the reason says
//           which it was.
// See also  host/root_port.h, nic/memory.h
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/address.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/uncleared.h"
#include "trace/reason.h"

namespace softhca::pcie {

enum class Direction : std::uint8_t { Read, Write };  // as the device sees it

// Who sends a request: bus << 8 | device << 3 | function.
struct RequesterId {
  std::uint16_t value = 0x0100;  // 01:00.0
  friend constexpr auto operator<=>(RequesterId, RequesterId) = default;
};

// A run of bytes in one stretch of memory. Its meaning is the port's own.
struct Span {
  PhysAddr start;
  std::uint64_t bytes{};
  friend bool operator==(Span, Span) = default;
};

struct Access {
  BusAddr at;
  std::uint64_t bytes{};
  Direction direction{};
};

// What an access or a move came to.
struct Outcome {
  trace::Reason reason{};      // None: it went through
  std::uint64_t done_bytes{};  // bytes resolved, or moved, before the reason; all of them if None
  Time ready_at{};

  explicit operator bool() const { return !reason; }
};

// A fixed room for the spans of one access, so that the hot path does not allocate.
class SpanList {
 public:
  static constexpr std::size_t kCapacity = 64;

  // Adds a span, joined to the last one where they touch. False when there is no room.
  bool append(Span span) {
    if (span.bytes == 0) return true;
    if (count_ != 0) {
      Span& last = at(count_ - 1);
      if (last.start.value + last.bytes == span.start.value) {
        last.bytes += span.bytes;
        return true;
      }
    }
    if (count_ == kCapacity) return false;
    std::construct_at(&at(count_++), span);
    return true;
  }
  void clear() { count_ = 0; }
  std::span<const Span> all() const { return {&at(0), count_}; }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const Span& s : all()) sum += s.bytes;
    return sum;
  }

 private:
  Span& at(std::size_t i) { return room_.data()[i]; }
  const Span& at(std::size_t i) const { return room_.data()[i]; }

  Uncleared<Span, kCapacity> room_;  // most lists have one span, and each access has a list
  std::size_t count_ = 0;
};

class DmaPort {
 public:
  virtual ~DmaPort() = default;

  // Appends the spans behind `access`, or gives the fault. An access of 0 bytes resolves to none.
  // FAILS WITH BusMasterOff, IommuNotMapped, IommuNoRead, IommuNoWrite, IommuBadAddress,
  // IommuNoContext, UnsupportedRequest
  virtual Outcome resolve(const Access& access, Time now, SpanList& spans) = 0;

  // Copies out of, or into, resolved spans. REQUIRES: sizes equal the sum of the spans.
  // FAILS WITH FrameGone, FrameProtected, FrameReplaced; never faults the calling program.
  virtual Outcome read(std::span<const Span> from, Bytes to, Time now) = 0;
  virtual Outcome write(std::span<const Span> to, ConstBytes from, Time now) = 0;

  // The same for a buffer that lies in parts, one behind the other.
  virtual Outcome read(std::span<const Span> from, std::span<const Bytes> to, Time now);
  virtual Outcome write(std::span<const Span> to, std::span<const ConstBytes> from, Time now);
};

// Where a device's MSI-X messages arrive.
class InterruptTarget {
 public:
  virtual ~InterruptTarget() = default;
  virtual void interrupt(std::uint32_t vector, Time now) = 0;
};

}  // namespace softhca::pcie
