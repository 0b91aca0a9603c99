// Findings: what a recording says about why something was refused, or slow.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "trace/recording.h"

namespace softhca::trace {

// Something that was refused, or that the device warned of, when it happened first.
struct Cause {
  Time at{};
  bool is_warning{};
  ReasonId reason{};
  std::string about;
  std::string text;          // as it was told on stderr, without `about`
  std::uint64_t repeated{};  // how often the same was refused again
};

// A queue pair that sent again or waited.
struct Delays {
  std::uint32_t qpn{};
  std::uint64_t timeouts{};
  std::uint64_t retransmits{};  // packets
  std::uint64_t rnr_waits{};
  Duration rnr_waited{};
};

struct Findings {
  std::vector<Cause> causes;   // by time
  std::vector<Delays> delays;  // by QPN
  Time last{};                 // the time of the last event
};
Findings findings_of(const Recorded& recorded);

}  // namespace softhca::trace
