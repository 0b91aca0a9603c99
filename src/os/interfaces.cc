#include "os/interfaces.h"

#include <linux/ethtool.h>
#include <linux/if.h>
#include <linux/if_arp.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>

#include "base/bytes.h"
#include "base/cursor.h"
#include "os/owned_fd.h"

namespace softhca::os {

namespace {

constexpr std::size_t kReplyBytes = std::size_t{64} << 10;

// Netlink messages and attributes are records of this machine's byte order, padded to 4 bytes.
template <class T>
T take(Cursor& cursor) {
  T record{};
  const ConstBytes bytes = cursor.take(sizeof(T));
  if (!bytes.empty()) std::memcpy(&record, bytes.data(), sizeof(T));
  return record;
}

template <class T>
T value_of(ConstBytes bytes) {
  T value{};
  if (bytes.size() >= sizeof(T)) std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

std::string text_of(ConstBytes bytes) {
  const auto* const start = reinterpret_cast<const char*>(bytes.data());
  return std::string(start, strnlen(start, bytes.size()));
}

using Attributes = std::map<std::uint16_t, ConstBytes>;

Attributes attributes(Cursor cursor) {
  Attributes found;
  while (cursor.left() >= sizeof(rtattr)) {
    const auto head = take<rtattr>(cursor);
    if (head.rta_len < sizeof(rtattr)) break;
    const std::size_t length = head.rta_len - sizeof(rtattr);
    const ConstBytes value = cursor.take(length);
    if (cursor.failed()) break;
    found.emplace(static_cast<std::uint16_t>(head.rta_type & NLA_TYPE_MASK), value);
    cursor.take(std::min<std::size_t>((4 - length % 4) % 4, cursor.left()));
  }
  return found;
}

// Runs one dump; `on_message` gets the type and the body of every message of it.
template <class Body>
Result<void, SystemError> dump(int fd, std::uint16_t type, Body&& on_message) {
  struct {
    nlmsghdr head;
    rtgenmsg body;
  } request{};
  request.head.nlmsg_len = NLMSG_LENGTH(sizeof request.body);
  request.head.nlmsg_type = type;
  request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.head.nlmsg_seq = type;
  request.body.rtgen_family = AF_UNSPEC;
  if (::send(fd, &request, request.head.nlmsg_len, 0) < 0) return last_error("send(netlink)");

  std::vector<std::byte> reply(kReplyBytes);
  for (;;) {
    const ssize_t n = ::recv(fd, reply.data(), reply.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return last_error("recv(netlink)");
    Cursor cursor(ConstBytes(reply).first(static_cast<std::size_t>(n)));
    while (cursor.left() >= sizeof(nlmsghdr)) {
      const auto head = take<nlmsghdr>(cursor);
      if (head.nlmsg_type == NLMSG_DONE) return {};
      if (head.nlmsg_len < sizeof head) return SystemError{EPROTO, "recv(netlink)"};
      const std::size_t length = head.nlmsg_len - sizeof head;
      Cursor body(cursor.take(length));
      if (cursor.failed()) return SystemError{EPROTO, "recv(netlink)"};
      if (head.nlmsg_type == NLMSG_ERROR)
        return SystemError{-take<nlmsgerr>(body).error, "netlink"};
      if (head.nlmsg_seq == type) on_message(head.nlmsg_type, body);
      cursor.take(std::min<std::size_t>((4 - length % 4) % 4, cursor.left()));
    }
  }
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
  // IFA_LOCAL is this end of a point-to-point link, where IFA_ADDRESS is the other.
  auto at = found.find(IFA_LOCAL);
  if (at == found.end()) at = found.find(IFA_ADDRESS);
  if (owner == all.end() || at == found.end()) return;
  std::uint32_t flags = head.ifa_flags;
  if (const auto wide = found.find(IFA_FLAGS); wide != found.end())
    flags = value_of<std::uint32_t>(wide->second);
  // Not yet, or never, this host's: nothing can be bound to it.
  if ((flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED)) != 0) return;

  InterfaceAddress made;
  made.prefix_bits = head.ifa_prefixlen;
  made.scope = scope_of(head.ifa_scope);
  if (head.ifa_family == AF_INET)
    made.address = IpAddress::of_ipv4(value_of<std::array<std::uint8_t, 4>>(at->second));
  else if (head.ifa_family == AF_INET6)
    made.address.bytes = value_of<std::array<std::uint8_t, 16>>(at->second);
  else
    return;
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

}  // namespace softhca::os
