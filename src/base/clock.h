// Time and Duration: integer picoseconds, always an argument, never asked for.
//
// One unit serves the live device (whose clock starts at zero when the device is opened) and the
// simulated world (where a PCIe symbol lasts 125 ps). 2^63 ps are 106 days.
#pragma once
#include <compare>
#include <cstdint>
#include <limits>

namespace softhca {

struct Duration {
  std::int64_t ps{};

  friend constexpr auto operator<=>(Duration, Duration) = default;
  friend constexpr Duration operator+(Duration a, Duration b) { return {a.ps + b.ps}; }
  friend constexpr Duration operator-(Duration a, Duration b) { return {a.ps - b.ps}; }
  friend constexpr Duration operator*(Duration a, std::int64_t n) { return {a.ps * n}; }

  constexpr std::int64_t nanoseconds() const { return ps / 1000; }
};

constexpr Duration picoseconds(std::int64_t n) { return {n}; }
constexpr Duration nanoseconds(std::int64_t n) { return {n * 1'000}; }
constexpr Duration microseconds(std::int64_t n) { return {n * 1'000'000}; }
constexpr Duration milliseconds(std::int64_t n) { return {n * 1'000'000'000}; }
constexpr Duration seconds(std::int64_t n) { return {n * 1'000'000'000'000}; }

struct Time {
  std::int64_t ps{};

  friend constexpr auto operator<=>(Time, Time) = default;
  friend constexpr Time operator+(Time t, Duration d) { return {t.ps + d.ps}; }
  friend constexpr Duration operator-(Time a, Time b) { return {a.ps - b.ps}; }

  // Later than every event; the deadline of whoever waits for nothing.
  static constexpr Time never() { return {std::numeric_limits<std::int64_t>::max()}; }
};

constexpr Time earlier(Time a, Time b) { return a < b ? a : b; }
constexpr Time later(Time a, Time b) { return a < b ? b : a; }

}  // namespace softhca
