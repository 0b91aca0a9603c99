#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/doctor_checks.h"
#include "driver/live_device.h"

namespace softhca::cli {
namespace {

using Json = nlohmann::ordered_json;
using driver::DeviceDescription;

bool is_active(const DeviceDescription& device) {
  return device.port.state == driver::PortState::Active;
}

Json json_of(const DeviceDescription& device) {
  Json gids = Json::array();
  for (const driver::GidEntry& entry : device.gids)
    gids.push_back({{"index", entry.index},
                    {"gid", wire::gid_text(entry.gid)},
                    {"type", "RoCE v2"}});
  Json one = {{"name", device.name},
              {"interface", device.interface},
              {"state", port_state_name(device.port.state)},
              {"interface_mtu", device.port.interface_mtu},
              {"path_mtu", device.port.active_mtu},
              {"speed_mbps", device.port.speed_mbps},
              {"guid", fmt::format("{:016x}", device.guid)},
              {"loopback", device.loopback},
              {"gids", gids}};
  if (const trace::ReasonInfo* reason = trace::find_reason(device.port.down.id);
      reason != nullptr && !is_active(device))
    one["down"] = {{"reason", static_cast<unsigned>(reason->id)},
                   {"name", reason->name},
                   {"rule", reason->rule},
                   {"remedy", reason->remedy}};
  return one;
}

void print_tables(const std::vector<DeviceDescription>& devices, Terminal& terminal) {
  using enum Table::Align;
  Table ports({{"DEVICE"}, {"INTERFACE"}, {"STATE"}, {"MTU", Right}, {"PATH MTU", Right},
               {"SPEED", Right}});
  Table gids({{"DEVICE"}, {"INDEX", Right}, {"GID"}, {"TYPE"}});
  for (const DeviceDescription& device : devices) {
    const std::string speed = speed_text(device.port.speed_mbps);
    ports.add_row({device.name, device.interface, std::string(port_state_name(device.port.state)),
                   std::to_string(device.port.interface_mtu),
                   std::to_string(device.port.active_mtu), speed.empty() ? "-" : speed});
    for (const driver::GidEntry& entry : device.gids)
      gids.add_row({device.name, std::to_string(entry.index), wire::gid_text(entry.gid),
                    "RoCE v2"});
  }
  terminal.out << ports.text(terminal.look) << "\n" << gids.text(terminal.look);
}

void print_down(const DeviceDescription& device, Terminal& terminal) {
  if (is_active(device)) return;
  const trace::ReasonInfo* reason = trace::find_reason(device.port.down.id);
  const std::string text =
      reason == nullptr
          ? fmt::format("{} is DOWN: {} is not up. Remedy: ip link set dev {} up", device.name,
                        device.interface, device.interface)
          : fmt::format("{} is DOWN: {} ({}). {} Remedy: {}", device.name, reason->name,
                        static_cast<unsigned>(reason->id), reason->rule, reason->remedy);
  terminal.out << "\n"
               << wrapped(toned(text, Tone::Plain, terminal.look), terminal.look.columns, 0)
               << "\n";
}

}  // namespace

int command_devices(const DevicesArguments& arguments, Terminal& terminal) {
  const std::vector<DeviceDescription> devices = driver::list_devices();
  if (arguments.json) {
    Json all = Json::array();
    for (const DeviceDescription& device : devices) all.push_back(json_of(device));
    terminal.out << all.dump(2) << "\n";
    return 0;
  }
  if (devices.empty()) {
    terminal.err << "softhca devices: there is no network interface; bring one up: "
                    "ip link set dev lo up\n";
    return 1;
  }
  print_tables(devices, terminal);
  for (const DeviceDescription& device : devices) print_down(device, terminal);
  terminal.out << "\nThe first is what most programs take. To choose: softhca run --netdev IF --"
                  " PROGRAM,\nor SOFTHCA_NETDEV=IF in the environment.\n";
  return 0;
}

}  // namespace softhca::cli
