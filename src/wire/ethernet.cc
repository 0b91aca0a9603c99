#include "wire/ethernet.h"

#include <algorithm>
#include <iterator>

#include "base/assert.h"
#include "base/cursor.h"

namespace softhca::wire {
namespace {

constexpr std::uint16_t kTypeVlan = 0x8100, kTypeIpv4 = 0x0800, kTypeIpv6 = 0x86dd;
constexpr std::uint8_t kNumberOfTcp = 6, kNumberOfUdp = 17;

template <std::size_t N>
void copy(ConstBytes from, std::uint8_t (&to)[N]) {
  std::ranges::transform(from, std::begin(to),
                         [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
}

void take_ports(Cursor rest, FrameFields& fields) {
  if (fields.protocol != kNumberOfTcp && fields.protocol != kNumberOfUdp) return;
  const ConstBytes source = rest.take(2), destination = rest.take(2);
  if (rest.failed()) return;
  fields.add(fields.protocol == kNumberOfTcp ? FrameLayer::Tcp : FrameLayer::Udp);
  copy(source, fields.source_port);
  copy(destination, fields.destination_port);
}

void take_ipv4(Cursor rest, FrameFields& fields) {
  const auto first = rest.take_be<std::uint8_t>();
  const auto service = rest.take_be<std::uint8_t>();
  rest.take(4);  // total length, identification
  const auto fragment = rest.take_be<std::uint16_t>();
  const auto hops = rest.take_be<std::uint8_t>();
  const auto protocol = rest.take_be<std::uint8_t>();
  rest.take(2);  // checksum
  const ConstBytes source = rest.take(4), destination = rest.take(4);
  const std::size_t header_bytes = std::size_t{first & 0xfu} * 4;
  if (rest.failed() || first >> 4 != 4 || header_bytes < 20) return;
  fields.add(FrameLayer::Ipv4);
  fields.traffic_class = service;
  fields.hop_limit = hops;
  fields.protocol = protocol;
  fields.ipv4_flags = static_cast<std::uint8_t>(fragment >> 13);
  copy(source, fields.ipv4_source);
  copy(destination, fields.ipv4_destination);
  rest.take(header_bytes - 20);
  const bool is_first_fragment = (fragment & 0x1fff) == 0;
  if (!rest.failed() && is_first_fragment) take_ports(rest, fields);
}

// Extension headers are not looked behind.
void take_ipv6(Cursor rest, FrameFields& fields) {
  const auto first = rest.take_be<std::uint32_t>();
  rest.take(2);  // payload length
  const auto next = rest.take_be<std::uint8_t>();
  const auto hops = rest.take_be<std::uint8_t>();
  const ConstBytes source = rest.take(16), destination = rest.take(16);
  if (rest.failed() || first >> 28 != 6) return;
  fields.add(FrameLayer::Ipv6);
  fields.traffic_class = static_cast<std::uint8_t>(first >> 20);
  store_be(std::as_writable_bytes(std::span(fields.flow_label)), 0, first & 0xfffffu);
  fields.hop_limit = hops;
  fields.protocol = next;
  copy(source, fields.ipv6_source);
  copy(destination, fields.ipv6_destination);
  take_ports(rest, fields);
}

}  // namespace

FrameFields fields_of(ConstBytes frame) {
  FrameFields fields;
  Cursor rest(frame);
  const ConstBytes destination = rest.take(6), source = rest.take(6);
  ConstBytes type = rest.take(2);
  if (rest.failed()) return fields;
  copy(destination, fields.destination);
  copy(source, fields.source);
  if (load_be<std::uint16_t>(type) == kTypeVlan) {
    const ConstBytes tag = rest.take(2);
    type = rest.take(2);
    if (rest.failed()) return fields;
    fields.add(FrameLayer::Vlan);
    copy(tag, fields.vlan_tag);
  }
  copy(type, fields.ether_type);
  if (load_be<std::uint16_t>(type) == kTypeIpv4) take_ipv4(rest, fields);
  if (load_be<std::uint16_t>(type) == kTypeIpv6) take_ipv6(rest, fields);
  return fields;
}

bool matches(const FrameFields& fields, const FrameFields& value, const FrameFields& mask) {
  const ConstBytes is = bytes_of(fields), wanted = bytes_of(value), counts = bytes_of(mask);
  for (std::size_t i = 0; i < is.size(); ++i)
    if (((is[i] ^ wanted[i]) & counts[i]) != std::byte{0}) return false;
  return true;
}

std::uint32_t toeplitz_hash(std::span<const std::uint8_t> key,
                            std::span<const std::uint8_t> input) {
  ASSERT(key.size() >= input.size() + 4);
  std::uint32_t window = load_be<std::uint32_t>(std::as_bytes(key));
  std::uint32_t hash = 0;
  for (std::size_t i = 0; i < input.size(); ++i)
    for (unsigned bit = 0; bit < 8; ++bit) {
      if ((input[i] << bit & 0x80) != 0) hash ^= window;
      const std::size_t next = i + 4 < key.size() ? key[i + 4] : 0u;
      window = window << 1 | (next >> (7 - bit) & 1);
    }
  return hash;
}

}  // namespace softhca::wire
