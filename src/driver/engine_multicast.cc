// The engine's multicast groups: who listens on this device, and that its port does.
#include "driver/engine.h"
#include "driver/engine_state.h"

namespace softhca::driver {

using trace::Reason;
using trace::ReasonId;

Result<void, Reason> Engine::attach_multicast(QueuePair& qp, const wire::Gid& group) {
  EngineState& s = *state_;
  nic::Multicast& groups = s.device.multicast();
  if (qp.type() != transport::QpType::Ud)
    return Reason{.id = ReasonId::MulticastService, .object = qp.qpn().value};
  if (!group.is_multicast()) return Reason{.id = ReasonId::NotMulticast, .object = qp.qpn().value};
  if (groups.is_member(group, qp.qpn())) return {};
  const bool is_first = groups.members(group).empty();
  if (const Reason full = groups.attach(group, qp.qpn())) return full;
  if (!is_first || !s.parts.join_group) return {};
  const auto joined = s.parts.join_group(group);
  if (!joined) groups.detach(group, qp.qpn());
  return joined;
}

Result<void, Reason> Engine::detach_multicast(QueuePair& qp, const wire::Gid& group) {
  EngineState& s = *state_;
  nic::Multicast& groups = s.device.multicast();
  if (!groups.is_member(group, qp.qpn()))
    return Reason{.id = ReasonId::NotAttached, .object = qp.qpn().value};
  groups.detach(group, qp.qpn());
  if (groups.members(group).empty() && s.parts.leave_group) s.parts.leave_group(group);
  return {};
}

void Engine::detach_all(QueuePair& qp) {
  for (const wire::Gid& group : state_->device.multicast().groups_of(qp.qpn()))
    [[maybe_unused]] const auto gone = detach_multicast(qp, group);
}

}  // namespace softhca::driver
