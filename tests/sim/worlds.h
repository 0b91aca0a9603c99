// Worlds: two hosts, a connection and random work on it, over a network that loses, duplicates,
// reorders and delays.
#pragma once
#include <cstdint>
#include <string>

namespace softhca::sim {

struct WorldOutcome {
  std::string wrong;  // "" if nothing
  std::uint64_t journal{};
  std::uint64_t retransmits{};
};

// Everything about a world follows from its seed.
WorldOutcome run_world(std::uint64_t seed);

}  // namespace softhca::sim
