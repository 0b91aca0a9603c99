// BoundSockets: who has a UDP port, as procfs of this network namespace tells.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "os/ip_address.h"

namespace softhca::os {

struct BoundSocket {
  std::uint64_t inode{};  // 0: a socket of the kernel's own
  std::uint32_t uid{};
  friend bool operator==(const BoundSocket&, const BoundSocket&) = default;
};

// Sockets of anybody that are bound to exactly this address and port. Nothing where procfs does
// not tell, or the list keeps changing.
std::optional<std::vector<BoundSocket>> bound_udp_sockets(const IpAddress& address,
                                                          std::uint16_t port);

struct PortRange {
  std::uint16_t first{};
  std::uint16_t last{};
};

// The ports that the system gives to who asks for any.
PortRange ephemeral_ports();

}  // namespace softhca::os
