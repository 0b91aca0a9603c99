// The queue pair's part in memory windows: work on the device's own keys.
#include "base/assert.h"
#include "nic/queue_pair.h"

namespace softhca::nic {

using trace::Reason;
using trace::ReasonId;
using transport::WorkOpcode;

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
