// Arguments: the command line as one validated value.
//
// What is syntax is checked here and nowhere else; what depends on the machine (does the interface
// exist? the file?) is checked by the command itself.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "sim/journey.h"

namespace softhca::cli {

struct RunArguments {
  std::optional<std::string> netdev;
  bool strict = false;
  std::optional<std::string> profile;
  bool scatter = false;
  bool sysfs = false;
  std::optional<std::string> pcap;
  std::optional<std::string> trace;
  std::optional<std::string> ledger;
  std::optional<std::string> faults;
  std::optional<std::string> ecn;     // off, notify or control
  std::optional<std::string> local;   // on, direct or off
  std::optional<std::string> engine;  // auto, inline or thread
  std::optional<std::string> memory;  // ordinary or frames
  std::optional<std::string> pin;     // auto, io_uring, mlock or counted
  std::vector<std::string> program;   // never empty
};

struct DevicesArguments {
  bool json = false;
};

struct DoctorArguments {
  bool json = false;
  std::vector<std::string> program;  // may be empty
};

struct StatArguments {
  bool json = false;
  std::optional<std::int32_t> pid;
};

struct LedgerArguments {
  bool json = false;
  std::vector<std::string> files;  // never empty
};

struct ExplainArguments {
  bool json = false;
  std::string what;      // a number, a name, "list" or "page"
  std::int32_t pid = 0;  // instead: what this process was refused; 0: none
};

struct JourneyArguments {
  bool json = false;
  bool steps = false;       // every detail
  bool list_wrong = false;  // --wrong list
  sim::JourneySettings settings;
};

// --help and --version: the text is all that was asked for.
struct ShowText {
  std::string text;
};

using Arguments = std::variant<ShowText, RunArguments, DevicesArguments, DoctorArguments,
                               StatArguments, LedgerArguments, ExplainArguments, JourneyArguments>;

// One line that names what is wrong and what to do about it.
struct UsageError {
  std::string line;
};

// `words` are those behind the name of the program.
Result<Arguments, UsageError> parse_arguments(const std::vector<std::string>& words);

}  // namespace softhca::cli
