#include "wire/ip_service.h"

#include <algorithm>

#include "base/cursor.h"

namespace softhca::wire {
namespace {

constexpr unsigned kIpVersionShift = 4;
constexpr std::uint8_t kIpCmVersion = 0;  // major and minor
constexpr std::size_t kIpv4At = 12;       // in an address of 16 bytes

Gid take_address(Cursor& cursor, bool is_ipv4) {
  Gid gid;
  if (is_ipv4) {
    cursor.take(kIpv4At);
    gid = Gid::of_ipv4({});
  }
  const auto to = std::as_writable_bytes(std::span(gid.bytes)).subspan(is_ipv4 ? kIpv4At : 0);
  std::ranges::copy(cursor.take(to.size()), to.begin());
  return gid;
}

void put_address(const Gid& gid, Bytes out) {
  const std::size_t from = gid.is_ipv4() ? kIpv4At : 0;
  std::ranges::fill(out.first(from), std::byte{0});
  std::ranges::copy(std::as_bytes(std::span(gid.bytes)).subspan(from), out.subspan(from).begin());
}

}  // namespace

std::optional<IpAddresses> parse_ip_service(ConstBytes private_bytes) {
  Cursor cursor(private_bytes);
  const auto version = cursor.take_be<std::uint8_t>();
  const unsigned ip_version = cursor.take_be<std::uint8_t>() >> kIpVersionShift;
  if (version != kIpCmVersion || (ip_version != 4 && ip_version != 6)) return std::nullopt;
  IpAddresses addresses;
  addresses.source_port = cursor.take_be<std::uint16_t>();
  addresses.source = take_address(cursor, ip_version == 4);
  addresses.destination = take_address(cursor, ip_version == 4);
  if (cursor.failed()) return std::nullopt;
  return addresses;
}

void emit_ip_service(const IpAddresses& addresses, Bytes out) {
  ASSERT(addresses.source.is_ipv4() == addresses.destination.is_ipv4());
  const unsigned ip_version = addresses.source.is_ipv4() ? 4 : 6;
  store_be(out, 0, kIpCmVersion);
  store_be(out, 1, static_cast<std::uint8_t>(ip_version << kIpVersionShift));
  store_be(out, 2, addresses.source_port);
  put_address(addresses.source, out.subspan(4, 16));
  put_address(addresses.destination, out.subspan(20, 16));
}

}  // namespace softhca::wire
