// CacheSize: how many translations a set-associative cache remembers.
#pragma once
#include <cstdint>

namespace softhca::host {

// REQUIRES: sets is a power of two, ways > 0.
struct CacheSize {
  std::uint32_t sets{};
  std::uint32_t ways{};
};

}  // namespace softhca::host
