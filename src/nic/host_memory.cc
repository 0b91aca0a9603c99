#include "nic/host_memory.h"

#include "base/assert.h"

namespace softhca::nic {

using pcie::Direction;
using pcie::Outcome;
using trace::Counter;
using trace::EventKind;

trace::Reason HostMemory::check(const KeyAccess& access, wire::Qpn qpn, Time now) {
  tracer_.count(Counter::KeyChecks);
  const trace::Reason reason = keys_.check(access);
  if (reason) {
    tracer_.count(Counter::KeyRefusals);
    tracer_.emit(EventKind::KeyRefusal, now, access.key.value, access.address, access.bytes,
                 static_cast<std::uint64_t>(access.right), static_cast<std::uint64_t>(reason.id),
                 qpn.value);
  } else if (tracer_.recording()) {
    tracer_.emit(EventKind::KeyCheck, now, access.key.value, access.address, access.bytes,
                 static_cast<std::uint64_t>(access.right), keys_.locate(access).at.value,
                 qpn.value);
  }
  return reason;
}

Outcome HostMemory::resolve_some(KeyAccess& access, Direction direction, pcie::SpanList& spans,
                                 Time now) {
  // At most this many bytes at a time, so that their pages always fit one span list.
  constexpr std::uint64_t kStep = (pcie::SpanList::kCapacity - 2) * kPage4K;
  Outcome outcome{.ready_at = now};
  std::uint64_t room = kStep;
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

Outcome HostMemory::read(const KeyAccess& access, wire::Qpn qpn, Bytes to, Time now) {
  ASSERT(access.bytes == to.size());
  Outcome total{.reason = check(access, qpn, now), .ready_at = now};
  KeyAccess rest = access;
  while (total && rest.bytes != 0) {
    pcie::SpanList spans;
    const Outcome resolved = resolve_some(rest, Direction::Read, spans, now);
    total.ready_at = later(total.ready_at, resolved.ready_at);
    total.reason = resolved.reason;
    if (!total) break;
    const Outcome moved =
        port_.read(spans.all(), to.subspan(total.done_bytes, resolved.done_bytes), now);
    total.reason = moved.reason;
    total.done_bytes += moved.done_bytes;
    total.ready_at = later(total.ready_at, moved.ready_at);
  }
  return total;
}

Outcome HostMemory::write(const KeyAccess& access, wire::Qpn qpn, ConstBytes from, Time now) {
  ASSERT(access.bytes == from.size());
  Outcome total{.reason = check(access, qpn, now), .ready_at = now};
  KeyAccess rest = access;
  while (total && rest.bytes != 0) {
    pcie::SpanList spans;
    const Outcome resolved = resolve_some(rest, Direction::Write, spans, now);
    total.ready_at = later(total.ready_at, resolved.ready_at);
    total.reason = resolved.reason;
    if (!total) break;
    const Outcome moved =
        port_.write(spans.all(), from.subspan(total.done_bytes, resolved.done_bytes), now);
    total.reason = moved.reason;
    total.done_bytes += moved.done_bytes;
    total.ready_at = later(total.ready_at, moved.ready_at);
  }
  return total;
}

Outcome HostMemory::read_bus(BusAddr at, Bytes to, Time now) {
  pcie::SpanList spans;
  Outcome outcome = port_.resolve({at, to.size(), Direction::Read}, now, spans);
  if (!outcome) return outcome;
  const Outcome moved = port_.read(spans.all(), to, now);
  outcome.reason = moved.reason;
  outcome.ready_at = later(outcome.ready_at, moved.ready_at);
  return outcome;
}

Outcome HostMemory::write_bus(BusAddr at, ConstBytes from, Time now) {
  pcie::SpanList spans;
  Outcome outcome = port_.resolve({at, from.size(), Direction::Write}, now, spans);
  if (!outcome) return outcome;
  const Outcome moved = port_.write(spans.all(), from, now);
  outcome.reason = moved.reason;
  outcome.ready_at = later(outcome.ready_at, moved.ready_at);
  return outcome;
}

}  // namespace softhca::nic
