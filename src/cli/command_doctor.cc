#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/doctor_checks.h"
#include "cli/library.h"
#include "driver/live/live_device.h"
#include "driver/published.h"
#include "driver/sysfs_tree.h"
#include "local/lodging.h"
#include "os/environment.h"
#include "os/frames/page_mover.h"
#include "os/private_view.h"
#include "wire/crc32.h"

namespace softhca::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint16_t kRoceUdpPort = 4791;

PinFacts pin_facts() {
  const os::KernelPins pins = os::KernelPins::open();
  return {pins.backend(), std::string(pins.why_not_better()), os::memlock_limit()};
}

std::optional<os::CopyMethod> copy_method() {
  const auto copy = os::GuardedCopy::open();
  return copy ? std::optional(copy->method()) : std::nullopt;
}

std::vector<PortSocket> port_sockets() {
  std::vector<os::UdpHolder> found = os::udp_sockets(kRoceUdpPort);
  if (found.empty()) return {};
  const auto devices = driver::published_devices();
  std::vector<PortSocket> sockets;
  for (const os::UdpHolder& socket : found) {
    const bool lodging = socket.inode != 0 && socket.uid != os::own_uid() &&
                         local::has_beacon(kRoceUdpPort, socket.address, socket.uid);
    PortSocket one{socket.address, socket.uid, socket.inode == 0, {}, lodging};
    for (const os::Pid pid : socket.owners)
      one.owners.push_back(
          {pid, os::program_name(pid),
           std::ranges::find(devices, pid, &driver::PublishedDevice::pid) != devices.end()});
    sockets.push_back(std::move(one));
  }
  return sockets;
}

std::vector<std::string> stock_devices() {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry("/sys/class/infiniband", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

void add_listing(const Result<LoaderListing, std::string>& plain,
                 const Result<LoaderListing, std::string>& run, LoadFacts& load) {
  if (!plain || !run) {
    load.trouble = plain ? run.error() : plain.error();
    return;
  }
  if (plain->verbs) load.verbs_plain = plain->verbs->string();
  if (run->verbs) {
    load.verbs_run = run->verbs->string();
    load.run_is_ours = is_softhca_library(*run->verbs);
  }
  for (const std::string& name : run->missing) load.unresolved.push_back(name + " is not found");
  load.unresolved.insert(load.unresolved.end(), run->complaints.begin(), run->complaints.end());
}

LoadFacts load_facts(const std::vector<std::string>& program, const fs::path& libraries) {
  LoadFacts load;
  load.asked_for = !program.empty();
  load.program = load.asked_for ? program[0] : "ibv_devices";
  const auto path = find_program(load.program);
  if (!path) return load;
  load.file = examine_program(*path);
  if (load.file->kind != ProgramKind::Dynamic) return load;
  const std::string before = os::env_text(kLibraryPathVariable).value_or("");
  add_listing(list_libraries(*load.file, before),
              list_libraries(*load.file, library_path_with(libraries.string(), before)), load);
  return load;
}

Findings library_findings(const std::vector<std::string>& program) {
  const fs::path executable = own_executable();
  std::vector<std::string> looked_in;
  for (const fs::path& folder : library_folders(executable.parent_path()))
    looked_in.push_back(folder.string());
  const auto folder = find_library_folder(executable);
  if (!folder) return check_library(std::nullopt, looked_in);
  Findings found = check_library(folder->string(), looked_in);
  const Findings sysfs =
      check_sysfs({(*folder / kSysfsLibrary).string(), why_not_preloaded(*folder),
                   os::try_private_view(std::string(driver::kSysfsRoot))});
  found.insert(found.end(), sysfs.begin(), sysfs.end());
  const Findings loading = check_loading(load_facts(program, *folder));
  found.insert(found.end(), loading.begin(), loading.end());
  return found;
}

Findings device_findings() {
  const auto interfaces = os::interfaces();
  if (!interfaces)
    return {{Level::Problem, "interfaces",
             "rtnetlink gives none: " + os::error_text(interfaces.error()),
             "allow AF_NETLINK sockets in the container or sandbox"}};
  return check_devices(driver::list_devices(), *interfaces, os::env_text("SOFTHCA_NETDEV"));
}

Findings all_findings(const std::vector<std::string>& program) {
  const os::KernelFeatures kernel = os::kernel_features();
  Findings all;
  for (const Findings& part :
       {check_kernel(kernel), check_pins(pin_facts()), check_copying(copy_method(), kernel),
        check_checksums(os::optional_function(wire::kFasterLibrary, wire::kFasterFunction) !=
                        nullptr),
        check_namespaces(os::namespaces()),
        check_same_host(os::namespaces(), kernel, os::env_text("SOFTHCA_LOCAL")),
        check_frames(os::PageMover::may_hold_writers(), os::env_text("SOFTHCA_MEMORY")),
        device_findings(), check_port(port_sockets()), check_socket_buffers(os::limits()),
        check_stock_devices(stock_devices()), library_findings(program)})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

Tone tone_of(Level level) {
  switch (level) {
    case Level::Ok:
      return Tone::Good;
    case Level::Note:
      return Tone::Warning;
    case Level::Problem:
      break;
  }
  return Tone::Bad;
}

void print(const Findings& findings, Terminal& terminal) {
  constexpr std::size_t kLevel = 9, kTopic = 17;
  const auto body = [&](const std::string& text) {
    return hanging(text, terminal.look.columns, kLevel + kTopic);
  };
  for (const Finding& finding : findings) {
    const std::string level(level_name(finding.level));
    terminal.out << toned(level, tone_of(finding.level), terminal.look)
                 << std::string(kLevel - level.size(), ' ');
    if (finding.topic.size() < kTopic)
      terminal.out << fmt::format("{:<{}}", finding.topic, kTopic);
    else
      terminal.out << finding.topic << "\n" << std::string(kLevel + kTopic, ' ');
    terminal.out << body(finding.text) << "\n";
    if (!finding.remedy.empty())
      terminal.out << std::string(kLevel + kTopic, ' ') << body("remedy: " + finding.remedy)
                   << "\n";
  }
}

std::size_t how_many(const Findings& findings, Level level) {
  return static_cast<std::size_t>(std::ranges::count(findings, level, &Finding::level));
}

}  // namespace

int command_doctor(const DoctorArguments& arguments, Terminal& terminal) {
  const Findings findings = all_findings(arguments.program);
  const std::size_t problems = how_many(findings, Level::Problem);
  if (arguments.json) {
    Json list = Json::array();
    for (const Finding& one : findings)
      list.push_back({{"level", level_name(one.level)},
                      {"topic", one.topic},
                      {"finding", one.text},
                      {"remedy", one.remedy}});
    const Json all = {{"problems", problems}, {"findings", list}};
    terminal.out << all.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    print(findings, terminal);
    terminal.out << fmt::format("\n{} problem{}, {} note{}\n", problems, problems == 1 ? "" : "s",
                                how_many(findings, Level::Note),
                                how_many(findings, Level::Note) == 1 ? "" : "s");
  }
  return problems == 0 ? 0 : 1;
}

}  // namespace softhca::cli
