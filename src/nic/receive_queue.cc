#include "nic/receive_queue.h"

#include <array>

#include "base/range.h"
#include "nic/limits.h"

namespace softhca::nic {

using trace::Counter;
using trace::EventKind;
using trace::Reason;
using trace::ReasonId;

Reason ReceiveQueue::fetch(FetchedReceive& into, wire::Qpn taker, Time now) {
  std::array<std::byte, sizeof(ReceiveWqe) + kMaxSges * sizeof(Segment)> slot;
  const std::uint32_t index = taken_++;
  const BusAddr at = advance(ring_.bus, std::uint64_t{index & (ring_.slots - 1)} * ring_.stride);
  const Bytes bytes = Bytes(slot).first(ring_.stride);
  const pcie::Outcome outcome = memory_.read_bus(at, bytes, now);
  tracer_.count(Counter::WqesFetched);
  tracer_.emit(EventKind::WqeFetch, now, taker.value, 1, index, at.value, bytes.size());
  into.cookie = 0;
  into.work = index;
  into.pd = pd_;
  into.cqn = 0;
  into.kind = CqeKind::Receive;
  into.flags = 0;
  into.skipped = 0;
  into.elsewhere = std::nullopt;
  into.segments.clear();
  into.ready_at = outcome.ready_at;
  if (!outcome) return outcome.reason;
  const auto wqe = load_le<ReceiveWqe>(bytes);
  into.cookie = wqe.cookie;
  if (wqe.index != index || wqe.segments > ring_.max_segments)
    return {.id = ReasonId::WqeMalformed, .object = taker.value, .address = index};
  for (std::size_t i = 0; i < wqe.segments; ++i)
    into.segments.push_back(load_le<Segment>(bytes, sizeof(ReceiveWqe) + i * sizeof(Segment)));
  return {};
}

std::optional<transport::ReceiveSlot> ReceiveQueue::take(FetchedReceive& into, wire::Qpn taker,
                                                         Time now) {
  if (taken_ == posted_) return std::nullopt;
  transport::ReceiveSlot slot{.work = taken_, .capacity_bytes = 0, .broken = {}};
  slot.broken = fetch(into, taker, now);
  for (const Segment& s : into.segments) {
    slot.capacity_bytes += s.bytes;
    if (slot.broken || s.bytes == 0) continue;
    slot.broken = memory_.check({.key = {s.lkey},
                                 .pd = pd_,
                                 .right = KeyRight::LocalWrite,
                                 .address = s.address,
                                 .bytes = s.bytes},
                                taker, now);
  }
  return slot;
}

bool ReceiveQueue::take_to_flush(FetchedReceive& into, wire::Qpn taker, Time now) {
  if (taken_ == posted_) return false;
  fetch(into, taker, now);
  return true;
}

}  // namespace softhca::nic
