#include <fmt/format.h>

#include "cli/doctor_checks.h"

namespace softhca::cli {
namespace {

// Of one program: which libibverbs, and is that the intended one?
Finding verbs_finding(const LoadFacts& load) {
  const std::string plain = load.verbs_plain.value_or("no libibverbs");
  if (!load.verbs_run)
    return {Level::Note, load.program,
            "is not linked with libibverbs; a library or plug-in that it opens may be, and then "
            "finds SoftHCA's under softhca run",
            ""};
  if (load.run_is_ours)
    return {Level::Ok, load.program,
            fmt::format("loads {}; under softhca run {}", plain, *load.verbs_run), ""};
  return {Level::Problem, load.program,
          fmt::format("loads {} even under softhca run", *load.verbs_run),
          "it was linked with an RPATH, which goes before LD_LIBRARY_PATH: chrpath -c or "
          "patchelf --set-rpath '' on a copy"};
}

}  // namespace

Findings check_loading(const LoadFacts& load) {
  const Level doubt = load.asked_for ? Level::Problem : Level::Note;
  if (!load.file)
    return {{doubt, load.program, "not found or not executable",
             load.asked_for ? "give its path" : "install ibverbs-utils to try a first program"}};
  if (load.file->kind == ProgramKind::Script)
    return {{Level::Note, load.program,
             fmt::format("is a script for {}; what it starts is run on SoftHCA too",
                         load.file->interpreter),
             "ask again with the program that it starts"}};
  if (const std::string why = why_not_injected(*load.file); !why.empty())
    return {{Level::Problem, load.program, "cannot be run on SoftHCA", why}};
  if (load.file->kind == ProgramKind::Other)
    return {{doubt, load.program, "is not a program that the loader knows", "give another one"}};
  if (!load.trouble.empty())
    return {{doubt, load.program, "its loader says nothing: " + load.trouble,
             "start it by hand and read what it says"}};

  Findings found = {verbs_finding(load)};
  for (const std::string& name : load.unresolved)
    found.push_back({Level::Problem, load.program, "would not start: " + name,
                     "install what is missing, or a build of it for this system"});
  return found;
}

Findings check_sysfs(const SysfsFacts& sysfs) {
  constexpr const char* kTopic = "sysfs";
  Findings found;
  if (sysfs.why_not_preloaded.empty())
    found.push_back({Level::Ok, kTopic,
                     fmt::format("softhca run preloads {}: programs that load libraries find "
                                 "/sys/class/infiniband, with live counters",
                                 sysfs.library),
                     ""});
  else
    found.push_back({Level::Note, kTopic,
                     fmt::format("softhca run preloads nothing ({}): programs find no "
                                 "/sys/class/infiniband",
                                 sysfs.why_not_preloaded),
                     fmt::format("keep {} beside libibverbs.so.1, unset SOFTHCA_SYSFS; or softhca "
                                 "run --sysfs",
                                 sysfs.library)});
  if (sysfs.mounting.works())
    found.push_back({Level::Ok, kTopic,
                     "softhca run --sysfs can mount it too, for programs that load none; for an "
                     "ordinary user that takes a user namespace, and programs of two such runs "
                     "forward their packets to each other instead of steering them",
                     ""});
  else
    found.push_back({Level::Ok, kTopic,
                     fmt::format("softhca run --sysfs cannot mount it for programs that load none "
                                 "({}); to change that, {}",
                                 sysfs.mounting.error_text(), kAllowNamespaces),
                     ""});
  return found;
}

}  // namespace softhca::cli
