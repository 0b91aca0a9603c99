// The queue pair's part in atomics: what a request must be, and how a peer's is executed.
#include "nic/queue_pair.h"

namespace softhca::nic {

using trace::Reason;
using trace::ReasonId;

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

}  // namespace softhca::nic
