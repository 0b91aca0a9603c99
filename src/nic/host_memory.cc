#include "nic/host_memory.h"

#include <algorithm>
#include <type_traits>

#include "base/assert.h"

namespace softhca::nic {

using pcie::Direction;
using pcie::Outcome;
using trace::Counter;
using trace::EventKind;

namespace {

// A null region reads as zeros and forgets what is written.
void move_nothing(Bytes to) { std::ranges::fill(to, std::byte{0}); }
void move_nothing(ConstBytes) {}

// A buffer that may be written to is where a read goes.
template <class Buffer>
constexpr Direction kDirection =
    std::is_same_v<Buffer, Bytes> || std::is_same_v<Buffer, std::span<const Bytes>>
        ? Direction::Read
        : Direction::Write;

}  // namespace

trace::Reason HostMemory::check(const KeyAccess& access, wire::Qpn qpn, Time now) {
  tracer_.count(Counter::KeyChecks);
  const trace::Reason reason = keys_.check(access, qpn);
  if (reason) {
    tracer_.count(Counter::KeyRefusals);
    tracer_.emit(EventKind::KeyRefusal, now, access.key.value, access.address, access.bytes,
                 static_cast<std::uint64_t>(access.right), static_cast<std::uint64_t>(reason.id),
                 qpn.value);
  } else if (tracer_.recording()) {
    const BusAddr at = keys_.is_null(access) ? BusAddr{} : keys_.locate(access).at;
    tracer_.emit(EventKind::KeyCheck, now, access.key.value, access.address, access.bytes,
                 static_cast<std::uint64_t>(access.right), at.value, qpn.value);
  }
  return reason;
}

Outcome HostMemory::resolve_some(KeyAccess& access, Direction direction, pcie::SpanList& spans,
                                 Time now) {
  Outcome outcome{.ready_at = now};
  // A piece of n bytes takes at most as many spans as it touches pages.
  std::uint64_t room = spans.all().size() + 2 < pcie::SpanList::kCapacity
                           ? kMostInParts - spans.all().size() * kPage4K
                           : 0;
  while (access.bytes != 0 && room != 0) {
    BusPiece piece = keys_.locate(access);
    if (piece.bytes > room) piece.bytes = room;
    const Outcome one = port_.resolve({piece.at, piece.bytes, direction}, now, spans);
    outcome.ready_at = later(outcome.ready_at, one.ready_at);
    if (!one) {
      outcome.reason = one.reason;
      return outcome;
    }
    outcome.done_bytes += piece.bytes;
    room -= piece.bytes;
    access.address += piece.bytes;
    access.bytes -= piece.bytes;
  }
  return outcome;
}

template <class Buffer>
Outcome HostMemory::move(std::span<const pcie::Span> spans, Buffer buffer, Time now) {
  if constexpr (kDirection<Buffer> == Direction::Read)
    return port_.read(spans, buffer, now);
  else
    return port_.write(spans, buffer, now);
}

// What one span list surely holds, of a key that was checked and is on the bus.
template <class Buffer>
Outcome HostMemory::move_at_once(const KeyAccess& access, Buffer buffer, Time now) {
  pcie::SpanList spans;
  Outcome outcome = resolve(access, kDirection<Buffer>, spans, now);
  if (!outcome) return outcome;
  const Outcome moved = move(spans.all(), buffer, now);
  outcome.reason = moved.reason;
  outcome.done_bytes = moved.done_bytes;
  outcome.ready_at = later(outcome.ready_at, moved.ready_at);
  return outcome;
}

template <class Buffer>
Outcome HostMemory::move_by_key(const KeyAccess& access, wire::Qpn qpn, Buffer buffer, Time now) {
  ASSERT(access.bytes == buffer.size());
  Outcome total{.reason = check(access, qpn, now), .ready_at = now};
  if (total && is_off_bus(access)) [[unlikely]]
    return move_off_bus(access, buffer, now);
  if (total && access.bytes <= kPage4K) return move_at_once(access, buffer, now);
  KeyAccess rest = access;
  while (total && rest.bytes != 0) {
    pcie::SpanList spans;
    const Outcome resolved = resolve_some(rest, kDirection<Buffer>, spans, now);
    total.ready_at = later(total.ready_at, resolved.ready_at);
    total.reason = resolved.reason;
    if (!total) break;
    const Outcome moved =
        move(spans.all(), buffer.subspan(total.done_bytes, resolved.done_bytes), now);
    total.reason = moved.reason;
    total.done_bytes += moved.done_bytes;
    total.ready_at = later(total.ready_at, moved.ready_at);
  }
  return total;
}

bool HostMemory::is_off_bus(const KeyAccess& access) const {
  return keys_.is_on_device(access.key) || keys_.is_null(access);
}

template <class Buffer>
Outcome HostMemory::move_off_bus(const KeyAccess& access, Buffer buffer, Time now) {
  if (keys_.is_on_device(access.key)) return move_on_device(access, buffer, now);
  move_nothing(buffer);
  return {.reason = {}, .done_bytes = buffer.size(), .ready_at = now};
}

// Memory that is not behind the bus moves part by part.
template <class Part>
Outcome HostMemory::move_parts(const KeyAccess& access, wire::Qpn qpn, std::span<const Part> parts,
                               Time now) {
  ASSERT(access.bytes <= kMostInParts);
  Outcome total{.reason = check(access, qpn, now), .ready_at = now};
  if (!total) return total;
  if (is_off_bus(access)) [[unlikely]] {
    KeyAccess rest = access;
    for (const Part part : parts) {
      rest.bytes = part.size();
      total.done_bytes += move_off_bus(rest, part, now).done_bytes;
      rest.address += part.size();
    }
    return total;
  }
  return move_at_once(access, parts, now);
}

Outcome HostMemory::move_on_device(const KeyAccess& access, Bytes to, Time now) {
  const std::uint64_t place = keys_.locate(access).at.value;
  on_device_.read(place, to);
  tell_on_device(access, place, Direction::Read, now);
  return {.reason = {}, .done_bytes = to.size(), .ready_at = now};
}

Outcome HostMemory::move_on_device(const KeyAccess& access, ConstBytes from, Time now) {
  const std::uint64_t place = keys_.locate(access).at.value;
  on_device_.write(place, from);
  tell_on_device(access, place, Direction::Write, now);
  return {.reason = {}, .done_bytes = from.size(), .ready_at = now};
}

void HostMemory::tell_on_device(const KeyAccess& access, std::uint64_t place, Direction direction,
                                Time now) {
  const bool is_write = direction == Direction::Write;
  tracer_.count(is_write ? Counter::DeviceMemoryWrites : Counter::DeviceMemoryReads);
  tracer_.emit(EventKind::DeviceMemory, now, access.key.value, place, access.bytes,
               is_write ? 1 : 0);
}

template <class Buffer>
Outcome HostMemory::move_by_bus(BusAddr at, Buffer buffer, Time now) {
  pcie::SpanList spans;
  Outcome outcome = port_.resolve({at, buffer.size(), kDirection<Buffer>}, now, spans);
  if (!outcome) return outcome;
  const Outcome moved = move(spans.all(), buffer, now);
  outcome.reason = moved.reason;
  outcome.ready_at = later(outcome.ready_at, moved.ready_at);
  return outcome;
}

Outcome HostMemory::read(const KeyAccess& access, wire::Qpn qpn, Bytes to, Time now) {
  return move_by_key(access, qpn, to, now);
}
Outcome HostMemory::write(const KeyAccess& access, wire::Qpn qpn, ConstBytes from, Time now) {
  return move_by_key(access, qpn, from, now);
}
Outcome HostMemory::read(const KeyAccess& access, wire::Qpn qpn, std::span<const Bytes> to,
                         Time now) {
  return move_parts(access, qpn, to, now);
}
Outcome HostMemory::write(const KeyAccess& access, wire::Qpn qpn, std::span<const ConstBytes> from,
                          Time now) {
  return move_parts(access, qpn, from, now);
}

namespace {

class AtomicsLock {
 public:
  explicit AtomicsLock(SameHost* neighbours) : neighbours_(neighbours) {
    if (neighbours_ != nullptr) neighbours_->lock_atomics();
  }
  ~AtomicsLock() {
    if (neighbours_ != nullptr) neighbours_->unlock_atomics();
  }
  AtomicsLock(const AtomicsLock&) = delete;
  AtomicsLock& operator=(const AtomicsLock&) = delete;

 private:
  SameHost* neighbours_;
};

}  // namespace

Outcome HostMemory::resolve(const KeyAccess& access, Direction direction, pcie::SpanList& spans,
                            Time now) {
  // What most accesses are: one piece on the bus, of few pages.
  const BusPiece piece = keys_.locate(access);
  if (piece.bytes == access.bytes && piece.bytes <= kPage4K &&
      spans.all().size() + 2 < pcie::SpanList::kCapacity) {
    Outcome outcome = port_.resolve({piece.at, piece.bytes, direction}, now, spans);
    if (!outcome) outcome.done_bytes = 0;
    return outcome;
  }
  KeyAccess some = access;
  return resolve_some(some, direction, spans, now);
}

Outcome HostMemory::change(const KeyAccess& access, wire::Qpn qpn, const Change& how,
                           std::uint64_t& original, Time now) {
  const AtomicsLock lock(neighbours_);
  Outcome outcome = read(access, qpn, writable_bytes_of(original), now);
  if (!outcome || (how.is_swap && original != how.compare)) return outcome;
  const std::uint64_t changed = how.is_swap ? how.swap_or_add : original + how.swap_or_add;
  const Time read_at = outcome.ready_at;
  outcome = write(access, qpn, bytes_of(changed), now);
  outcome.ready_at = later(outcome.ready_at, read_at);
  return outcome;
}

Outcome HostMemory::read_bus(BusAddr at, Bytes to, Time now) { return move_by_bus(at, to, now); }
Outcome HostMemory::write_bus(BusAddr at, ConstBytes from, Time now) {
  return move_by_bus(at, from, now);
}

}  // namespace softhca::nic
