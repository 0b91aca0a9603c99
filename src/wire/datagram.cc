#include "wire/datagram.h"

#include <algorithm>

#include "base/cursor.h"

namespace softhca::wire {
namespace {

constexpr std::uint8_t kProtocolUdp = 17;
constexpr std::uint8_t kIpv4FirstByte = 0x45;  // version 4, five words: no options
constexpr std::uint16_t kDontFragment = 0x4000;
constexpr std::uint16_t kMoreFragments = 0x2000;
constexpr std::uint16_t kFragmentOffsetMask = 0x1fff;
constexpr std::uint32_t kFlowLabelMask = 0xf'ffff;
constexpr std::size_t kMaxIpLength = 0xffff;

// The Internet checksum of an IPv4 header whose own checksum field is zero.
std::uint16_t ipv4_checksum(ConstBytes header) {
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at < kIpv4Bytes; at += 2) sum += load_be<std::uint16_t>(header, at);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

void store_bytes(Bytes out, std::size_t at, ConstBytes bytes) {
  std::ranges::copy(bytes, out.subspan(at, bytes.size()).begin());
}

void emit_ipv4(const Datagram& d, std::size_t udp_bytes, Bytes out) {
  ASSERT(kIpv4Bytes + udp_bytes <= kMaxIpLength);
  store_be(out, 0, kIpv4FirstByte);
  store_be(out, 1, d.traffic_class);
  store_be(out, 2, static_cast<std::uint16_t>(kIpv4Bytes + udp_bytes));
  store_be(out, 4, d.identification.value_or(0));
  store_be(out, 6, d.dont_fragment ? kDontFragment : std::uint16_t{0});
  store_be(out, 8, d.hop_limit);
  store_be(out, 9, kProtocolUdp);
  store_be(out, kIpv4ChecksumAt, std::uint16_t{0});
  store_bytes(out, 12, bytes_of(d.source.bytes).last(4));
  store_bytes(out, 16, bytes_of(d.destination.bytes).last(4));
  store_be(out, kIpv4ChecksumAt, ipv4_checksum(out));
}

void emit_ipv6(const Datagram& d, std::size_t udp_bytes, Bytes out) {
  ASSERT(udp_bytes <= kMaxIpLength);
  store_be(out, 0,
           std::uint32_t{6} << 28 | std::uint32_t{d.traffic_class} << 20 |
               (d.flow_label & kFlowLabelMask));
  store_be(out, 4, static_cast<std::uint16_t>(udp_bytes));
  store_be(out, 6, kProtocolUdp);
  store_be(out, 7, d.hop_limit);
  store_bytes(out, 8, bytes_of(d.source.bytes));
  store_bytes(out, 24, bytes_of(d.destination.bytes));
}

Gid take_gid(Cursor& cursor) {
  Gid gid;
  const ConstBytes bytes = cursor.take(gid.bytes.size());
  std::ranges::copy(bytes, writable_bytes_of(gid.bytes).begin());
  return gid;
}

Gid take_ipv4_gid(Cursor& cursor) {
  std::array<std::uint8_t, 4> v4{};
  const ConstBytes bytes = cursor.take(v4.size());
  std::ranges::copy(bytes, writable_bytes_of(v4).begin());
  return Gid::of_ipv4(v4);
}

// Cuts what the link layer padded; false if the packet is shorter than its header says.
bool keep(Cursor& cursor, std::size_t bytes) {
  return bytes <= cursor.left() && cursor.drop_back(cursor.left() - bytes);
}

// Reads the IP header; what is left in the cursor is the IP payload.
bool take_ipv4(Cursor& cursor, Datagram& d) {
  const auto first = cursor.take_be<std::uint8_t>();
  d.traffic_class = cursor.take_be<std::uint8_t>();
  const std::size_t total = cursor.take_be<std::uint16_t>();
  d.identification = cursor.take_be<std::uint16_t>();
  const auto fragment = cursor.take_be<std::uint16_t>();
  d.dont_fragment = (fragment & kDontFragment) != 0;
  d.hop_limit = cursor.take_be<std::uint8_t>();
  const auto protocol = cursor.take_be<std::uint8_t>();
  // Not verified: a capture may have been made before the card filled it in.
  cursor.take_be<std::uint16_t>();
  d.source = take_ipv4_gid(cursor);
  d.destination = take_ipv4_gid(cursor);
  return !cursor.failed() && first == kIpv4FirstByte && protocol == kProtocolUdp &&
         (fragment & (kMoreFragments | kFragmentOffsetMask)) == 0 && total >= kIpv4Bytes &&
         keep(cursor, total - kIpv4Bytes);
}

bool take_ipv6(Cursor& cursor, Datagram& d) {
  const auto first = cursor.take_be<std::uint32_t>();
  d.traffic_class = static_cast<std::uint8_t>(first >> 20);
  d.flow_label = first & kFlowLabelMask;
  const std::size_t payload = cursor.take_be<std::uint16_t>();
  const auto next_header = cursor.take_be<std::uint8_t>();
  d.hop_limit = cursor.take_be<std::uint8_t>();
  d.source = take_gid(cursor);
  d.destination = take_gid(cursor);
  // A mapped address stands for IPv4 here and may not appear in an IPv6 packet (RFC 4942, 2.2).
  return !cursor.failed() && next_header == kProtocolUdp && !d.source.is_ipv4() &&
         !d.destination.is_ipv4() && keep(cursor, payload);
}

}  // namespace

std::size_t emit_ip_udp(const Datagram& datagram, std::size_t udp_payload_bytes, Bytes out) {
  const std::size_t ip_bytes = datagram.is_ipv4() ? kIpv4Bytes : kIpv6Bytes;
  const std::size_t udp_bytes = kUdpBytes + udp_payload_bytes;
  ASSERT(out.size() >= ip_bytes + kUdpBytes);
  if (datagram.is_ipv4()) {
    emit_ipv4(datagram, udp_bytes, out);
  } else {
    emit_ipv6(datagram, udp_bytes, out);
  }
  store_be(out, ip_bytes, datagram.source_port);
  store_be(out, ip_bytes + 2, datagram.destination_port);
  store_be(out, ip_bytes + 4, static_cast<std::uint16_t>(udp_bytes));
  store_be(out, ip_bytes + 6, std::uint16_t{0});
  return ip_bytes + kUdpBytes;
}

std::optional<ParsedDatagram> parse_ip_udp(ConstBytes ip_packet) {
  if (ip_packet.empty()) return std::nullopt;
  const unsigned version = std::to_integer<unsigned>(ip_packet.front()) >> 4;
  Cursor cursor(ip_packet);
  Datagram d;
  if (version == 4) {
    if (!take_ipv4(cursor, d)) return std::nullopt;
  } else if (version == 6) {
    if (!take_ipv6(cursor, d)) return std::nullopt;
  } else {
    return std::nullopt;
  }
  d.source_port = cursor.take_be<std::uint16_t>();
  d.destination_port = cursor.take_be<std::uint16_t>();
  const std::size_t udp_bytes = cursor.take_be<std::uint16_t>();
  cursor.take_be<std::uint16_t>();  // the checksum: RoCEv2 leaves it 0 and relies on the ICRC
  if (cursor.failed() || udp_bytes < kUdpBytes || !keep(cursor, udp_bytes - kUdpBytes))
    return std::nullopt;
  return ParsedDatagram{d, cursor.rest()};
}

}  // namespace softhca::wire
