// Flags: a set of the values of an enum whose enumerators are single bits.
#pragma once
#include <type_traits>

namespace softhca {

template <class Enum>
struct Flags {
  using Bits = std::underlying_type_t<Enum>;
  Bits bits{};

  constexpr Flags() = default;
  constexpr Flags(Enum one) : bits(static_cast<Bits>(one)) {}
  static constexpr Flags of_bits(Bits raw) {
    Flags set;
    set.bits = raw;
    return set;
  }

  constexpr bool has(Enum one) const { return (bits & static_cast<Bits>(one)) != 0; }
  constexpr bool has_all(Flags other) const { return (bits & other.bits) == other.bits; }
  constexpr bool empty() const { return bits == 0; }

  friend constexpr bool operator==(Flags, Flags) = default;
  friend constexpr Flags operator|(Flags a, Flags b) {
    return of_bits(static_cast<Bits>(a.bits | b.bits));
  }
  friend constexpr Flags operator&(Flags a, Flags b) {
    return of_bits(static_cast<Bits>(a.bits & b.bits));
  }
  friend constexpr Flags operator-(Flags a, Flags b) {
    return of_bits(static_cast<Bits>(a.bits & ~b.bits));
  }
  constexpr Flags& operator|=(Flags other) { return *this = *this | other; }
};

}  // namespace softhca
