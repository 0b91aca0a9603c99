// IpAddress: 16 bytes that are an IPv6 address, or ::ffff:a.b.c.d for an IPv4 one.
//
// The same bytes as wire::Gid; this folder knows nothing of GIDs.
#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace softhca::os {

struct IpAddress {
  std::array<std::uint8_t, 16> bytes{};

  friend constexpr auto operator<=>(const IpAddress&, const IpAddress&) = default;

  constexpr bool is_ipv4() const {
    for (std::size_t i = 0; i < 10; ++i)
      if (bytes[i] != 0) return false;
    return bytes[10] == 0xff && bytes[11] == 0xff;
  }
  // Of multicast: 224/4 or ff00::/8.
  constexpr bool is_group() const {
    return is_ipv4() ? (bytes[12] & 0xf0) == 0xe0 : bytes[0] == 0xff;
  }
  // ff02::/16: of one link, as link-local addresses are.
  constexpr bool is_link_local_group() const { return bytes[0] == 0xff && (bytes[1] & 0x0f) == 2; }
  constexpr bool is_link_local() const { return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }

  static constexpr IpAddress of_ipv4(std::array<std::uint8_t, 4> v4) {
    IpAddress address;
    address.bytes[10] = address.bytes[11] = 0xff;
    for (std::size_t i = 0; i < 4; ++i) address.bytes[12 + i] = v4[i];
    return address;
  }
};

// "192.0.2.1" or "fd00::2".
std::string address_text(const IpAddress& address);
// The reverse; nothing if it is neither.
std::optional<IpAddress> parse_address(const char* text);

}  // namespace softhca::os
