#include "cli/arguments.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <memory>

#include "base/address.h"
#include "driver/profile.h"

namespace softhca::cli {
namespace {

using Words = std::vector<std::string>;

constexpr std::uint32_t kComparedTransfers = 1000;

// CLI11 does not know that what it leaves over is a program.
class HelpPage : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    if (!app->get_prefix_command()) return usage;
    usage.erase(usage.find_last_not_of('\n') + 1);
    return usage +
           (app->get_name() == "run" ? " [--] PROGRAM [ARGUMENTS...]\n" : " [-- PROGRAM]\n");
  }
};

// The options of every command, and where CLI11 puts their values.
struct Grammar {
  CLI::App app{"SoftHCA: an RDMA NIC made of software.", "softhca"};
  CLI::App* run = nullptr;
  CLI::App* devices = nullptr;
  CLI::App* doctor = nullptr;
  CLI::App* stat = nullptr;
  CLI::App* ledger = nullptr;
  CLI::App* explain = nullptr;
  CLI::App* journey = nullptr;

  RunArguments run_values;
  LedgerArguments ledger_values;
  ExplainArguments explain_values;
  JourneyArguments journey_values;
  bool compares = false;
  std::optional<std::int32_t> pid;
  bool json = false;

  Grammar();
  void add_run();
  void add_journey();
  CLI::App* add_reader(const std::string& name, const std::string& purpose);
};

Grammar::Grammar() {
  app.set_version_flag("--version", "softhca " SOFTHCA_VERSION);
  app.require_subcommand(1);
  const auto page = std::make_shared<HelpPage>();
  page->column_width(18);
  app.formatter(page);  // before the commands, which inherit it
  app.footer(
      "First steps:  softhca doctor\n"
      "              softhca run -- ibv_devinfo\n"
      "Each command has its own --help.");
  add_run();
  devices = add_reader("devices", "What programs would see: devices, their state, their GIDs");
  devices->footer(
      "To choose one interface: softhca run --netdev IF -- PROGRAM,\n"
      "or SOFTHCA_NETDEV=IF in the environment.");

  doctor = add_reader("doctor", "What works here, what does not, and what to do about it");
  doctor->prefix_command();
  doctor->footer(
      "With PROGRAM: which libibverbs it would really load.\n"
      "Exit status: 0 without a problem, 1 with one.");

  stat = add_reader("stat", "What the devices of running programs are doing");
  stat->add_option("PID", pid, "Only this process")
      ->check(CLI::Range(1, std::numeric_limits<std::int32_t>::max()));

  ledger = add_reader("ledger", "What a recorded run took, step by step");
  ledger->add_option("FILE", ledger_values.files, "Written by softhca run --ledger FILE");
  ledger->footer("softhca run --ledger run.ledger -- PROGRAM\nsofthca ledger run.ledger");

  explain = add_reader("explain", "Why something was refused, and what to change");
  explain->add_option("WHAT", explain_values.what,
                      "A number (vendor_err), a name, a recording, list, or page");
  explain->add_option("--pid", explain_values.pid, "What a running program was refused")
      ->check(CLI::Range(1, std::numeric_limits<std::int32_t>::max()));
  add_journey();
}

void Grammar::add_journey() {
  journey = add_reader("journey", "One transfer through two modelled servers, step by step");
  journey->footer(
      "Example: softhca journey --bytes 64k --op read --sockets\n"
      "         softhca journey --wrong list\n"
      "Nothing of this machine is used but its memory; the same options and the same\n"
      "seed tell the same story everywhere.");
  sim::JourneySettings& to = journey_values.settings;
  const auto choice = [this](const char* name, auto& value, const char* words, const char* text,
                             auto names) {
    const auto set = [name, words, &value, names](const std::string& given) {
      const auto found = names.find(given);
      if (found == names.end())
        throw CLI::ValidationError(name, std::string("must be one of ") + words);
      value = found->second;
    };
    journey->add_option_function<std::string>(name, set, text)->option_text(words);
  };
  const auto count = [this](const char* name, auto& value, const char* word, const char* text,
                            std::uint64_t low, std::uint64_t high) {
    return journey->add_option(name, value, text)
        ->option_text(word)
        ->check(CLI::Range(low, high).description(""));
  };
  const auto number = [&](const char* name, auto& value, const char* text, std::uint64_t low,
                          std::uint64_t high) {
    count(name, value, "N", text, low, high)->transform(CLI::AsSizeValue(false).description(""));
  };
  using sim::IommuChoice;
  using sim::Operation;
  choice("--op", to.operation, "write|read|send", "What the client asks for; else write",
         std::map<std::string, Operation>{
             {"write", Operation::Write}, {"read", Operation::Read}, {"send", Operation::Send}});
  number("--bytes", to.bytes, "How many: 1 to 1g; k, m, g are powers of 1024; else 10000", 1,
         sim::kLongestJourney);
  number("--offset", to.offset, "Where in its first page the buffer begins; else 100", 0,
         kPage4K - 1);
  choice("--pages", to.page_bytes, "4k|2m|1g", "The size of a page of memory; else 4k",
         std::map<std::string, std::uint64_t>{{"4k", kPage4K}, {"2m", kPage2M}, {"1g", kPage1G}});
  choice("--iommu", to.iommu, "on|deferred|passthrough|off", "What stands before memory; else on",
         std::map<std::string, IommuChoice>{{"on", IommuChoice::On},
                                            {"deferred", IommuChoice::Deferred},
                                            {"passthrough", IommuChoice::PassThrough},
                                            {"off", IommuChoice::Off}});
  count("--fragmentation", to.fragmentation, "PERCENT", "How scattered free memory is; else 60", 0,
        100);
  choice("--memory", to.gpu, "host|gpu", "Where the server's buffer lies; else host",
         std::map<std::string, bool>{{"host", false}, {"gpu", true}});
  choice("--acs", to.acs_redirect, "on|off", "With --memory gpu: its switch sends all requests up",
         std::map<std::string, bool>{{"on", true}, {"off", false}});
  count("--hosts", to.hosts, "N", "How many servers there are: 2 to 8; else 2", 2, 8);
  journey->add_flag("--sockets", to.sockets, "Send the same bytes by sockets too, and compare");
  journey->add_flag("--compare", compares, "1,000 transfers by RDMA and by sockets");
  const auto set_seed = [&to](const std::string& given) {
    const char* const end = given.data() + given.size();
    const auto [stop, error] = std::from_chars(given.data(), end, to.seed);
    if (error != std::errc() || stop != end)
      throw CLI::ValidationError("--seed", "must be a number from 0 to 2^64 - 1");
  };
  journey->add_option_function<std::string>("--seed", set_seed, "Another number tells another run")
      ->option_text("N");
  journey->add_flag("--steps", journey_values.steps, "Every step in full");
  journey->add_option("--wrong", to.wrong, "Break something: list names what")->option_text("WHAT");
}

void Grammar::add_run() {
  run = app.add_subcommand("run", "Run a stock RDMA program on a device of software");
  run->prefix_command();
  run->footer(
      "Example: softhca run --netdev lo -- ibv_devinfo\n"
      "PROGRAM gets each option as a variable: SOFTHCA_NETDEV, SOFTHCA_STRICT and more.\n"
      "The exit status is that of PROGRAM; 126 or 127 if it cannot be started.");
  const auto add = [this](const char* name, auto& value, const char* word,
                          const std::string& text) {
    return run->add_option(name, value, text)->option_text(word);
  };
  add("--netdev", run_values.netdev, "IF", "Use this network interface, or these: IF,IF");
  run->add_flag("--strict", run_values.strict, "Limits and refusals as on hardware");
  std::vector<std::string> profiles;
  for (const driver::Profile& profile : driver::profiles()) profiles.emplace_back(profile.name);
  add("--profile", run_values.profile, "NAME",
      fmt::format("Be like another device: {}", fmt::join(profiles, ", ")))
      ->check(CLI::IsMember(profiles));
  add("--pcap", run_values.pcap, "FILE", "Write every packet to FILE, for Wireshark");
  add("--trace", run_values.trace, "FILE",
      "Record every step of each process to FILE.PID: softhca explain");
  add("--ledger", run_values.ledger, "FILE", "Add what each process did to FILE: softhca ledger");
  add("--faults", run_values.faults, "PLAN", "Inject the faults of PLAN (TOML): docs/faults.md");
  add("--ecn", run_values.ecn, "HOW", "Congestion: off, notify (default) or control")
      ->check(CLI::IsMember({"off", "notify", "control"}));
  add("--local", run_values.local, "HOW",
      "This host's processes: on, direct (messages as UDP) or off")
      ->check(CLI::IsMember({"on", "direct", "off"}));
  add("--engine", run_values.engine, "HOW",
      "Who drives the device: auto, inline (calls alone) or thread")
      ->check(CLI::IsMember({"auto", "inline", "thread"}));
  add("--memory", run_values.memory, "HOW",
      "Registered memory: ordinary (default), or frames of the device")
      ->check(CLI::IsMember({"ordinary", "frames"}));
  add("--pin", run_values.pin, "HOW", "How to pin pages: auto, io_uring, mlock or counted")
      ->check(CLI::IsMember({"auto", "io_uring", "mlock", "counted"}));
  run->add_flag("--scatter", run_values.scatter, "Map every page on its own, out of order");
  run->add_flag("--sysfs", run_values.sysfs,
                "Mount /sys/class/infiniband too, for a static PROGRAM");
}

CLI::App* Grammar::add_reader(const std::string& name, const std::string& purpose) {
  CLI::App* command = app.add_subcommand(name, purpose);
  command->add_flag("--json", json, "For machines");
  return command;
}

UsageError wrong(const std::string& command, const std::string& what) {
  const std::string name = command.empty() ? "softhca" : "softhca " + command;
  return {name + ": " + what + "; see " + name + " --help"};
}

// Words that CLI11 must not see: those of a program behind "--". They may look like options.
struct SplitWords {
  Words ours;
  Words behind;  // begins with "--" if there was one
};

SplitWords split(const Words& words) {
  const bool takes_program = !words.empty() && (words[0] == "run" || words[0] == "doctor");
  const auto mark = takes_program ? std::ranges::find(words, "--") : words.end();
  return {{words.begin(), mark}, {mark, words.end()}};
}

// The program is what CLI11 left over, and what lies behind the "--" that introduces it. A second
// "--", or one among the program's own words, belongs to the program.
Result<Words, UsageError> program_of(const CLI::App& command, const SplitWords& words) {
  Words program = command.remaining();
  if (!program.empty() && program[0].starts_with('-'))
    return wrong(command.get_name(), "unknown option " + program[0]);
  const auto skipped = program.empty() && !words.behind.empty() ? 1 : 0;
  program.insert(program.end(), words.behind.begin() + skipped, words.behind.end());
  if (!program.empty() && program[0].empty())
    return wrong(command.get_name(), "the program's name is empty");
  return program;
}

Result<Arguments, UsageError> run_arguments(Grammar& grammar, const SplitWords& words) {
  const auto program = program_of(*grammar.run, words);
  if (!program) return program.error();
  if (program->empty()) return wrong("run", "no program; write softhca run -- PROGRAM");
  for (const auto* file :
       {&grammar.run_values.netdev, &grammar.run_values.pcap, &grammar.run_values.trace,
        &grammar.run_values.ledger, &grammar.run_values.faults})
    if (*file && (*file)->empty()) return wrong("run", "an option has an empty value");
  grammar.run_values.program = *program;
  return Arguments(grammar.run_values);
}

Result<Arguments, UsageError> value_of(Grammar& grammar, const SplitWords& words) {
  if (grammar.run->parsed()) return run_arguments(grammar, words);
  if (grammar.doctor->parsed()) {
    const auto program = program_of(*grammar.doctor, words);
    if (!program) return program.error();
    return Arguments(DoctorArguments{grammar.json, *program});
  }
  if (grammar.devices->parsed()) return Arguments(DevicesArguments{grammar.json});
  if (grammar.stat->parsed()) return Arguments(StatArguments{grammar.json, grammar.pid});
  if (grammar.ledger->parsed()) {
    grammar.ledger_values.json = grammar.json;
    if (grammar.ledger_values.files.empty())
      return wrong("ledger", "no file; write one with softhca run --ledger FILE -- PROGRAM");
    return Arguments(grammar.ledger_values);
  }
  if (grammar.journey->parsed()) {
    JourneyArguments& values = grammar.journey_values;
    values.json = grammar.json;
    values.list_wrong = values.settings.wrong == "list";
    if (grammar.compares) values.settings.compare = kComparedTransfers;
    return Arguments(values);
  }
  grammar.explain_values.json = grammar.json;
  if (grammar.explain_values.what.empty() == (grammar.explain_values.pid == 0))
    return wrong(
        "explain",
        "one of a reason (its number, which is vendor_err, its name, or: list), a file that run "
        "--trace wrote, and --pid");
  return Arguments(grammar.explain_values);
}

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

}  // namespace

Result<Arguments, UsageError> parse_arguments(const Words& words) {
  Grammar grammar;
  const SplitWords cut = split(words);
  if (words.empty())
    return wrong("", "no command; one of run, devices, doctor, stat, ledger, explain, journey");
  try {
    // CLI11 takes the words from the back.
    grammar.app.parse(Words(cut.ours.rbegin(), cut.ours.rend()));
  } catch (const CLI::CallForHelp&) {
    return Arguments(ShowText{grammar.app.help()});
  } catch (const CLI::CallForVersion& version) {
    return Arguments(ShowText{std::string(version.what()) + "\n"});
  } catch (const CLI::ParseError& error) {
    const auto used = grammar.app.get_subcommands();
    if (used.empty() && !words[0].starts_with('-'))
      return wrong("", words[0] +
                           " is not a command; one of run, devices, doctor, stat, ledger, "
                           "explain, journey");
    return wrong(used.empty() ? "" : used[0]->get_name(), one_line(error.what()));
  }
  return value_of(grammar, cut);
}

}  // namespace softhca::cli
