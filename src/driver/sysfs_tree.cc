#include "driver/sysfs_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "driver/link_rate.h"
#include "driver/live/live_device.h"
#include "driver/published.h"
#include "trace/counters.h"

namespace softhca::driver {
namespace {

using trace::Counter;

// Files of a port that count, in the kernel's units.
struct CounterFile {
  const char* name;
  std::array<Counter, 2> sum;  // Count_: none
  std::uint64_t unit = 1;
};
constexpr CounterFile kCounterFiles[] = {
    {"counters/port_xmit_data", {Counter::PacketBytesSent, Counter::Count_}, 4},
    {"counters/port_rcv_data", {Counter::PacketBytesReceived, Counter::Count_}, 4},
    {"counters/port_xmit_packets", {Counter::PacketsSent, Counter::Count_}},
    {"counters/port_rcv_packets", {Counter::PacketsReceived, Counter::Count_}},
    {"counters/port_xmit_discards", {Counter::SendErrors, Counter::Count_}},
    {"counters/port_rcv_errors", {Counter::PacketsMalformed, Counter::IcrcErrors}},
    {"hw_counters/duplicate_request", {Counter::Duplicates, Counter::Count_}},
    {"hw_counters/out_of_sequence", {Counter::OutOfOrder, Counter::Count_}},
    {"hw_counters/local_ack_timeout_err", {Counter::Timeouts, Counter::Count_}},
    {"hw_counters/rnr_nak_retry_err", {Counter::RnrNaksReceived, Counter::Count_}},
    {"hw_counters/rx_icrc_encapsulated", {Counter::IcrcErrors, Counter::Count_}},
};

std::uint64_t counted(const CounterFile& file, const std::vector<std::uint64_t>& counters) {
  std::uint64_t sum = 0;
  for (const Counter one : file.sum)
    if (const auto at = static_cast<std::size_t>(one);
        one != Counter::Count_ && at < counters.size())
      sum += counters[at];
  return sum / file.unit;
}

std::string guid_text(std::uint64_t guid) {
  return fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", guid >> 48, guid >> 32 & 0xffff,
                     guid >> 16 & 0xffff, guid & 0xffff);
}

// Eight words, none left out.
std::string gid_words(const wire::Gid& gid) {
  std::string text;
  for (std::size_t i = 0; i < gid.bytes.size(); i += 2)
    text += fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", gid.bytes[i], gid.bytes[i + 1]);
  return text;
}

std::string parent_of(const std::string& place) {
  const auto slash = place.rfind('/');
  return slash == std::string::npos ? "" : place.substr(0, slash);
}

char letter_of(SysfsKind kind) {
  return kind == SysfsKind::Folder ? 'd' : kind == SysfsKind::Link ? 'l' : 'f';
}

}  // namespace

SysfsTree::SysfsTree(std::vector<DeviceDescription> devices, Counting counting)
    : devices_(std::move(devices)), counting_(std::move(counting)) {
  nodes_[""] = {.kind = SysfsKind::Folder, .text = {}};
  for (std::size_t i = 0; i < devices_.size(); ++i) add_device(i);
}

SysfsTree SysfsTree::now() {
  return {list_devices(), [](const DeviceDescription& device) {
            return published_counters(device.name, device.interface);
          }};
}

// With the folders that it is in.
void SysfsTree::add(const std::string& place, Node node) {
  for (std::string above = parent_of(place); !above.empty(); above = parent_of(above))
    nodes_[above].kind = SysfsKind::Folder;
  nodes_[place] = std::move(node);
}

void SysfsTree::add_device(std::size_t index) {
  const DeviceDescription& device = devices_[index];
  const auto file = [&](const char* name, const std::string& line) {
    add(device.name + "/" + name, {.kind = SysfsKind::File, .text = line + "\n"});
  };
  file("node_type", "1: CA");
  file("node_guid", guid_text(device.guid));
  file("sys_image_guid", guid_text(device.guid));
  file("node_desc", "SoftHCA on " + device.interface);
  file("fw_ver", SOFTHCA_VERSION);
  file("hca_type", "SoftHCA");
  file("board_id", "SoftHCA");
  // It is on no bus: near to all processors alike.
  file("device/numa_node", "-1");
  add(device.name + "/device/net/" + device.interface,
      {.kind = SysfsKind::Link, .text = fmt::format("{}/net/{}", kSysfsClass, device.interface)});
  add_port(device.name + "/ports/1/", index);
}

void SysfsTree::add_port(const std::string& port, std::size_t index) {
  const DeviceDescription& device = devices_[index];
  const auto file = [&](const std::string& name, const std::string& line) {
    add(port + name, {.kind = SysfsKind::File, .text = line + "\n"});
  };
  const bool active = device.port.state == PortState::Active;
  file("state", active ? "4: ACTIVE" : "1: DOWN");
  file("phys_state", active ? "5: LinkUp" : "3: Disabled");
  file("rate", link_rate_text(link_rate(device.port.speed_mbps)));
  file("link_layer", "Ethernet");
  // Ethernet knows no LIDs and no subnet manager.
  file("lid", "0x0");
  file("lid_mask_count", "0");
  file("sm_lid", "0x0");
  file("sm_sl", "0");
  file("cap_mask", fmt::format("0x{:08x}", kPortCapabilities));
  file("pkeys/0", fmt::format("0x{:04x}", kDefaultPkey));
  for (std::uint32_t i = 0; i < device.port.gid_table_length; ++i)
    file("gids/" + std::to_string(i), gid_words(wire::Gid{}));
  for (const GidEntry& entry : device.gids) {
    const std::string number = std::to_string(entry.index);
    file("gids/" + number, gid_words(entry.gid));
    file("gid_attrs/types/" + number, "RoCE v2");
    file("gid_attrs/ndevs/" + number, device.interface);
  }
  for (std::size_t row = 0; row < std::size(kCounterFiles); ++row)
    add(port + kCounterFiles[row].name,
        {.kind = SysfsKind::File, .text = {}, .device = index, .counter_row = row});
}

std::string SysfsTree::content(const std::string& place, const Node& node) const {
  if (node.counter_row != kNoCounter)
    return fmt::format("{}\n",
                       counted(kCounterFiles[node.counter_row], counting_(devices_[node.device])));
  if (node.kind != SysfsKind::Folder) return node.text;
  const std::string above = place.empty() ? "" : place + "/";
  std::string lines;
  for (auto at = nodes_.upper_bound(above); at != nodes_.end() && at->first.starts_with(above);
       ++at)
    if (const std::string name = at->first.substr(above.size()); name.find('/') == name.npos)
      lines += letter_of(at->second.kind) + name + "\n";
  return lines;
}

std::vector<SysfsFound> SysfsTree::fixed() const {
  std::vector<SysfsFound> all;
  for (const auto& [place, node] : nodes_)
    if (node.kind != SysfsKind::Folder && node.counter_row == kNoCounter)
      all.push_back({.kind = node.kind, .place = place, .text = node.text});
  return all;
}

SysfsFound SysfsTree::find(std::string_view path, bool follow, bool counts) const {
  std::string place;
  auto node = nodes_.find(place);
  while (!path.empty()) {
    if (node->second.kind != SysfsKind::Folder)
      return {.kind = SysfsKind::NotFolder, .place = {}, .text = {}};
    path.remove_prefix(std::min(path.find_first_not_of('/'), path.size()));
    const std::string_view word = path.substr(0, path.find('/'));
    path.remove_prefix(word.size());
    if (word.empty() || word == ".") continue;
    if (word == "..") {
      if (place.empty())
        return {.kind = SysfsKind::Elsewhere,
                .place = {},
                .text = std::string(kSysfsClass) + std::string(path)};
      place = parent_of(place);
    } else {
      place += (place.empty() ? "" : "/") + std::string(word);
    }
    node = nodes_.find(place);
    if (node == nodes_.end()) return {};
    if (node->second.kind == SysfsKind::Link && (follow || !path.empty()))
      return {
          .kind = SysfsKind::Elsewhere, .place = {}, .text = node->second.text + std::string(path)};
  }
  const bool left_out = !counts && node->second.counter_row != kNoCounter;
  return {.kind = node->second.kind,
          .place = place,
          .text = left_out ? "" : content(place, node->second)};
}

}  // namespace softhca::driver
