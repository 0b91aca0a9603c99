// Route: by which interface a packet would leave for an address, and from which address of ours.
//
// The kernel's own answer over rtnetlink, for the network namespace of the caller.
#pragma once
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "os/ip_address.h"
#include "os/system_error.h"

namespace softhca::os {

struct Route {
  IpAddress source;
  std::uint32_t interface_index{};
  // The destination is this host's own, and interface_index that of the interface which has it;
  // loopback for the rest of 127/8.
  bool is_local{};
};

// The destination may be a multicast group, which is reached by the interface of `source`. That
// must be this host's; `interface_index` is the scope of link-local addresses and nothing for
// others. FAILS WITH ENETUNREACH, EHOSTUNREACH and the like: no way leads there; EADDRNOTAVAIL: the
// source is nobody's here, or there is none; EINVAL: a link-local destination without its scope
Result<Route, SystemError> route_to(const IpAddress& destination,
                                    const std::optional<IpAddress>& source = {},
                                    std::uint32_t interface_index = 0);

}  // namespace softhca::os
