// The queue pair's part in what is not moving payload: atomics, and work on the device's own keys
// (windows).
#include "base/assert.h"
#include "nic/queue_pair.h"

namespace softhca::nic {

using trace::Reason;
using trace::ReasonId;
using transport::WorkOpcode;

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
