// Which seeds a test of worlds runs.
//
// SOFTHCA_SEEDS   how many (default 1000)
// SOFTHCA_SEED    only this one: what a failure prints
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/assert.h"

namespace softhca::sim {

struct Seeds {
  std::uint64_t first = 0;
  std::uint64_t count = 1000;
  bool one = false;

  static Seeds wanted() {
    Seeds seeds;
    if (const char* const one = std::getenv("SOFTHCA_SEED"))
      seeds = {.first = std::strtoull(one, nullptr, 0), .count = 1, .one = true};
    else if (const char* const count = std::getenv("SOFTHCA_SEEDS"))
      seeds.count = std::strtoull(count, nullptr, 0);
    return seeds;
  }
  // Enough that everything is bound to have been seen.
  bool many() const { return count >= 100; }
};

// How to run the world again that runs now. An assertion that ends it says so too.
class Replay {
 public:
  explicit Replay(std::string_view test) : test_(test) { set_assert_hook(&on_assertion); }
  ~Replay() { set_assert_hook(nullptr); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  std::string line(std::uint64_t seed) const {
    return "replay: SOFTHCA_SEED=" + std::to_string(seed) + " build/tests/sim/" + test_;
  }
  void begin(std::uint64_t seed) { now_ = line(seed); }

 private:
  [[noreturn]] static void on_assertion(const char* expression, const char* file, int line) {
    std::fprintf(stderr, "%s:%d: assertion failed: %s\n%s\n", file, line, expression, now_.c_str());
    std::abort();
  }
  static inline std::string now_;
  std::string test_;
};

}  // namespace softhca::sim
