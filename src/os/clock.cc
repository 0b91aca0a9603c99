#include "os/clock.h"

#include <time.h>

namespace softhca::os {

namespace {

std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

Clock::Clock() : start_ns_(monotonic_ns()) {}

Time Clock::now() const { return Time{} + nanoseconds(monotonic_ns() - start_ns_); }

std::int64_t unix_time_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace softhca::os
