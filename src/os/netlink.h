// Netlink, as far as this folder speaks it: requests, and what comes back. Private to os/.
#pragma once
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/cursor.h"
#include "base/result.h"
#include "os/ip_address.h"
#include "os/system_error.h"

namespace softhca::os::netlink {

inline constexpr std::size_t kReplyBytes = std::size_t{64} << 10;

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

using Attributes = std::map<std::uint16_t, ConstBytes>;

inline Attributes attributes(Cursor cursor) {
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

// REQUIRES: 4 or 16 bytes.
IpAddress address_of(ConstBytes bytes);

// The address that an RTM_NEWADDR gives to this host: IFA_LOCAL is this end of a point-to-point
// link, where IFA_ADDRESS is the other.
inline std::optional<ConstBytes> own_address(const Attributes& found) {
  auto at = found.find(IFA_LOCAL);
  if (at == found.end()) at = found.find(IFA_ADDRESS);
  return at == found.end() ? std::nullopt : std::optional(at->second);
}

struct Message {
  nlmsghdr head;
  ConstBytes body;
};

// The next one of a datagram; nothing at its end, or (the cursor fails) if it is not whole.
inline std::optional<Message> next_message(Cursor& cursor) {
  if (cursor.left() < sizeof(nlmsghdr)) return std::nullopt;
  const auto head = take<nlmsghdr>(cursor);
  // What is shorter than its own head asks for more than there can be.
  const ConstBytes body = cursor.take(std::size_t{head.nlmsg_len} - sizeof head);
  if (cursor.failed()) return std::nullopt;
  cursor.take(std::min<std::size_t>((4 - body.size() % 4) % 4, cursor.left()));
  return Message{head, body};
}

// Sends one request and reads what comes back until it ends; `on_message` gets the type and the
// body of every message of it. REQUIRES: the request begins with an nlmsghdr whose length is set.
template <class Body>
Result<void, SystemError> ask(int fd, const nlmsghdr& request, Body&& on_message) {
  if (::send(fd, &request, request.nlmsg_len, 0) < 0) return last_error("send(netlink)");

  std::vector<std::byte> reply(kReplyBytes);
  for (;;) {
    const ssize_t n = ::recv(fd, reply.data(), reply.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return last_error("recv(netlink)");
    Cursor cursor(ConstBytes(reply).first(static_cast<std::size_t>(n)));
    while (const auto message = next_message(cursor)) {
      const nlmsghdr& head = message->head;
      Cursor body(message->body);
      if (head.nlmsg_type == NLMSG_DONE) return {};
      if (head.nlmsg_type == NLMSG_ERROR)
        return SystemError{-take<nlmsgerr>(body).error, "netlink"};
      if (head.nlmsg_seq == request.nlmsg_seq) on_message(head.nlmsg_type, body);
      if ((head.nlmsg_flags & NLM_F_MULTI) == 0) return {};
    }
    if (cursor.failed()) return SystemError{EPROTO, "recv(netlink)"};
  }
}

// The same for one dump.
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
  return ask(fd, request.head, std::forward<Body>(on_message));
}

struct RouteAnswer {
  std::uint8_t type{};  // RTN_LOCAL, RTN_UNICAST, ...
  std::uint32_t interface_index{};
  std::optional<IpAddress> gateway;
  std::optional<IpAddress> source;
};

// `from` and `interface_index` are left to the kernel if there is none. REQUIRES: `fd` is of
// NETLINK_ROUTE. FAILS WITH ENETUNREACH and the like: there is no way
Result<RouteAnswer, SystemError> ask_route(int fd, const IpAddress& to,
                                           const std::optional<IpAddress>& from,
                                           std::uint32_t interface_index);

}  // namespace softhca::os::netlink
