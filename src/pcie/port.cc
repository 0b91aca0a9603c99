#include "pcie/port.h"

#include <algorithm>

#include "base/range.h"

namespace softhca::pcie {

namespace {

// The spans of the bytes [offset, +bytes) of these.
SpanList part_of(std::span<const Span> spans, std::uint64_t offset, std::uint64_t bytes) {
  SpanList part;
  for (const Span& span : spans) {
    const std::uint64_t skipped = std::min(offset, span.bytes);
    const std::uint64_t here = std::min(span.bytes - skipped, bytes);
    ASSERT(part.append({advance(span.start, skipped), here}));
    offset -= skipped;
    bytes -= here;
  }
  return part;
}

template <class Part, class Move>
Outcome each_part(std::span<const Span> spans, std::span<const Part> parts, Time now, Move move) {
  Outcome total{.ready_at = now};
  for (const Part part : parts) {
    const Outcome one = move(part_of(spans, total.done_bytes, part.size()).all(), part);
    total.reason = one.reason;
    total.done_bytes += one.done_bytes;
    total.ready_at = later(total.ready_at, one.ready_at);
    if (!total) break;
  }
  return total;
}

}  // namespace

Outcome DmaPort::read(std::span<const Span> from, std::span<const Bytes> to, Time now) {
  return each_part(from, to, now,
                   [&](std::span<const Span> spans, Bytes part) { return read(spans, part, now); });
}

Outcome DmaPort::write(std::span<const Span> to, std::span<const ConstBytes> from, Time now) {
  return each_part(to, from, now, [&](std::span<const Span> spans, ConstBytes part) {
    return write(spans, part, now);
  });
}

}  // namespace softhca::pcie
