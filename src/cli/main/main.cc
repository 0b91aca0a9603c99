// softhca: the command. Parses, then lets one command run.
#include <unistd.h>

#include <iostream>
#include <variant>

#include "cli/arguments.h"
#include "cli/commands.h"

namespace {

using namespace softhca::cli;

constexpr int kBadUsage = 2;

struct Choice {
  Terminal& terminal;

  int operator()(const ShowText& shown) const {
    terminal.out << shown.text;
    return 0;
  }
  int operator()(const RunArguments& run) const { return command_run(run, terminal); }
  int operator()(const DevicesArguments& devices) const {
    return command_devices(devices, terminal);
  }
  int operator()(const DoctorArguments& doctor) const { return command_doctor(doctor, terminal); }
  int operator()(const StatArguments& stat) const { return command_stat(stat, terminal); }
  int operator()(const LedgerArguments& ledger) const { return command_ledger(ledger, terminal); }
  int operator()(const ExplainArguments& explain) const {
    return command_explain(explain, terminal);
  }
  int operator()(const JourneyArguments& journey) const {
    return command_journey(journey, terminal);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  const auto arguments = parse_arguments(words);
  if (!arguments) {
    std::cerr << arguments.error().line << "\n";
    return kBadUsage;
  }
  Terminal terminal{std::cout, std::cerr, look_of(STDOUT_FILENO)};
  const int status = std::visit(Choice{terminal}, *arguments);
  std::cout.flush();
  return std::cout.fail() && status == 0 ? 1 : status;
}
