// Datagram: the IP and UDP headers around a packet, as they will be or were on the wire.
//
// The ICRC covers them, so a sender has to know them before its kernel writes them. Linux sends
// IPv4 from an unconnected socket with IP_PMTUDISC_DO with identification 0 and DF set.
//
// Spec  RFC 791, RFC 8200, RFC 768; what the ICRC masks: IBTA annex A17
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "wire/gid.h"
#include "wire/packet.h"

namespace softhca::wire {

struct Datagram {
  Gid source;
  Gid destination;
  std::uint16_t source_port{};
  std::uint16_t destination_port = kUdpPort;
  std::uint8_t traffic_class{};  // IPv4 TOS; not covered by the ICRC
  std::uint8_t hop_limit = 64;   // IPv4 TTL; not covered by the ICRC
  std::uint32_t flow_label{};    // IPv6 only; not covered by the ICRC
  // IPv4 only. Nothing: hidden from the receiver (a UDP socket does not tell).
  std::optional<std::uint16_t> identification = std::uint16_t{0};
  bool dont_fragment = true;

  bool is_ipv4() const { return destination.is_ipv4(); }
  friend bool operator==(const Datagram&, const Datagram&) = default;
};

// The lower two bits of an IP header's traffic class (RFC 3168, 5).
inline constexpr std::uint8_t kEcnMask = 3;
inline constexpr std::uint8_t kEcnCapable = 2;  // ECT(0)
inline constexpr std::uint8_t kEcnMarked = 3;   // CE

constexpr bool is_marked(std::uint8_t traffic_class) {
  return (traffic_class & kEcnMask) == kEcnMarked;
}
constexpr std::uint8_t with_ecn(std::uint8_t traffic_class, std::uint8_t ecn) {
  return static_cast<std::uint8_t>((traffic_class & ~kEcnMask) | ecn);
}

inline constexpr std::size_t kIpv4Bytes = 20;
inline constexpr std::size_t kIpv4ChecksumAt = 10;
inline constexpr std::size_t kIpv6Bytes = 40;
inline constexpr std::size_t kUdpBytes = 8;
inline constexpr std::size_t kMaxIpUdpBytes = kIpv6Bytes + kUdpBytes;

// Writes the IP and UDP header for a UDP payload of that size; gives 28 or 48. IPv4 header
// checksum is right; the UDP checksum is 0, as Linux rxe sends it.
std::size_t emit_ip_udp(const Datagram& datagram, std::size_t udp_payload_bytes, Bytes out);

struct ParsedDatagram {
  Datagram datagram;
  ConstBytes udp_payload;
};
// Takes an IP packet apart (capture files, simulated hosts). Nothing if it is not UDP over IP, is
// truncated, is a fragment or carries IPv4 options.
std::optional<ParsedDatagram> parse_ip_udp(ConstBytes ip_packet);

}  // namespace softhca::wire
