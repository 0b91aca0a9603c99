#include "nic/multicast.h"

#include <algorithm>

#include "base/assert.h"
#include "nic/limits.h"

namespace softhca::nic {

std::span<const wire::Qpn> Multicast::members(const wire::Gid& group) const {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return {};
  return found->second;
}

bool Multicast::is_member(const wire::Gid& group, wire::Qpn qpn) const {
  return std::ranges::find(members(group), qpn) != members(group).end();
}

std::vector<wire::Gid> Multicast::groups_of(wire::Qpn qpn) const {
  std::vector<wire::Gid> all;
  for (const auto& [group, qpns] : groups_)
    if (std::ranges::find(qpns, qpn) != qpns.end()) all.push_back(group);
  return all;
}

trace::Reason Multicast::attach(const wire::Gid& group, wire::Qpn qpn) {
  ASSERT(!is_member(group, qpn));
  const std::size_t already = members(group).size();
  if (already == 0 && groups_.size() >= kMaxMulticastGroups)
    return {.id = trace::ReasonId::LimitExceeded, .high = kMaxMulticastGroups};
  if (already >= kMaxMulticastMembers)
    return {.id = trace::ReasonId::LimitExceeded, .high = kMaxMulticastMembers};
  groups_[group].push_back(qpn);
  return {};
}

void Multicast::detach(const wire::Gid& group, wire::Qpn qpn) {
  const auto found = groups_.find(group);
  ASSERT(found != groups_.end());
  ASSERT(std::erase(found->second, qpn) == 1);
  if (found->second.empty()) groups_.erase(found);
}

}  // namespace softhca::nic
