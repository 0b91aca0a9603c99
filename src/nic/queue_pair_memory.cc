// The queue pair's part in what arrives: where its payload is placed (packets that follow each
// other together), atomics, and work on the device's own keys (windows).
#include <algorithm>
#include <array>

#include "base/assert.h"
#include "nic/queue_pair.h"

namespace softhca::nic {

using pcie::Outcome;
using trace::Reason;
using trace::ReasonId;
using transport::PayloadRef;
using transport::WorkOpcode;

Reason QueuePair::place(const PayloadRef& to) {
  ASSERT(to.bytes == payload_.size());
  Outcome outcome;
  if (to.place == PayloadRef::Place::Region)
    outcome = place_in_region(to);
  else if (to.place == PayloadRef::Place::SendWork)
    outcome = place_in_segments(fetched(to.work).segments, context_.pd, to.offset, payload_);
  else
    outcome = place_in_receive(to);
  note(outcome);
  return outcome.reason;
}

Outcome QueuePair::place_in_segments(const Segments& segments, std::uint32_t pd,
                                     std::uint64_t offset, ConstBytes payload) {
  return each_piece(
      segments, offset, payload.size(),
      [&](wire::Key lkey, std::uint64_t address, std::uint64_t done, std::uint64_t bytes) {
        return memory_.write({.key = lkey,
                              .pd = pd,
                              .right = KeyRight::LocalWrite,
                              .address = address,
                              .bytes = bytes},
                             context_.qpn, payload.subspan(done, bytes), now_);
      });
}

Outcome QueuePair::place_in_receive(const PayloadRef& to) {
  if (receive_.elsewhere) return {};
  if (is_placed(to.offset, to.bytes)) return {.ready_at = now_};
  if (!ahead_.empty() && receive_.skipped == 0 && place_receive_run(to)) return {.ready_at = now_};
  // What stands in front of a message that was matched is not placed.
  const std::uint64_t in_front = receive_.skipped;
  const std::uint64_t left_out = to.offset < in_front ? in_front : 0;
  return place_in_segments(receive_.segments, receive_.pd, to.offset + left_out - in_front,
                           payload_.subspan(left_out));
}

// Whether an access for a packet before this one has placed it, too.
bool QueuePair::is_placed(std::uint64_t place, std::uint64_t bytes) {
  if (placed_ahead_ != 0 && place == placed_to_) {
    --placed_ahead_;
    placed_to_ += bytes;
    return true;
  }
  placed_ahead_ = 0;
  return false;
}

// As place_run(), for packets that lie in one segment of the receive.
bool QueuePair::place_receive_run(const PayloadRef& to) {
  std::uint64_t offset = to.offset;
  const auto segment = std::ranges::find_if(receive_.segments, [&](const Segment& s) {
    if (offset < s.bytes) return true;
    offset -= s.bytes;
    return false;
  });
  if (segment == receive_.segments.end() || segment->bytes - offset < to.bytes) return false;
  return write_run({.key = {segment->lkey},
                    .pd = receive_.pd,
                    .right = KeyRight::LocalWrite,
                    .address = segment->address + offset,
                    .bytes = segment->bytes - offset},
                   to.offset + to.bytes);
}

Outcome QueuePair::place_in_region(const PayloadRef& to) {
  if (is_placed(to.address, to.bytes)) return {.ready_at = now_};
  if (!ahead_.empty() && place_run(to)) return {.ready_at = now_};
  return memory_.write({.key = to.key,
                        .pd = domain_in_hand(),
                        .right = KeyRight::RemoteWrite,
                        .address = to.address,
                        .bytes = to.bytes},
                       context_.qpn, payload_, now_);
}

// One access for this packet and those behind it, within their message. If it fails nothing is
// lost: each packet then makes its own, and the one that cannot be placed is the one that says so.
bool QueuePair::place_run(const PayloadRef& to) {
  return write_run({.key = to.key,
                    .pd = domain_in_hand(),
                    .right = KeyRight::RemoteWrite,
                    .address = to.address,
                    .bytes = to.bytes + to.left},
                   to.address + to.bytes);
}

// `access.bytes`: what there is room for. `next`: the place of the packet behind this one.
bool QueuePair::write_run(KeyAccess access, std::uint64_t next) {
  std::array<ConstBytes, kMostInRun> parts{payload_};
  std::uint64_t bytes = payload_.size();
  std::size_t count = 0;
  for (const ConstBytes payload : ahead_) {
    if (count + 1 == parts.size() ||
        bytes + payload.size() > std::min<std::uint64_t>(access.bytes, HostMemory::kMostInParts))
      break;
    parts[++count] = payload;
    bytes += payload.size();
  }
  if (count == 0) return false;
  access.bytes = bytes;
  const Outcome outcome = memory_.write(access, context_.qpn,
                                        std::span<const ConstBytes>(parts).first(count + 1), now_);
  note(outcome);
  if (!outcome) return false;
  placed_ahead_ = count;
  placed_to_ = next;
  return true;
}

// `bytes` is what its scatter list holds: room for the original value.
Reason QueuePair::check_atomic(std::uint64_t bytes) const {
  if (bytes == transport::kAtomicBytes) return {};
  return {.id = ReasonId::AtomicLength,
          .object = context_.qpn.value,
          .length = bytes,
          .high = transport::kAtomicBytes};
}

Result<std::uint64_t, Reason> QueuePair::execute_atomic(const transport::AtomicOperation& atomic) {
  std::uint64_t original = 0;
  const pcie::Outcome outcome = memory_.change(
      {.key = atomic.key,
       .pd = domain_in_hand(),
       .right = KeyRight::RemoteAtomic,
       .address = atomic.address,
       .bytes = transport::kAtomicBytes},
      context_.qpn,
      {.is_swap = atomic.is_swap, .swap_or_add = atomic.swap_or_add, .compare = atomic.compare},
      original, now_);
  note(outcome);
  if (!outcome) return outcome.reason;
  return original;
}

Reason QueuePair::invalidate(wire::Key key) {
  return memory_.keys().invalidate(key, context_.pd, context_.qpn);
}

Reason QueuePair::bind_window(const SendWqe& wqe) {
  return memory_.keys().bind({.window = {static_cast<std::uint32_t>(wqe.compare >> 32)},
                              .new_key = {wqe.rkey},
                              .region = {wqe.immediate},
                              .address = wqe.remote_address,
                              .bytes = wqe.swap_or_add,
                              .access = static_cast<std::uint32_t>(wqe.compare)},
                             context_.pd, context_.qpn);
}

Reason QueuePair::execute_local(std::uint32_t work) {
  const SendWqe& wqe = fetched(work).wqe;
  ASSERT(transport::is_local(static_cast<WorkOpcode>(wqe.opcode)));
  if (static_cast<WorkOpcode>(wqe.opcode) == WorkOpcode::BindWindow) return bind_window(wqe);
  return invalidate({wqe.rkey});
}

}  // namespace softhca::nic
