// Witness: hears the events of a world, and remembers of each kind how many there were, what their
// numbers came to, and the first few. A transfer of a gigabyte has millions.
#pragma once
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "trace/journal.h"

namespace softhca::sim {

// What was heard in a stretch of time.
class Heard {
 public:
  static constexpr std::size_t kRemembered = 64;  // of each kind and host

  struct Kind {
    std::uint64_t count{};
    std::array<std::uint64_t, trace::kEventFields> sums{};
    std::vector<trace::Event> first;
    trace::Event last;
  };

  void add(const trace::Event& event);
  // Of one host; an empty answer if there was none.
  const Kind& of(std::uint16_t host, trace::EventKind kind) const;
  std::uint64_t count(std::uint16_t host, trace::EventKind kind) const {
    return of(host, kind).count;
  }

 private:
  std::vector<std::array<Kind, trace::kEventKindCount>> hosts_;
};

class Witness {
 public:
  // Listens to `journal` for as long as it lives.
  explicit Witness(trace::Journal& journal);
  ~Witness();
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  // What was heard since the last time.
  Heard take() { return std::exchange(heard_, {}); }

 private:
  trace::Journal& journal_;
  Heard heard_;
};

}  // namespace softhca::sim
