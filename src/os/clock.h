// Clock: monotonic time since this object was made.
//
// Threads  any
#pragma once
#include "base/clock.h"

namespace softhca::os {

class Clock {
 public:
  Clock();
  Time now() const;

 private:
  std::int64_t start_ns_;
};

// The time of day, in nanoseconds since 1970; for stamps in files only.
std::int64_t unix_time_ns();

}  // namespace softhca::os
