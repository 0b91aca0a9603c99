// PlanText: reads a plan of faults that was written in TOML.
//
// What is not understood is an error, never left out: a plan that does less than its author thinks
// would make a test pass that tests nothing.
//
// See also  docs/faults.md: every key
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"
#include "faults/plan.h"

namespace softhca::faults {

inline constexpr std::size_t kPlanBytesAtMost = std::size_t{1} << 20;

struct PlanError {
  std::string text;  // "plan.toml:9: ratio: 5 is not above 0 and at most 1"
};

// `name` is the file's, for messages.
Result<Plan, PlanError> parse_plan(std::string_view text, const std::string& name);

// The same from a file.
Result<Plan, PlanError> read_plan(const std::string& path);

}  // namespace softhca::faults
