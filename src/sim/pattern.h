// Pattern: bytes that can be told from others, as many as wanted, without keeping them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/bytes.h"
#include "base/prng.h"

namespace softhca::sim {

class Pattern {
 public:
  Pattern() = default;  // zeros
  static Pattern of_seed(std::uint64_t seed) {
    Pattern pattern;
    pattern.seed_ = seed;
    pattern.is_random_ = true;
    return pattern;
  }
  static Pattern of_byte(std::byte value) {
    Pattern pattern;
    pattern.value_ = value;
    return pattern;
  }

  // The bytes from `offset` on. REQUIRES: a multiple of kStep.
  static constexpr std::uint64_t kStep = std::uint64_t{1} << 20;
  void write(std::uint64_t offset, Bytes out) const {
    ASSERT(offset % kStep == 0);
    if (!is_random_) {
      std::ranges::fill(out, value_);
      return;
    }
    Prng prng(seed_ ^ (offset + 1) * 0x9e3779b97f4a7c15u);
    for (std::size_t i = 0; i < out.size(); i += sizeof(std::uint64_t)) {
      const std::uint64_t word = prng.next();
      std::copy_n(bytes_of(word).begin(), std::min(sizeof word, out.size() - i),
                  out.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

 private:
  std::uint64_t seed_ = 0;
  bool is_random_ = false;
  std::byte value_{0};
};

}  // namespace softhca::sim
