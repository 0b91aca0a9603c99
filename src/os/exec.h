// Starting other programs: in place of this one, or beside it with its output caught.
//
// Threads  any
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace softhca::os {

// Variables that the program gets besides, or instead of, those of this one.
using EnvironmentChanges = std::vector<std::pair<std::string, std::string>>;

// Of this process. 0 or errno
int change_environment(const EnvironmentChanges& changes);

// Becomes the program (searched in PATH), same pid; returns only if that fails, with errno.
// REQUIRES: arguments[0] is the program.
int exec_program(const std::vector<std::string>& arguments);

struct CaughtOutput {
  int exit_status{};   // 128 + signal if it was killed by one
  bool out_of_time{};  // killed by us
  std::string text;    // standard output and standard error, as they came; at most 1 MiB
};

// Runs the program in a group of its own, with no standard input, for at most `limit`; then it
// and what it started are killed. FAILS WITH errno if it cannot be started.
Result<CaughtOutput, int> run_and_catch(const std::vector<std::string>& arguments,
                                        const EnvironmentChanges& changes, Duration limit);

}  // namespace softhca::os
