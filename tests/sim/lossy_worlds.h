// Lossy worlds: two hosts with unreliable connections or datagrams between them, over a network
// that loses, duplicates, reorders and delays, and then over one that does not.
//
// Oracle  every request completes once, in order, with success, whatever becomes of it. Whatever is
//         received is one message that was sent, whole, with its own length and immediate data. A
//         target of WRITEs has a beginning of its message and nothing else. What is sent when the
//         network is well arrives, exactly once and in order.
#pragma once
#include <cstdint>
#include <string>

#include "worlds.h"

namespace softhca::sim {

struct LossyOutcome {
  std::string wrong;  // "" if nothing
  std::uint64_t journal{};
  std::uint64_t received{};
  std::uint64_t lost{};
};

// Everything about a world follows from its seed.
LossyOutcome run_lossy_world(std::uint64_t seed, Roads roads = Roads::Plain);

}  // namespace softhca::sim
