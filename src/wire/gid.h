// Gid: a 128-bit address. RoCEv2 uses IPv6 addresses, and ::ffff:a.b.c.d for IPv4.
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace softhca::wire {

struct Gid {
  std::array<std::uint8_t, 16> bytes{};

  friend constexpr auto operator<=>(const Gid&, const Gid&) = default;

  constexpr bool is_zero() const { return *this == Gid{}; }
  constexpr bool is_ipv4() const {
    for (int i = 0; i < 10; ++i)
      if (bytes[static_cast<std::size_t>(i)] != 0) return false;
    return bytes[10] == 0xff && bytes[11] == 0xff;
  }
  // ff00::/8, or an IPv4 address of 224.0.0.0/4.
  constexpr bool is_multicast() const {
    return bytes[0] == 0xff || (is_ipv4() && (bytes[12] & 0xf0) == 0xe0);
  }
  constexpr bool is_link_local() const { return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }

  static constexpr Gid of_ipv4(std::array<std::uint8_t, 4> v4) {
    Gid g;
    g.bytes[10] = g.bytes[11] = 0xff;
    for (std::size_t i = 0; i < 4; ++i) g.bytes[12 + i] = v4[i];
    return g;
  }
  // "192.0.2.1", "::ffff:192.0.2.1" or "fd00::2"; nothing if it is none of these.
  static std::optional<Gid> parse(std::string_view text);
};

// As an address: "192.0.2.1" or "fd00::2".
std::string address_text(const Gid& gid);
// As a GID: "::ffff:192.0.2.1" or "fd00::2".
std::string gid_text(const Gid& gid);

}  // namespace softhca::wire
