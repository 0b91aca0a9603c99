// IpService: how a program's address and port become a service id, and what the 36 bytes in front
// of its private bytes say.
//
// Spec  IBTA vol. 1, annex A11 (RDMA IP CM service); port spaces as in Linux's rdma_cm
#pragma once
#include <optional>

#include "wire/cm_message.h"

namespace softhca::wire {

enum class PortSpace : std::uint16_t { Ipoib = 0x0002, Tcp = 0x0106, Udp = 0x0111, Ib = 0x013f };

constexpr ServiceId service_of(PortSpace space, std::uint16_t port) {
  return {std::uint64_t{static_cast<std::uint16_t>(space)} << 16 | port};
}
constexpr std::uint16_t port_of(ServiceId service) {
  return static_cast<std::uint16_t>(service.value);
}
// Whether requests for it begin with addresses: it lies in one of the port spaces.
constexpr bool is_ip_service(ServiceId service) {
  for (const PortSpace space : {PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib})
    if (service == service_of(space, port_of(service))) return true;
  return false;
}

inline constexpr std::size_t kIpServiceBytes = 36;

// Who asks for whom. IPv4 addresses are ::ffff:a.b.c.d here, and the last four bytes there.
struct IpAddresses {
  std::uint16_t source_port{};
  Gid source{};
  Gid destination{};
  friend bool operator==(const IpAddresses&, const IpAddresses&) = default;
};

// What the private bytes of a REQ or SIDR_REQ begin with; nothing if it is of another version.
std::optional<IpAddresses> parse_ip_service(ConstBytes private_bytes);
// REQUIRES: room for kIpServiceBytes, and two addresses of one family.
void emit_ip_service(const IpAddresses& addresses, Bytes out);

}  // namespace softhca::wire
