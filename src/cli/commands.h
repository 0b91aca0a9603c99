// Commands: one function for each word that may follow `softhca`.
//
// Each prints what it found on `out`, what went wrong on `err` in one line, and gives the exit
// status: 0 it worked, 1 it did not, 2 it was asked for something impossible.
#pragma once
#include <ostream>

#include "cli/arguments.h"
#include "cli/table.h"

namespace softhca::cli {

struct Terminal {
  std::ostream& out;
  std::ostream& err;
  Look look;
};

// Becomes the program. Returns only if that fails: 1, 2, 126 or 127.
int command_run(const RunArguments& arguments, Terminal& terminal);
int command_devices(const DevicesArguments& arguments, Terminal& terminal);
int command_doctor(const DoctorArguments& arguments, Terminal& terminal);
int command_stat(const StatArguments& arguments, Terminal& terminal);
int command_ledger(const LedgerArguments& arguments, Terminal& terminal);
int command_explain(const ExplainArguments& arguments, Terminal& terminal);
int command_journey(const JourneyArguments& arguments, Terminal& terminal);

}  // namespace softhca::cli
