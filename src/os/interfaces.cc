#include "os/interfaces.h"

#include <linux/ethtool.h>
#include <linux/if.h>
#include <linux/if_arp.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

#include "base/bytes.h"
#include "base/cursor.h"
#include "os/netlink.h"

namespace softhca::os {

namespace {

using netlink::Attributes;
using netlink::attributes;
using netlink::dump;
using netlink::take;
using netlink::value_of;

std::string text_of(ConstBytes bytes) {
  const auto* const start = reinterpret_cast<const char*>(bytes.data());
  return std::string(start, strnlen(start, bytes.size()));
}

Interface parse_link(Cursor body) {
  const auto head = take<ifinfomsg>(body);
  const Attributes found = attributes(body);
  const auto attribute = [&](std::uint16_t type) {
    const auto at = found.find(type);
    return at == found.end() ? ConstBytes{} : at->second;
  };
  Interface made;
  made.index = static_cast<std::uint32_t>(head.ifi_index);
  made.up = (head.ifi_flags & IFF_UP) != 0;
  made.running = (head.ifi_flags & IFF_RUNNING) != 0;
  made.loopback = (head.ifi_flags & IFF_LOOPBACK) != 0;
  made.name = text_of(attribute(IFLA_IFNAME));
  made.mtu = value_of<std::uint32_t>(attribute(IFLA_MTU));
  if (head.ifi_type == ARPHRD_ETHER)
    made.mac = value_of<std::array<std::uint8_t, 6>>(attribute(IFLA_ADDRESS));
  const Attributes details = attributes(Cursor(attribute(IFLA_LINKINFO)));
  if (const auto kind = details.find(IFLA_INFO_KIND); kind != details.end())
    made.kind = text_of(kind->second);
  return made;
}

AddressScope scope_of(std::uint8_t scope) {
  switch (scope) {
    case RT_SCOPE_UNIVERSE:
      return AddressScope::Global;
    case RT_SCOPE_SITE:
      return AddressScope::Site;
    case RT_SCOPE_LINK:
      return AddressScope::Link;
    case RT_SCOPE_HOST:
      return AddressScope::Host;
    default:
      return AddressScope::Nowhere;
  }
}

void parse_address(Cursor body, std::vector<Interface>& all) {
  const auto head = take<ifaddrmsg>(body);
  const Attributes found = attributes(body);
  const auto owner = std::find_if(all.begin(), all.end(),
                                  [&](const Interface& i) { return i.index == head.ifa_index; });
  const auto own = netlink::own_address(found);
  if (owner == all.end() || !own) return;
  std::uint32_t flags = head.ifa_flags;
  if (const auto wide = found.find(IFA_FLAGS); wide != found.end())
    flags = value_of<std::uint32_t>(wide->second);
  // Not yet, or never, this host's: nothing can be bound to it.
  if ((flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED)) != 0) return;

  InterfaceAddress made;
  made.prefix_bits = head.ifa_prefixlen;
  made.scope = scope_of(head.ifa_scope);
  if (head.ifa_family != AF_INET && head.ifa_family != AF_INET6) return;
  made.address = netlink::address_of(*own);
  owner->addresses.push_back(made);
}

// The best default route seen so far; IPv4 beats IPv6, then the lowest metric wins.
struct DefaultRoute {
  std::uint32_t interface_index = 0;
  std::uint64_t rank = std::numeric_limits<std::uint64_t>::max();
};

void parse_route(Cursor body, DefaultRoute& best) {
  const auto head = take<rtmsg>(body);
  if (head.rtm_dst_len != 0 || head.rtm_type != RTN_UNICAST || head.rtm_table != RT_TABLE_MAIN)
    return;
  const Attributes found = attributes(body);
  std::uint32_t index = 0;
  if (const auto oif = found.find(RTA_OIF); oif != found.end())
    index = value_of<std::uint32_t>(oif->second);
  else if (const auto hops = found.find(RTA_MULTIPATH); hops != found.end())
    index = static_cast<std::uint32_t>(value_of<rtnexthop>(hops->second).rtnh_ifindex);
  std::uint64_t rank = head.rtm_family == AF_INET ? 0 : std::uint64_t{1} << 32;
  if (const auto metric = found.find(RTA_PRIORITY); metric != found.end())
    rank += value_of<std::uint32_t>(metric->second);
  if (index != 0 && rank < best.rank) best = {index, rank};
}

// Asked with the older of two ioctls: it needs no handshake, and tells speeds up to 4 Tb/s.
std::optional<std::uint32_t> speed_of(int fd, const std::string& name) {
  ifreq request{};
  ethtool_cmd command{};
  command.cmd = ETHTOOL_GSET;
  std::memcpy(request.ifr_name, name.data(), std::min(name.size(), sizeof request.ifr_name - 1));
  request.ifr_data = reinterpret_cast<char*>(&command);
  if (ioctl(fd, SIOCETHTOOL, &request) != 0) return std::nullopt;
  const std::uint32_t speed = ethtool_cmd_speed(&command);
  if (speed == 0 || speed == static_cast<std::uint32_t>(SPEED_UNKNOWN)) return std::nullopt;
  return speed;
}

}  // namespace

Result<std::vector<Interface>, SystemError> interfaces() {
  const OwnedFd netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!netlink) return last_error("socket(netlink)");
  std::vector<Interface> all;
  DefaultRoute best;
  const auto links = dump(netlink.get(), RTM_GETLINK, [&](std::uint16_t type, Cursor body) {
    if (type == RTM_NEWLINK) all.push_back(parse_link(body));
  });
  if (!links) return links.error();
  const auto found = dump(netlink.get(), RTM_GETADDR, [&](std::uint16_t type, Cursor body) {
    if (type == RTM_NEWADDR) parse_address(body, all);
  });
  if (!found) return found.error();
  const auto routes = dump(netlink.get(), RTM_GETROUTE, [&](std::uint16_t type, Cursor body) {
    if (type == RTM_NEWROUTE) parse_route(body, best);
  });
  if (!routes) return routes.error();

  const OwnedFd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  for (Interface& one : all) {
    one.default_route = one.index == best.interface_index;
    if (any) one.speed_mbps = speed_of(any.get(), one.name);
    std::stable_partition(one.addresses.begin(), one.addresses.end(),
                          [](const InterfaceAddress& a) { return a.address.is_ipv4(); });
  }
  std::sort(all.begin(), all.end(), [](const Interface& a, const Interface& b) {
    if (a.default_route != b.default_route) return a.default_route;
    return a.index < b.index;
  });
  return all;
}

// Neighbours.
namespace {

constexpr int kAttemptMs = 20;
constexpr std::uint16_t kDiscardPort = 9;

// RFC 1112, 6.4; RFC 2464, 7.
MacAddress mac_of_group(const IpAddress& address) {
  const auto& b = address.bytes;
  if (address.is_ipv4())
    return {0x01, 0x00, 0x5e, static_cast<std::uint8_t>(b[13] & 0x7f), b[14], b[15]};
  return {0x33, 0x33, b[12], b[13], b[14], b[15]};
}

struct Neighbour {
  std::optional<MacAddress> mac;
  bool is_sought{};  // the kernel asks for it
};

Result<Neighbour, SystemError> known_neighbour(int fd, const IpAddress& address,
                                               std::uint32_t interface) {
  constexpr unsigned kUsable =
      NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP;
  Neighbour known;
  const auto asked = netlink::dump(fd, RTM_GETNEIGH, [&](std::uint16_t, Cursor body) {
    const auto head = netlink::take<ndmsg>(body);
    const netlink::Attributes found = netlink::attributes(body);
    const auto of = found.find(NDA_DST);
    const auto mac = found.find(NDA_LLADDR);
    if (static_cast<std::uint32_t>(head.ndm_ifindex) != interface || of == found.end() ||
        netlink::address_of(of->second) != address)
      return;
    known.is_sought = (head.ndm_state & NUD_INCOMPLETE) != 0;
    if ((head.ndm_state & kUsable) != 0 && mac != found.end() &&
        mac->second.size() == sizeof(MacAddress))
      known.mac = netlink::value_of<MacAddress>(mac->second);
  });
  if (!asked) return asked.error();
  return known;
}

// A datagram of nothing, so that the kernel looks for whoever has the address.
void make_kernel_ask(const IpAddress& address, std::uint32_t interface) {
  const OwnedFd fd(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return;
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(kDiscardPort);
  std::memcpy(&to.sin6_addr, address.bytes.data(), address.bytes.size());
  if (address.is_link_local()) to.sin6_scope_id = interface;
  [[maybe_unused]] const ssize_t sent =
      ::sendto(fd.get(), "", 0, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
}

}  // namespace

Result<InterfaceWatch, SystemError> InterfaceWatch::open() {
  OwnedFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  if (!fd) return last_error("socket(netlink)");
  sockaddr_nl self{};
  self.nl_family = AF_NETLINK;
  self.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&self), sizeof self) != 0)
    return last_error("bind(netlink)");
  return InterfaceWatch(std::move(fd));
}

// Both kinds of message have the index behind four bytes. What did not fit counts as news.
bool InterfaceWatch::has_news(std::uint32_t interface_index) {
  static_assert(offsetof(ifinfomsg, ifi_index) == 4 && offsetof(ifaddrmsg, ifa_index) == 4);
  bool news = false;
  std::vector<std::byte> datagram(netlink::kReplyBytes);
  for (;;) {
    const ssize_t n = ::recv(fd_.get(), datagram.data(), datagram.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == ENOBUFS) {
      news = true;
      continue;
    }
    if (n <= 0) return news;
    Cursor cursor(ConstBytes(datagram).first(static_cast<std::size_t>(n)));
    while (const auto message = netlink::next_message(cursor)) {
      const ConstBytes body = message->body;
      news |= body.size() >= 8 && value_of<std::uint32_t>(body.subspan(4)) == interface_index;
    }
  }
}

Result<MacAddress, SystemError> mac_on_the_way_to(const IpAddress& address,
                                                  std::uint32_t interface_index,
                                                  Duration patience) {
  if (address.is_group()) return mac_of_group(address);
  const OwnedFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd) return last_error("socket(netlink)");
  const auto way = netlink::ask_route(fd.get(), address, {}, interface_index);
  if (!way) return way.error();
  const auto all = interfaces();
  if (!all) return all.error();
  const auto own = std::ranges::find(*all, interface_index, &Interface::index);
  if (own == all->end()) return SystemError{ENODEV, "interface"};
  const bool has_neighbours = !own->loopback && own->mac != MacAddress{};
  if (way->type == RTN_LOCAL || !has_neighbours) return own->mac;
  const IpAddress hop = way->gateway.value_or(address);
  for (Duration waited{};; waited = waited + milliseconds(kAttemptMs)) {
    const auto known = known_neighbour(fd.get(), hop, interface_index);
    if (!known) return known.error();
    if (known->mac) return *known->mac;
    if (!known->is_sought) make_kernel_ask(hop, interface_index);
    if (waited >= patience) return SystemError{EHOSTUNREACH, "neighbour"};
    ::poll(nullptr, 0, kAttemptMs);
  }
}

}  // namespace softhca::os
