// What a recording says, as text for 80 columns and as JSON.
#pragma once
#include <string>

#include "cli/table.h"
#include "trace/findings.h"

namespace softhca::cli {

std::string findings_text(const trace::Recorded& recorded, const trace::Findings& findings,
                          const Look& look);
std::string findings_json(const trace::Recorded& recorded, const trace::Findings& findings);

}  // namespace softhca::cli
