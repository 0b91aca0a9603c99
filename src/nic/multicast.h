// Multicast: which datagram queue pairs get what is sent to a group.
//
// Spec     IBTA vol. 1, 10.5.2 (multicast), 9.6.1.1.3 (QPN 0xffffff)
// Threads  owned by the device
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "trace/reason.h"
#include "wire/gid.h"
#include "wire/psn.h"

namespace softhca::nic {

inline constexpr wire::Qpn kMulticastQpn{0xff'ffff};

class Multicast {
 public:
  bool is_empty() const { return groups_.empty(); }
  // In the order in which they came; none: nobody listens.
  std::span<const wire::Qpn> members(const wire::Gid& group) const;
  bool is_member(const wire::Gid& group, wire::Qpn qpn) const;
  std::vector<wire::Gid> groups_of(wire::Qpn qpn) const;

  // FAILS WITH LimitExceeded. REQUIRES: not a member yet.
  trace::Reason attach(const wire::Gid& group, wire::Qpn qpn);
  // REQUIRES: a member.
  void detach(const wire::Gid& group, wire::Qpn qpn);

 private:
  std::map<wire::Gid, std::vector<wire::Qpn>> groups_;  // none is empty
};

}  // namespace softhca::nic
