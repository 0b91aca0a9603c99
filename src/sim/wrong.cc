#include "sim/wrong.h"

namespace softhca::sim {

std::span<const Wrong> wrongs() { return {}; }

}  // namespace softhca::sim
