// Prng: seeded randomness (SplitMix64); the same seed gives the same run on every compiler.
//
// For tests, simulated worlds and for numbers that need not be secret. QPNs and first PSNs of the
// live device take their seed from the kernel's random source (os/).
#pragma once
#include <cstdint>

#include "base/assert.h"

namespace softhca {

class Prng {
 public:
  explicit constexpr Prng(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // A number in [0, bound). REQUIRES: bound > 0. The bias below 2^-32 does not matter here.
  std::uint64_t below(std::uint64_t bound) {
    ASSERT(bound > 0);
    return next() % bound;
  }

  // True `parts` times in `whole`.
  bool chance(std::uint64_t parts, std::uint64_t whole) { return below(whole) < parts; }

 private:
  std::uint64_t state_;
};

}  // namespace softhca
