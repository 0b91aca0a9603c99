#include "os/ip_address.h"

#include <arpa/inet.h>

namespace softhca::os {

std::string address_text(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.is_ipv4())
    inet_ntop(AF_INET, address.bytes.data() + 12, text, sizeof text);
  else
    inet_ntop(AF_INET6, address.bytes.data(), text, sizeof text);
  return text;
}

std::optional<IpAddress> parse_address(const char* text) {
  std::array<std::uint8_t, 4> v4{};
  if (inet_pton(AF_INET, text, v4.data()) == 1) return IpAddress::of_ipv4(v4);
  IpAddress address;
  if (inet_pton(AF_INET6, text, address.bytes.data()) == 1) return address;
  return std::nullopt;
}

}  // namespace softhca::os
