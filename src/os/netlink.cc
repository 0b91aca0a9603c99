#include "os/netlink.h"

#include <array>

namespace softhca::os::netlink {

IpAddress address_of(ConstBytes bytes) {
  if (bytes.size() == 4) return IpAddress::of_ipv4(value_of<std::array<std::uint8_t, 4>>(bytes));
  return {value_of<std::array<std::uint8_t, 16>>(bytes)};
}

Result<RouteAnswer, SystemError> ask_route(int fd, const IpAddress& to,
                                           const std::optional<IpAddress>& from,
                                           std::uint32_t interface_index) {
  struct {
    nlmsghdr head;
    rtmsg body;
    std::byte attributes[64];
  } request{};
  const std::size_t front = to.is_ipv4() ? 12 : 0;
  const std::size_t bytes = to.bytes.size() - front;
  const auto bits = static_cast<std::uint8_t>(bytes * 8);
  std::size_t used = 0;
  const auto add = [&](std::uint16_t type, const void* value, std::size_t size) {
    const rtattr head{static_cast<std::uint16_t>(sizeof(rtattr) + size), type};
    std::memcpy(request.attributes + used, &head, sizeof head);
    std::memcpy(request.attributes + used + sizeof head, value, size);
    used += sizeof head + size;
  };
  add(RTA_DST, to.bytes.data() + front, bytes);
  if (from) add(RTA_SRC, from->bytes.data() + front, bytes);
  if (interface_index != 0) add(RTA_OIF, &interface_index, sizeof interface_index);
  request.head.nlmsg_len = static_cast<std::uint32_t>(NLMSG_LENGTH(sizeof request.body) + used);
  request.head.nlmsg_type = RTM_GETROUTE;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.head.nlmsg_seq = RTM_GETROUTE;
  request.body.rtm_family = to.is_ipv4() ? AF_INET : AF_INET6;
  request.body.rtm_dst_len = bits;
  request.body.rtm_src_len = from ? bits : std::uint8_t{};
  RouteAnswer answer;
  const auto asked = ask(fd, request.head, [&](std::uint16_t, Cursor body) {
    answer.type = take<rtmsg>(body).rtm_type;
    const Attributes found = attributes(body);
    if (const auto at = found.find(RTA_OIF); at != found.end())
      answer.interface_index = value_of<std::uint32_t>(at->second);
    if (const auto at = found.find(RTA_GATEWAY); at != found.end())
      answer.gateway = address_of(at->second);
    if (const auto at = found.find(RTA_PREFSRC); at != found.end())
      answer.source = address_of(at->second);
  });
  if (!asked) return asked.error();
  return answer;
}

}  // namespace softhca::os::netlink
