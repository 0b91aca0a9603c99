// Psn, Msn, Qpn: 24-bit numbers of the transport, each a type of its own.
#pragma once
#include <compare>
#include <cstdint>

namespace softhca::wire {

inline constexpr std::uint32_t kMask24 = 0xff'ffff;

// Packet sequence number: a place on a circle of 2^24.
struct Psn {
  std::uint32_t value{};
  friend constexpr bool operator==(Psn, Psn) = default;
  constexpr Psn plus(std::uint32_t n) const { return {(value + n) & kMask24}; }
  constexpr Psn minus(std::uint32_t n) const { return {(value - n) & kMask24}; }
};

// How far a is ahead of b on the circle, in [-2^23, 2^23); negative if behind.
constexpr std::int32_t ahead(Psn a, Psn b) {
  return static_cast<std::int32_t>((a.value - b.value) << 8) >> 8;
}
static_assert(ahead({0}, {kMask24}) == 1 && ahead({5}, {9}) == -4);

// Message sequence number, as carried in an AETH.
struct Msn {
  std::uint32_t value{};
  friend constexpr bool operator==(Msn, Msn) = default;
  constexpr Msn next() const { return {(value + 1) & kMask24}; }
};

// Queue pair number. 0 and 1 are for management, 0xffffff for multicast.
struct Qpn {
  std::uint32_t value{};
  friend constexpr auto operator<=>(Qpn, Qpn) = default;
};

// 32-bit key: 24-bit index, 8-bit variant.
struct Key {
  std::uint32_t value{};
  friend constexpr bool operator==(Key, Key) = default;
  constexpr std::uint32_t index() const { return value >> 8; }
  constexpr std::uint8_t variant() const { return static_cast<std::uint8_t>(value); }
  static constexpr Key of(std::uint32_t index, std::uint8_t variant) {
    return {index << 8 | variant};
  }
};

}  // namespace softhca::wire
