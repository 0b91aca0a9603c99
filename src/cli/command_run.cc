#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "cli/commands.h"
#include "cli/doctor_checks.h"
#include "cli/library.h"
#include "cli/program_file.h"
#include "driver/sysfs_tree.h"
#include "faults/plan_text.h"
#include "os/environment.h"
#include "os/exec.h"
#include "os/interfaces.h"
#include "os/private_view.h"

namespace softhca::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kFailed = 1, kBadUsage = 2, kNotExecutable = 126, kNotFound = 127;

// "" if the interfaces exist, or if nobody can tell.
std::string netdev_trouble(const std::string& wanted) {
  const auto interfaces = os::interfaces();
  if (!interfaces) return "";
  const auto missing = first_missing(wanted, *interfaces);
  if (!missing) return "";
  return fmt::format("--netdev: there is no interface {}; choose one of: {}", *missing,
                     names_of(*interfaces));
}

// "" if a file of this name could be written.
std::string file_trouble(const char* option, const std::string& name) {
  std::error_code error;
  const fs::path folder = fs::absolute(name, error).parent_path();
  if (!fs::is_directory(folder, error))
    return fmt::format("{}: there is no folder {}; make it first", option, folder.string());
  if (fs::is_directory(name, error))
    return fmt::format("{}: {} is a folder; name a file in it", option, name);
  return "";
}

std::string trouble_of(const RunArguments& run) {
  if (run.netdev)
    if (auto trouble = netdev_trouble(*run.netdev); !trouble.empty()) return trouble;
  const std::pair<const char*, const std::optional<std::string>*> files[] = {
      {"--pcap", &run.pcap}, {"--trace", &run.trace}, {"--ledger", &run.ledger}};
  for (const auto& [option, name] : files)
    if (*name)
      if (auto trouble = file_trouble(option, **name); !trouble.empty()) return trouble;
  if (run.faults)
    if (const auto plan = faults::read_plan(*run.faults); !plan)
      return "--faults: " + plan.error().text;
  return "";
}

// The program may change its folder before it opens a device.
std::string absolute_name(const std::string& name) {
  return fs::absolute(name).lexically_normal().string();
}

os::EnvironmentChanges environment_of(const RunArguments& run, const fs::path& libraries,
                                      bool preloads) {
  const std::string before = os::env_text(kLibraryPathVariable).value_or("");
  os::EnvironmentChanges changes = {
      {kLibraryPathVariable, library_path_with(libraries.string(), before)}};
  if (preloads)
    changes.emplace_back(kPreloadVariable,
                         preload_with((libraries / kSysfsLibrary).string(),
                                      os::env_text(kPreloadVariable).value_or("")));
  if (run.netdev) changes.emplace_back("SOFTHCA_NETDEV", *run.netdev);
  if (run.strict) changes.emplace_back("SOFTHCA_STRICT", "1");
  if (run.profile) changes.emplace_back("SOFTHCA_PROFILE", *run.profile);
  if (run.scatter) changes.emplace_back("SOFTHCA_SCATTER", "1");
  if (run.pcap) changes.emplace_back("SOFTHCA_PCAP", absolute_name(*run.pcap));
  if (run.trace) changes.emplace_back("SOFTHCA_TRACE", absolute_name(*run.trace));
  if (run.ledger) changes.emplace_back("SOFTHCA_LEDGER", absolute_name(*run.ledger));
  if (run.faults) changes.emplace_back("SOFTHCA_FAULTS", absolute_name(*run.faults));
  if (run.ecn) changes.emplace_back("SOFTHCA_ECN", *run.ecn);
  if (run.local) changes.emplace_back("SOFTHCA_LOCAL", *run.local);
  if (run.engine) changes.emplace_back("SOFTHCA_ENGINE", *run.engine);
  if (run.memory) changes.emplace_back("SOFTHCA_MEMORY", *run.memory);
  if (run.pin) changes.emplace_back("SOFTHCA_PIN", *run.pin);
  return changes;
}

// "" if the files that programs look for lie over /sys/class/infiniband.
std::string mounting_trouble() {
  std::vector<os::PlacedFile> files;
  for (const driver::SysfsFound& found : driver::SysfsTree::now().fixed())
    files.push_back({found.place, found.text, found.kind == driver::SysfsKind::Link});
  const auto refusal = os::enter_private_view(std::string(driver::kSysfsRoot), files);
  if (!refusal) return "";
  return fmt::format(
      "--sysfs: {} is refused ({}); {}, or leave --sysfs out: a program that loads libraries finds "
      "the files without it",
      refusal->step, std::generic_category().message(refusal->error), kAllowNamespaces);
}

std::string no_libraries(const fs::path& executable) {
  std::string places;
  for (const fs::path& folder : library_folders(executable.parent_path()))
    places += (places.empty() ? "" : ", ") + folder.string();
  return fmt::format("SoftHCA's {} is in none of {}; keep softhca and its libraries together",
                     kVerbsLibrary, places);
}

}  // namespace

int command_run(const RunArguments& run, Terminal& terminal) {
  const auto say = [&](const std::string& line) {
    terminal.err << "softhca run: " << line << "\n";
  };
  if (const std::string trouble = trouble_of(run); !trouble.empty()) {
    say(trouble);
    return kBadUsage;
  }
  const fs::path executable = own_executable();
  const auto libraries = find_library_folder(executable);
  if (!libraries) {
    say(no_libraries(executable));
    return kFailed;
  }
  const auto file = find_program(run.program[0]);
  if (file)
    if (const std::string why = why_not_injected(examine_program(*file)); !why.empty())
      say(fmt::format("warning: {} will not see SoftHCA: {}", run.program[0], why));

  terminal.out.flush();
  terminal.err.flush();
  const bool preloads =
      why_not_preloaded(*libraries).empty() && !(file && needs_sanitizer_first(*file));
  int error = os::change_environment(environment_of(run, *libraries, preloads));
  if (run.sysfs)
    if (const std::string trouble = mounting_trouble(); !trouble.empty()) {
      say(trouble);
      return kFailed;
    }
  if (error == 0) error = os::exec_program(run.program);
  const std::string text = std::generic_category().message(error);
  if (error == ENOENT)
    say(fmt::format("{}: not found; check its name and PATH", run.program[0]));
  else
    say(fmt::format("{}: cannot be started: {}", run.program[0], text));
  return error == ENOENT ? kNotFound : kNotExecutable;
}

}  // namespace softhca::cli
