#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "cli/commands.h"
#include "cli/ledger.h"

namespace softhca::cli {
namespace {

// Appends what the file holds; says on `err` what it could not read. False without the file.
bool read_file(const std::string& name, std::vector<LedgerEntry>& entries, std::ostream& err) {
  std::error_code error;
  if (std::filesystem::is_directory(name, error)) {
    err << fmt::format("softhca ledger: {}: a folder; name a file\n", name);
    return false;
  }
  std::ifstream file(name);
  if (!file) {
    err << fmt::format("softhca ledger: {}: {}; write it with softhca run --ledger {} -- PROGRAM\n",
                       name, std::generic_category().message(errno), name);
    return false;
  }
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (const auto entry = parse_ledger_line(line))
      entries.push_back(*entry);
    else
      err << fmt::format("softhca ledger: {}:{}: left out: {}\n", name, number, entry.error());
  }
  return true;
}

}  // namespace

int command_ledger(const LedgerArguments& arguments, Terminal& terminal) {
  std::vector<LedgerEntry> entries;
  for (const std::string& name : arguments.files)
    if (!read_file(name, entries, terminal.err)) return 1;
  if (entries.empty()) {
    terminal.err << "softhca ledger: no run is recorded there; a process writes its line when it"
                    " closes its device\n";
    return 1;
  }
  terminal.out << (arguments.json ? ledger_json(entries) : ledger_text(entries));
  return 0;
}

}  // namespace softhca::cli
