// Wrong: what can be broken on the way of a transfer, and how each failure is told.
//
// Spec  IBTA vol. 1, 9.9 and 11.6.2 (statuses); Intel VT-d, 7.2.3 (fault reasons); PCI Express
//       Base, 2.3 (what a blocked request becomes); getrlimit(2), fork(2)
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "sim/journey.h"

namespace softhca::sim {

struct Wrong {
  std::string_view name;  // as typed: "wrong-key"
  std::string_view text;  // what is broken, in one sentence
};

std::span<const Wrong> wrongs();

// Plays and tells the case that the settings name; `came_out_right` says that it failed as it
// should. FAILS WITH one line: no such case, or one that needs other settings.
Result<Story, std::string> tell_wrong(const JourneySettings& settings);

}  // namespace softhca::sim
