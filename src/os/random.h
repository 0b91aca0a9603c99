// Randomness of the kernel, for seeds.
#pragma once
#include <cstdint>

namespace softhca::os {

std::uint64_t random_seed();

}  // namespace softhca::os
