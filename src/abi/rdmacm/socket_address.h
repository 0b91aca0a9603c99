// SocketAddress: an address and a port as programs give them, and back.
#pragma once
#include <rdma/rdma_cma.h>

#include <cstdint>
#include <string>

#include "abi/errno_of.h"
#include "os/ip_address.h"
#include "wire/gid.h"

namespace softhca::abi {

struct SocketAddress {
  os::IpAddress address{};  // 0.0.0.0 is ::ffff:0.0.0.0
  std::uint16_t port{};
  std::uint32_t scope{};  // the interface of a link-local address; 0: not said
  bool is_ipv6{};         // as the program says it, who may give IPv4 addresses this way too

  bool is_any() const;
  bool is_loopback() const;
  bool is_multicast() const { return gid().is_multicast(); }
  wire::Gid gid() const { return {address.bytes}; }

  friend bool operator==(const SocketAddress&, const SocketAddress&) = default;
};

// FAILS WITH EAFNOSUPPORT for what is neither AF_INET nor AF_INET6
Outcome<SocketAddress> socket_address(const sockaddr& from);
void store(const SocketAddress& address, sockaddr_storage& to);
// "192.0.2.1 port 7174"
std::string text_of(const SocketAddress& address);

}  // namespace softhca::abi
