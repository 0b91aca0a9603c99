#include "cli/doctor_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "cli/table.h"

namespace softhca::cli {
namespace {

constexpr std::uint64_t kSmallMemlock = std::uint64_t{64} << 20;
constexpr std::uint64_t kSmallSocketBuffer = std::uint64_t{1} << 20;

Finding ok(std::string topic, std::string text) {
  return {Level::Ok, std::move(topic), std::move(text), ""};
}
Finding note(std::string topic, std::string text, std::string remedy = "") {
  return {Level::Note, std::move(topic), std::move(text), std::move(remedy)};
}
Finding problem(std::string topic, std::string text, std::string remedy) {
  return {Level::Problem, std::move(topic), std::move(text), std::move(remedy)};
}

Finding memlock_finding(std::uint64_t bytes) {
  constexpr const char* kTopic = "memlock";
  if (bytes == UINT64_MAX)
    return ok(kTopic, "no limit on locked memory: registrations are pinned in either mode");
  const std::string text = fmt::format(
      "{} may be locked: beyond that, friendly mode counts pages without pinning them, strict mode "
      "(--strict) refuses as hardware would",
      bytes_text(bytes));
  if (bytes >= kSmallMemlock) return ok(kTopic, text);
  return note(kTopic, text,
              "ulimit -l unlimited, LimitMEMLOCK=infinity in a service, --ulimit memlock=-1 for a "
              "container");
}

Finding pin_finding(const PinFacts& pins) {
  constexpr const char* kTopic = "pinning";
  const std::string why =
      pins.why_not_better.empty() ? "" : fmt::format(" ({})", pins.why_not_better);
  switch (pins.backend) {
    case os::PinBackend::IoUring:
      return ok(kTopic, "io_uring: the same long-term pin that a kernel driver takes");
    case os::PinBackend::Mlock:
      return note(kTopic, "mlock: pages stay in RAM, but one munlock undoes all" + why,
                  "allow io_uring (kernel.io_uring_disabled=0, seccomp profile of the container)");
    case os::PinBackend::Counted:
      break;
  }
  return note(kTopic, "counted only: the kernel may move or swap registered pages" + why,
              "raise the memlock limit, or allow io_uring");
}

Finding socket_finding(const PortSocket& socket) {
  const std::string topic = "UDP 4791";
  if (socket.kernel)
    return problem(topic, fmt::format("held at {} by the kernel itself", socket.address),
                   "soft RoCE of the kernel or a tunnel holds it: rdma link delete NAME, or "
                   "modprobe -r rdma_rxe");
  if (socket.lodging)
    return ok(topic, fmt::format(
                         "held at {} by SoftHCA of uid {}: programs of this user lodge there; what "
                         "is for them, those of uid {} pass on",
                         socket.address, socket.uid, socket.uid));
  if (socket.owners.empty())
    return problem(topic,
                   fmt::format("held at {} by a program of uid {} that this user may not see",
                               socket.address, socket.uid),
                   "as root: ss -ulpn 'sport = :4791' names it; stop it");
  std::string names;
  bool ours = true;
  for (const PortOwner& owner : socket.owners) {
    names += fmt::format("{}pid {} ({})", names.empty() ? "" : ", ", owner.pid, owner.program);
    ours = ours && owner.softhca;
  }
  const std::string text =
      fmt::format("held at {} by {}, uid {}", socket.address, names, socket.uid);
  if (ours) return ok(topic, text + ": SoftHCA, which shares it");
  return problem(topic, text, fmt::format("stop it: kill {}", socket.owners[0].pid));
}

std::string first_gid(const driver::DeviceDescription& device) {
  if (device.gids.empty()) return "no GID";
  return fmt::format(
      "GID {} {}{}", device.gids[0].index, wire::gid_text(device.gids[0].gid),
      device.gids.size() > 1 ? fmt::format(" (and {} more)", device.gids.size() - 1) : "");
}

Finding device_finding(const driver::DeviceDescription& device,
                       const std::vector<os::Interface>& interfaces, bool another_works) {
  const std::string head =
      fmt::format("on {}: {}", device.interface, port_state_name(device.port.state));
  if (device.port.state == driver::PortState::Active)
    return ok(device.name,
              fmt::format("{}, MTU {} (path MTU {}), {}", head, device.port.interface_mtu,
                          device.port.active_mtu, first_gid(device)));
  const WhyDown why = why_down(device, interfaces);
  const std::string text = fmt::format("{}: {}", head, why.reason);
  return another_works ? note(device.name, text, why.remedy)
                       : problem(device.name, text, why.remedy);
}

}  // namespace

std::string_view level_name(Level level) {
  switch (level) {
    case Level::Ok:
      return "ok";
    case Level::Note:
      return "note";
    case Level::Problem:
      break;
  }
  return "problem";
}

std::optional<std::string> first_missing(const std::string& list,
                                         const std::vector<os::Interface>& interfaces) {
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');)
    if (std::ranges::find(interfaces, name, &os::Interface::name) == interfaces.end()) return name;
  return std::nullopt;
}

std::string names_of(const std::vector<os::Interface>& interfaces) {
  std::string names;
  for (const os::Interface& one : interfaces) names += (names.empty() ? "" : ", ") + one.name;
  return names.empty() ? "none" : names;
}

WhyDown why_down(const driver::DeviceDescription& device,
                 const std::vector<os::Interface>& interfaces) {
  const auto found = std::ranges::find(interfaces, device.interface, &os::Interface::name);
  const std::string& name = device.interface;
  if (found == interfaces.end()) return {name + " is gone", "bring it back, or choose another one"};
  if (!found->up) return {name + " is not up", fmt::format("ip link set dev {} up", name)};
  if (!found->running && !found->loopback)
    return {name + " has no carrier", "plug the cable in, or bring the other end up"};
  if (device.gids.empty())
    return {name + " has no address", fmt::format("ip address add ADDRESS/PREFIX dev {}", name)};
  const trace::ReasonInfo* row = trace::find_reason(device.port.down.id);
  if (row == nullptr) return {"it does not say why", "look at ip link show dev " + name};
  return {std::string(row->rule), std::string(row->remedy)};
}

std::string_view port_state_name(driver::PortState state) {
  return state == driver::PortState::Active ? "ACTIVE" : "DOWN";
}

std::string speed_text(std::uint64_t mbps) {
  if (mbps == 0) return "";
  if (mbps % 1000 != 0) return fmt::format("{} Mb/s", mbps);
  return fmt::format("{} Gb/s", mbps / 1000);
}

Findings check_kernel(const os::KernelFeatures& kernel) {
  Findings found = {ok("kernel", "Linux " + kernel.release)};
  const auto add = [&](const char* topic, const os::Attempt& made, const char* with,
                       const char* without) {
    found.push_back(made.works() ? ok(topic, with)
                                 : note(topic, fmt::format("{} ({})", without, made.error_text())));
  };
  add("page checks", kernel.madv_populate, "MADV_POPULATE: one call checks a whole registration",
      "no MADV_POPULATE: pages are checked one by one, which is slower");
  add("pidfd", kernel.pidfd, "the end of a peer is noticed at once",
      "no pidfd: the end of a peer is noticed by its closed socket");
  return found;
}

Findings check_pins(const PinFacts& pins) {
  return {pin_finding(pins), memlock_finding(pins.memlock_bytes)};
}

Findings check_copying(std::optional<os::CopyMethod> method, const os::KernelFeatures& kernel) {
  constexpr const char* kTopic = "copying";
  if (method == os::CopyMethod::ProcessVm)
    return {ok(kTopic, "process_vm: buffers that the program unmaps never crash it")};
  const std::string why = kernel.process_vm.error_text();
  const std::string remedy = "allow process_vm_readv and process_vm_writev in the seccomp profile";
  if (method == os::CopyMethod::Pipe)
    return {note(kTopic, fmt::format("through a pipe, which is slower: process_vm_readv: {}", why),
                 remedy)};
  return {
      problem(kTopic, fmt::format("no guarded way to copy: process_vm_readv: {}", why), remedy)};
}

Findings check_checksums(bool has_faster_library) {
  constexpr const char* kTopic = "checksums";
  if (has_faster_library) return {ok(kTopic, "libisal: at the speed of memory")};
  return {note(kTopic, "libdeflate: some ten GB/s on each side",
               "install libisal2, which is found when a device is opened")};
}

Findings check_namespaces(const os::Namespaces& spaces) {
  Findings found;
  std::string inside;
  if (spaces.in_user_namespace) inside = "a user namespace";
  if (spaces.in_pid_namespace) inside += inside.empty() ? "a PID namespace" : ", a PID namespace";
  if (inside.empty())
    found.push_back(
        ok("namespaces", "the machine's own; network namespace " + std::to_string(spaces.network)));
  else
    found.push_back(note("namespaces", fmt::format("inside {} (a container); programs outside it "
                                                   "are reached over the network only",
                                                   inside)));
  if (spaces.unprivileged_user_namespaces == false)
    found.push_back(ok("user namespaces", "not for ordinary users; SoftHCA needs none"));
  return found;
}

Findings check_same_host(const os::Namespaces& spaces, const os::KernelFeatures& kernel,
                         const std::optional<std::string>& setting) {
  constexpr const char* kTopic = "same host";
  constexpr const char* kPackets = "one-sided requests between processes here go as packets: ";
  constexpr const char* kRings = "messages between them go through memory all the same";
  if (setting == "off")
    return {note(kTopic,
                 "requests and messages between processes here go as packets: SOFTHCA_LOCAL is off",
                 "unset SOFTHCA_LOCAL")};
  Findings found;
  if (setting == "direct")
    found.push_back(note(kTopic,
                         "messages between processes here go as packets: SOFTHCA_LOCAL is direct",
                         "unset SOFTHCA_LOCAL"));
  if (!kernel.process_vm.works())
    found.push_back(note(
        kTopic,
        fmt::format("{}process_vm_readv: {}; {}", kPackets, kernel.process_vm.error_text(), kRings),
        "allow process_vm_readv and process_vm_writev in the seccomp profile"));
  else if (spaces.ptrace_scope.value_or(0) > 0)
    found.push_back(note(kTopic,
                         fmt::format("{}Yama's ptrace_scope is {}; a program's access to itself, "
                                     "which SoftHCA needs, is not affected, and {}",
                                     kPackets, *spaces.ptrace_scope, kRings),
                         "as root: sysctl -w kernel.yama.ptrace_scope=0"));
  if (found.empty())
    found.push_back(ok(kTopic,
                       "one-sided requests between processes of one user are executed in their "
                       "memory, and messages go through it"));
  return found;
}

Findings check_frames(bool may_hold_writers, const std::optional<std::string>& setting) {
  constexpr const char* kTopic = "frames";
  if (may_hold_writers)
    return {
        ok(kTopic, setting == "frames"
                       ? "registered memory is moved into frames of the device"
                       : "SOFTHCA_MEMORY=frames can move registered memory, also under threads")};
  constexpr const char* kText =
      "SOFTHCA_MEMORY=frames moves memory only while a program has one thread: no userfaultfd that "
      "also holds faults in system calls";
  constexpr const char* kRemedy =
      "as root: sysctl -w vm.unprivileged_userfaultfd=1, or give access to /dev/userfaultfd";
  // Nobody misses it who does not ask for it.
  if (setting != "frames") return {ok(kTopic, kText)};
  return {note(kTopic, kText, kRemedy)};
}

Findings check_port(const std::vector<PortSocket>& sockets) {
  if (sockets.empty()) return {ok("UDP 4791", "free at every address")};
  Findings found;
  for (const PortSocket& socket : sockets) found.push_back(socket_finding(socket));
  return found;
}

Findings check_devices(const std::vector<driver::DeviceDescription>& devices,
                       const std::vector<os::Interface>& interfaces,
                       const std::optional<std::string>& wanted) {
  Findings found;
  const auto missing = wanted ? first_missing(*wanted, interfaces) : std::nullopt;
  if (missing)
    found.push_back(problem("SOFTHCA_NETDEV",
                            fmt::format("names {}, which does not exist", *missing),
                            "choose one of: " + names_of(interfaces)));
  if (devices.empty())
    found.push_back(problem("devices", "programs would find none",
                            "bring a network interface up: ip link set dev lo up"));
  const bool works = std::ranges::any_of(devices, [](const driver::DeviceDescription& device) {
    return device.port.state == driver::PortState::Active;
  });
  for (const auto& device : devices) found.push_back(device_finding(device, interfaces, works));

  for (const os::Interface& one : interfaces) {
    if (!one.loopback) continue;
    found.push_back(one.up ? ok("loopback", one.name + " is up")
                           : note("loopback", one.name + " is down: 127.0.0.1 does not answer",
                                  fmt::format("ip link set dev {} up", one.name)));
  }
  return found;
}

Findings check_socket_buffers(const os::Limits& limits) {
  Findings found;
  const auto check = [&](const char* name, std::uint64_t bytes) {
    if (bytes == 0) return;  // not readable here
    if (bytes >= kSmallSocketBuffer)
      found.push_back(ok(name, fmt::format("{} for a socket", bytes_text(bytes))));
    else
      found.push_back(
          note(name,
               fmt::format("{} for a socket: bursts may be lost and sent again", bytes_text(bytes)),
               fmt::format("as root: sysctl -w net.core.{}=4194304", name)));
  };
  check("rmem_max", limits.receive_buffer_max_bytes);
  check("wmem_max", limits.send_buffer_max_bytes);
  return found;
}

Findings check_library(const std::optional<std::string>& folder,
                       const std::vector<std::string>& looked_in) {
  if (folder) return {ok("library", "SoftHCA's libibverbs.so.1 is in " + *folder)};
  std::string places;
  for (const std::string& place : looked_in) places += (places.empty() ? "" : ", ") + place;
  return {problem("library", "SoftHCA's libibverbs.so.1 is in none of: " + places,
                  "build or install all of SoftHCA; keep softhca and lib/ together")};
}

Findings check_stock_devices(const std::vector<std::string>& names) {
  if (names.empty()) return {ok("stock RDMA", "no device of the kernel's; SoftHCA needs none")};
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return {
      note("stock RDMA", fmt::format("the kernel has {}; programs see them without softhca run, "
                                     "and SoftHCA's devices with it",
                                     list))};
}

}  // namespace softhca::cli
