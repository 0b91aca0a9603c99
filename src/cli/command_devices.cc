#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/doctor_checks.h"
#include "driver/live/live_device.h"
#include "os/environment.h"

namespace softhca::cli {
namespace {

using Json = nlohmann::ordered_json;
using driver::DeviceDescription;

bool is_active(const DeviceDescription& device) {
  return device.port.state == driver::PortState::Active;
}

Json json_of(const DeviceDescription& device, const std::vector<os::Interface>& interfaces) {
  Json gids = Json::array();
  for (const driver::GidEntry& entry : device.gids)
    gids.push_back(
        {{"index", entry.index}, {"gid", wire::gid_text(entry.gid)}, {"type", "RoCE v2"}});
  Json one = {{"name", device.name},
              {"interface", device.interface},
              {"state", port_state_name(device.port.state)},
              {"interface_mtu", device.port.interface_mtu},
              {"path_mtu", device.port.active_mtu},
              {"speed_mbps", device.port.speed_mbps},
              {"guid", fmt::format("{:016x}", device.guid)},
              {"loopback", device.loopback},
              {"gids", gids}};
  if (is_active(device)) return one;
  const WhyDown why = why_down(device, interfaces);
  one["down"] = {{"number", static_cast<unsigned>(device.port.down.id)},
                 {"reason", why.reason},
                 {"remedy", why.remedy}};
  return one;
}

void print_tables(const std::vector<DeviceDescription>& devices, Terminal& terminal) {
  using enum Table::Align;
  Table ports({{"DEVICE"},
               {"INTERFACE"},
               {"STATE"},
               {"MTU", Right},
               {"PATH MTU", Right},
               {"SPEED", Right}});
  Table gids({{"DEVICE"}, {"INDEX", Right}, {"GID"}, {"TYPE"}});
  for (const DeviceDescription& device : devices) {
    const std::string speed = speed_text(device.port.speed_mbps);
    ports.add_row({device.name, device.interface, std::string(port_state_name(device.port.state)),
                   std::to_string(device.port.interface_mtu),
                   std::to_string(device.port.active_mtu), speed.empty() ? "-" : speed});
    for (const driver::GidEntry& entry : device.gids)
      gids.add_row(
          {device.name, std::to_string(entry.index), wire::gid_text(entry.gid), "RoCE v2"});
  }
  terminal.out << ports.text(terminal.look);
  const bool any = std::ranges::any_of(devices, [](auto& device) { return !device.gids.empty(); });
  if (any) terminal.out << "\n" << gids.text(terminal.look);
}

void print_down(const DeviceDescription& device, const std::vector<os::Interface>& interfaces,
                Terminal& terminal) {
  if (is_active(device)) return;
  const WhyDown why = why_down(device, interfaces);
  terminal.out << "\n"
               << wrapped(fmt::format("{} is DOWN: {}. Remedy: {}", device.name, why.reason,
                                      why.remedy),
                          terminal.look.columns, 0)
               << "\n";
}

// What is known of the interfaces; none where rtnetlink does not answer.
std::vector<os::Interface> all_interfaces() {
  const auto interfaces = os::interfaces();
  return interfaces ? *interfaces : std::vector<os::Interface>{};
}

}  // namespace

int command_devices(const DevicesArguments& arguments, Terminal& terminal) {
  const std::vector<DeviceDescription> devices = driver::list_devices();
  const std::vector<os::Interface> interfaces = all_interfaces();
  if (arguments.json) {
    Json all = Json::array();
    for (const DeviceDescription& device : devices) all.push_back(json_of(device, interfaces));
    terminal.out << all.dump(2) << "\n";
    return 0;
  }
  if (devices.empty()) {
    const auto wanted = os::env_text("SOFTHCA_NETDEV");
    terminal.err << (wanted ? fmt::format("softhca devices: SOFTHCA_NETDEV={} names no interface; "
                                          "choose one of: {}\n",
                                          *wanted, names_of(interfaces))
                            : "softhca devices: no network interface is up; try: "
                              "ip link set dev lo up\n");
    return 1;
  }
  print_tables(devices, terminal);
  for (const DeviceDescription& device : devices) print_down(device, interfaces, terminal);
  terminal.out << "\nThe first is what most programs take. To choose: softhca run --netdev IF --"
                  " PROGRAM,\nor SOFTHCA_NETDEV=IF in the environment.\n";
  return 0;
}

}  // namespace softhca::cli
