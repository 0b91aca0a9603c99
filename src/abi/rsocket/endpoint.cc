#include "abi/rsocket/endpoint.h"

#include <endian.h>

#include <cstring>

namespace softhca::abi {

rsocket::Endpoint endpoint_of(const sockaddr_storage& address) {
  rsocket::Endpoint endpoint;
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &address, sizeof v6);
    endpoint.is_ipv6 = true;
    endpoint.port = be16toh(v6.sin6_port);
    std::memcpy(endpoint.address.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
  } else {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof v4);
    endpoint.port = be16toh(v4.sin_port);
    std::memcpy(endpoint.address.data(), &v4.sin_addr, sizeof v4.sin_addr);
  }
  return endpoint;
}

sockaddr_storage address_of(const rsocket::Endpoint& endpoint) {
  sockaddr_storage address{};
  if (endpoint.is_ipv6) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htobe16(endpoint.port);
    v6.sin6_flowinfo = endpoint.flow;
    std::memcpy(&v6.sin6_addr, endpoint.address.data(), sizeof v6.sin6_addr);
    std::memcpy(&address, &v6, sizeof v6);
  } else {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htobe16(endpoint.port);
    std::memcpy(&v4.sin_addr, endpoint.address.data(), sizeof v4.sin_addr);
    std::memcpy(&address, &v4, sizeof v4);
  }
  return address;
}

ibv_gid gid_of(const rsocket::Endpoint& endpoint) {
  ibv_gid gid{};
  if (endpoint.is_ipv6) {
    std::memcpy(gid.raw, endpoint.address.data(), sizeof gid.raw);
  } else {
    gid.raw[10] = gid.raw[11] = 0xff;
    std::memcpy(gid.raw + 12, endpoint.address.data(), 4);
  }
  return gid;
}

}  // namespace softhca::abi
