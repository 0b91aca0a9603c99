#include "abi/rdmacm/socket_address.h"

#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace softhca::abi {

bool SocketAddress::is_any() const {
  return address == os::IpAddress{} || address == os::IpAddress::of_ipv4({});
}

bool SocketAddress::is_loopback() const {
  os::IpAddress loopback6;
  loopback6.bytes[15] = 1;
  return address == loopback6 || (address.is_ipv4() && address.bytes[12] == 127);
}

Outcome<SocketAddress> socket_address(const sockaddr& from) {
  SocketAddress to;
  if (from.sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &from, sizeof v4);
    std::array<std::uint8_t, 4> bytes;
    std::memcpy(bytes.data(), &v4.sin_addr, sizeof bytes);
    to.address = os::IpAddress::of_ipv4(bytes);
    to.port = byte_swapped(v4.sin_port);
    return to;
  }
  if (from.sa_family != AF_INET6) return Errno{EAFNOSUPPORT};
  sockaddr_in6 v6;
  std::memcpy(&v6, &from, sizeof v6);
  std::memcpy(to.address.bytes.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
  to.port = byte_swapped(v6.sin6_port);
  to.scope = v6.sin6_scope_id;
  to.is_ipv6 = true;
  return to;
}

void store(const SocketAddress& address, sockaddr_storage& to) {
  to = {};
  if (!address.is_ipv6) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = byte_swapped(address.port);
    std::memcpy(&v4.sin_addr, address.address.bytes.data() + 12, sizeof v4.sin_addr);
    std::memcpy(&to, &v4, sizeof v4);
    return;
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = byte_swapped(address.port);
  v6.sin6_scope_id = address.scope;
  std::memcpy(&v6.sin6_addr, address.address.bytes.data(), sizeof v6.sin6_addr);
  std::memcpy(&to, &v6, sizeof v6);
}

std::string text_of(const SocketAddress& address) {
  return os::address_text(address.address) + " port " + std::to_string(address.port);
}

}  // namespace softhca::abi
