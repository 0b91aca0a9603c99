// Worlds: two hosts, a connection and random work on it, over a network that loses, duplicates,
// reorders and delays.
#pragma once
#include <cstdint>
#include <string>

#include "sim/world.h"

namespace softhca::sim {

// Two hosts, and how bad the network between them is: up to a fifth of its frames is lost or
// loses a bit, a fifth comes twice, a fifth is overtaken.
WorldSettings random_settings(Prng& prng);

// Plain: as above. Congested: besides, the switch's ports are slow and mark, and who sends obeys.
enum class Roads : std::uint8_t { Plain, Congested };
void build(Roads roads, WorldSettings& settings);

struct WorldOutcome {
  std::string wrong;  // "" if nothing
  std::uint64_t journal{};
  std::uint64_t retransmits{};
  std::uint64_t slowed{};  // how often a sender was told to be slower, and obeyed
};

// Everything about a world follows from its seed.
WorldOutcome run_world(std::uint64_t seed, Roads roads = Roads::Plain);

}  // namespace softhca::sim
