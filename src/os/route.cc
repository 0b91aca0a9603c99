#include "os/route.h"

#include <cerrno>

#include "os/netlink.h"
#include "os/owned_fd.h"

namespace softhca::os {

namespace {

// Who has the address; `scope` if several have it. 0: nobody has exactly this one.
std::uint32_t owner_of(int fd, const IpAddress& address, std::uint32_t scope) {
  std::uint32_t owner = 0;
  const auto asked = netlink::dump(fd, RTM_GETADDR, [&](std::uint16_t, Cursor body) {
    const auto head = netlink::take<ifaddrmsg>(body);
    const auto own = netlink::own_address(netlink::attributes(body));
    if (own && netlink::address_of(*own) == address && (owner == 0 || head.ifa_index == scope))
      owner = head.ifa_index;
  });
  return asked ? owner : 0;
}

}  // namespace

Result<Route, SystemError> route_to(const IpAddress& destination,
                                    const std::optional<IpAddress>& source,
                                    std::uint32_t interface_index) {
  const bool scoped = destination.is_link_local() || destination.is_link_local_group() ||
                      (source && source->is_link_local());
  std::uint32_t scope = scoped ? interface_index : 0;
  if (destination.is_link_local() && scope == 0) return SystemError{EINVAL, "route without scope"};
  const OwnedFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd) return last_error("socket(netlink)");

  if (source) {
    const auto back = netlink::ask_route(fd.get(), *source, {}, scope);
    if (!back || back->type != RTN_LOCAL || source->is_ipv4() != destination.is_ipv4())
      return SystemError{EADDRNOTAVAIL, "route from"};
    // The kernel looks for itself with IPv4 only.
    if (destination.is_group() && scope == 0) scope = owner_of(fd.get(), *source, 0);
  }
  const auto answer = netlink::ask_route(fd.get(), destination, source, scope);
  // EINVAL: a route to nowhere (blackhole), or a source of loopback that would have to leave.
  if (!answer && answer.error().number != EINVAL)
    return SystemError{answer.error().number, "route to"};
  if (!answer ||
      (answer->type != RTN_LOCAL && answer->type != RTN_UNICAST && answer->type != RTN_MULTICAST))
    return SystemError{ENETUNREACH, "route to"};
  const auto from = source ? source : answer->source;
  if (!from) return SystemError{EADDRNOTAVAIL, "route from"};

  Route route{*from, answer->interface_index, answer->type == RTN_LOCAL};
  if (route.is_local)
    if (const std::uint32_t owner = owner_of(fd.get(), destination, scope); owner != 0)
      route.interface_index = owner;
  return route;
}

}  // namespace softhca::os
