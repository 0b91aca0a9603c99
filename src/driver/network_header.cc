#include "driver/network_header.h"

#include <algorithm>

#include "transport/datagram.h"
#include "wire/datagram.h"

namespace softhca::driver {
namespace {

using trace::Reason;
using trace::ReasonId;

wire::Gid gid_at(ConstBytes header, std::size_t at, std::size_t bytes) {
  wire::Gid gid = bytes == sizeof(wire::Gid::bytes) ? wire::Gid{} : wire::Gid::of_ipv4({});
  std::ranges::copy(header.subspan(at, bytes), writable_bytes_of(gid.bytes).last(bytes).begin());
  return gid;
}

}  // namespace

Result<transport::AddressVector, Reason> answer_address(ConstBytes header,
                                                        std::span<const GidEntry> gids) {
  ASSERT(header.size() == transport::kNetworkHeaderBytes);
  const auto version = [&](std::size_t at) { return std::to_integer<unsigned>(header[at]) >> 4; };
  const std::size_t ipv4_at = header.size() - wire::kIpv4Bytes;
  transport::AddressVector address;
  wire::Gid own;
  address.is_global = true;
  if (version(0) == 6) {
    const auto first = load_be<std::uint32_t>(header, 0);
    address.traffic_class = static_cast<std::uint8_t>(first >> 20);
    address.flow_label = first & 0xf'ffff;
    address.hop_limit = load_be<std::uint8_t>(header, 7);
    address.destination = gid_at(header, 8, 16);
    own = gid_at(header, 24, 16);
  } else if (version(ipv4_at) == 4) {
    address.traffic_class = load_be<std::uint8_t>(header, ipv4_at + 1);
    address.hop_limit = load_be<std::uint8_t>(header, ipv4_at + 8);
    address.destination = gid_at(header, ipv4_at + 12, 4);
    own = gid_at(header, ipv4_at + 16, 4);
  } else {
    return Reason{.id = ReasonId::BadResponse};
  }
  const auto found = std::ranges::find(gids, own, &GidEntry::gid);
  if (found == gids.end()) return Reason{.id = ReasonId::GidIndexUnset};
  address.source_gid_index = static_cast<std::uint8_t>(found->index);
  return address;
}

}  // namespace softhca::driver
