// Which devices there are: one for each interface that qualifies (DESIGN: devices and GIDs).
#include <algorithm>
#include <cstring>

#include "driver/live/discovery.h"
#include "os/environment.h"
#include "os/interfaces.h"

namespace softhca::driver {
namespace {

using trace::ReasonId;

// IP, UDP, BTH, RETH, immediate data and ICRC: the most that a data packet has around its payload.
constexpr std::uint32_t kMostHeaderBytes = 40 + 8 + 12 + 16 + 4 + 4;

wire::Gid gid_of(const os::IpAddress& address) {
  wire::Gid gid;
  gid.bytes = address.bytes;
  return gid;
}

std::uint64_t fnv(std::uint64_t hash, const void* bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    hash = (hash ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3u;
  return hash;
}

// EUI-64 from the MAC, marked as locally administered; without a MAC, from name and addresses.
std::uint64_t guid_of(const os::Interface& interface) {
  const auto& mac = interface.mac;
  const bool has_mac = std::ranges::any_of(mac, [](std::uint8_t b) { return b != 0; });
  if (has_mac) {
    std::uint64_t guid = 0;
    for (const std::uint8_t b : {static_cast<std::uint8_t>(mac[0] ^ 2), mac[1], mac[2],
                                 std::uint8_t{0xff}, std::uint8_t{0xfe}, mac[3], mac[4], mac[5]})
      guid = guid << 8 | b;
    return guid;
  }
  std::uint64_t hash = fnv(0xcbf29ce484222325u, interface.name.data(), interface.name.size());
  hash = fnv(hash, &interface.index, sizeof interface.index);
  return hash | std::uint64_t{2} << 56;
}

bool is_usable(const os::InterfaceAddress& a, bool loopback) {
  return a.scope == os::AddressScope::Global || a.scope == os::AddressScope::Site ||
         a.scope == os::AddressScope::Link || (loopback && a.scope == os::AddressScope::Host);
}

bool has_global(const os::Interface& interface) {
  return std::ranges::any_of(interface.addresses, [](const os::InterfaceAddress& a) {
    return a.scope == os::AddressScope::Global || a.scope == os::AddressScope::Site;
  });
}

// IPv4-mapped ones first (index 0 is what most programs take), link-local ones last.
std::vector<GidEntry> gids_of(const os::Interface& interface) {
  std::vector<wire::Gid> gids;
  for (const os::InterfaceAddress& a : interface.addresses)
    if (is_usable(a, interface.loopback)) gids.push_back(gid_of(a.address));
  std::ranges::stable_sort(gids, {}, [](const wire::Gid& g) {
    return g.is_ipv4() ? 0 : g.is_link_local() ? 2 : 1;
  });
  std::vector<GidEntry> table;
  for (const wire::Gid& gid : gids) {
    if (table.size() + 1 == nic::kGidTableLength) break;  // at least one slot stays empty
    table.push_back({static_cast<std::uint32_t>(table.size()), gid});
  }
  return table;
}

PortAttributes port_of(const os::Interface& interface, bool has_gid) {
  PortAttributes port{.state = PortState::Active,
                      .max_mtu = 4096,
                      .active_mtu = largest_path_mtu(interface.mtu),
                      .interface_mtu = interface.mtu,
                      .gid_table_length = nic::kGidTableLength,
                      .speed_mbps = interface.speed_mbps.value_or(0),
                      .max_message_bytes = nic::kMaxMessageBytes,
                      .down = {}};
  const bool works = interface.up && (interface.running || interface.loopback) && has_gid;
  if (works) return port;
  port.state = PortState::Down;
  port.down = {.id = ReasonId::PortDown, .object = interface.index};
  return port;
}

DeviceDescription describe(const os::Interface& interface, std::uint32_t ordinal) {
  DeviceDescription d;
  d.name = "softhca" + std::to_string(ordinal);
  d.interface = interface.name;
  d.interface_index = interface.index;
  d.ordinal = ordinal;
  d.guid = guid_of(interface);
  d.loopback = interface.loopback;
  d.gids = gids_of(interface);
  d.port = port_of(interface, !d.gids.empty());
  return d;
}

bool is_named(const std::string& list, const std::string& name) {
  return ("," + list + ",").find("," + name + ",") != std::string::npos;
}

}  // namespace

std::uint32_t largest_path_mtu(std::uint32_t interface_mtu) {
  for (std::uint32_t mtu = 4096; mtu > 256; mtu /= 2)
    if (mtu + kMostHeaderBytes <= interface_mtu) return mtu;
  return 256;
}

std::vector<DeviceDescription> list_devices() {
  const auto interfaces = os::interfaces();
  if (!interfaces) return {};
  const std::optional<std::string> named = os::env_text("SOFTHCA_NETDEV");
  std::vector<DeviceDescription> devices;
  const auto add = [&](const os::Interface& i) {
    devices.push_back(describe(i, static_cast<std::uint32_t>(devices.size())));
  };
  for (const os::Interface& i : *interfaces)
    if (named ? is_named(*named, i.name) : i.up && !i.loopback && !i.is_bridge() && has_global(i))
      add(i);
  if (devices.empty() && !named)
    for (const os::Interface& i : *interfaces)
      if (i.loopback) add(i);
  return devices;
}

std::optional<DeviceDescription> describe_interface(const DeviceDescription& known) {
  const auto interfaces = os::interfaces();
  if (!interfaces) return std::nullopt;
  const auto found = std::ranges::find(*interfaces, known.interface_index, &os::Interface::index);
  if (found == interfaces->end()) return std::nullopt;
  DeviceDescription now = describe(*found, known.ordinal);
  now.name = known.name;
  return now;
}

}  // namespace softhca::driver
