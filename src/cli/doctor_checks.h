// Doctor's checks: facts about this machine in, findings out. Nothing here looks at the system.
//
// See also  cli/command_doctor.cc, which gathers the facts
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/program_file.h"
#include "driver/attributes.h"
#include "os/guarded_copy.h"
#include "os/interfaces.h"
#include "os/kernel_features.h"
#include "os/kernel_pin.h"
#include "os/processes.h"

namespace softhca::cli {

enum class Level : std::uint8_t {
  Ok,
  Note,     // works, but worth knowing
  Problem,  // does not work; has a remedy
};
std::string_view level_name(Level level);

struct Finding {
  Level level = Level::Ok;
  std::string topic;
  std::string text;    // one sentence
  std::string remedy;  // never empty for a problem
};
using Findings = std::vector<Finding>;

struct PinFacts {
  os::PinBackend backend{};
  std::string why_not_better;
  std::uint64_t memlock_bytes{};  // as os::memlock_limit()
};

// A program that holds UDP 4791.
struct PortOwner {
  os::Pid pid{};
  std::string program;
  bool softhca = false;  // it has a SoftHCA device open
};

struct PortSocket {
  std::string address;
  std::uint32_t uid{};
  bool kernel = false;  // a socket of the kernel's own
  std::vector<PortOwner> owners;
  bool lodging = false;  // SoftHCA of another user has it: this user's programs would lodge there
};

// How programs are shown /sys/class/infiniband.
struct SysfsFacts {
  std::string library;            // that is preloaded
  std::string why_not_preloaded;  // "" if it is
  os::Attempt mounting;           // as softhca run --sysfs would
};

// What the loader would do with one program.
struct LoadFacts {
  std::string program;  // as it was named
  std::optional<ProgramFile> file;
  std::string trouble;                     // why the loader gave no answer; "" if it did
  std::vector<std::string> unresolved;     // missing libraries and versions, under run
  std::optional<std::string> verbs_plain;  // libibverbs without softhca run
  std::optional<std::string> verbs_run;    // and with it
  bool run_is_ours = false;
  bool asked_for = false;  // named by the user; else our own choice
};

Findings check_kernel(const os::KernelFeatures& kernel);
Findings check_pins(const PinFacts& pins);
Findings check_copying(std::optional<os::CopyMethod> method, const os::KernelFeatures& kernel);
Findings check_checksums(bool has_faster_library);
Findings check_namespaces(const os::Namespaces& spaces);
// Whether what goes between processes of this host needs UDP. `setting`: SOFTHCA_LOCAL.
Findings check_same_host(const os::Namespaces& spaces, const os::KernelFeatures& kernel,
                         const std::optional<std::string>& setting);
// Whether memory can be moved into frames while threads run. `setting`: SOFTHCA_MEMORY.
Findings check_frames(bool may_hold_writers, const std::optional<std::string>& setting);
Findings check_port(const std::vector<PortSocket>& sockets);
Findings check_devices(const std::vector<driver::DeviceDescription>& devices,
                       const std::vector<os::Interface>& interfaces,
                       const std::optional<std::string>& wanted);
Findings check_socket_buffers(const os::Limits& limits);
Findings check_library(const std::optional<std::string>& folder,
                       const std::vector<std::string>& looked_in);
Findings check_loading(const LoadFacts& load);
Findings check_sysfs(const SysfsFacts& sysfs);
Findings check_stock_devices(const std::vector<std::string>& names);

// What lets an ordinary user make namespaces, as a remedy.
inline constexpr const char* kAllowNamespaces =
    "allow user namespaces (sysctl user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0; the seccomp profile of the container)";

// The first name of a list "eth0,eth1" that no interface has.
std::optional<std::string> first_missing(const std::string& list,
                                         const std::vector<os::Interface>& interfaces);
// "lo, eth0", or "none".
std::string names_of(const std::vector<os::Interface>& interfaces);

// Why a device is DOWN, and what to do.
struct WhyDown {
  std::string reason;
  std::string remedy;
};
WhyDown why_down(const driver::DeviceDescription& device,
                 const std::vector<os::Interface>& interfaces);

// "ACTIVE" or "DOWN".
std::string_view port_state_name(driver::PortState state);
// "100 Gb/s"; "" if unknown.
std::string speed_text(std::uint64_t mbps);

}  // namespace softhca::cli
