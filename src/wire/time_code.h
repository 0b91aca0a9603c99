// Times that are said as five bits: 4.096 us times 2^code. What a code of 0 means besides, if
// anything, is said where it is used.
//
// Spec  IBTA vol. 1, C9-141 (ACK timeout), 12.7 (the times of a connection manager)
#pragma once
#include <cstdint>

#include "base/clock.h"

namespace softhca::wire {

inline constexpr std::uint8_t kMaxTimeCode = 31;

// Of the code's lowest five bits.
constexpr Duration duration_of(std::uint8_t code) {
  return nanoseconds(4096) * (std::int64_t{1} << (code & kMaxTimeCode));
}

}  // namespace softhca::wire
