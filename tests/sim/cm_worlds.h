// Connecting worlds: several connection managers and programs on them that listen, connect, accept,
// reject, resolve, disconnect and destroy at random, over a network that loses, duplicates,
// reorders and delays; some hosts die and come back with the same numbers. Then nobody begins
// anything new and the network is well.
//
// Oracle  of each connection a side hears exactly one of established, rejected and unreachable, and
//         who was established exactly one end; both ends of one agree on queue pairs, PSNs, limits
//         and private bytes; nobody hears of an id that he destroyed; and at last there is no id,
//         no deadline and no listener's debt left.
#pragma once
#include <cstdint>
#include <string>

namespace softhca::cm {

struct ConnectingOutcome {
  std::string wrong;          // "" if nothing
  std::uint64_t datagrams{};  // a hash of all that was said
  std::uint64_t established{};
  std::uint64_t rejected{};
  std::uint64_t unreachable{};
  std::uint64_t resolved{};
  std::uint64_t pairs{};  // whose ends were compared
  std::uint64_t lost{};
  std::uint64_t deaths{};
};

// Everything about a world follows from its seed.
ConnectingOutcome run_connecting_world(std::uint64_t seed);

}  // namespace softhca::cm
