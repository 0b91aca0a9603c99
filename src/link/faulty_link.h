// FaultyLink: a link that behaves badly, in a way that a seed repeats.
//
// A decorator around any link, live or simulated. It spoils what is received and, where asked to,
// what is sent.
//
// Threads  as the link inside
#pragma once
#include <cstdint>
#include <vector>

#include "base/prng.h"
#include "link/link.h"

namespace softhca::link {

// Parts in 1000 of the frames of one direction.
struct FaultRates {
  std::uint32_t drop{};
  std::uint32_t duplicate{};
  std::uint32_t corrupt{};  // one bit is flipped
  std::uint32_t delay{};    // held back, so that later ones overtake
  Duration delay_max{};     // for how long, at most

  bool any() const { return drop + duplicate + corrupt + delay > 0; }
};

struct FaultCounts {
  std::uint64_t dropped{};
  std::uint64_t duplicated{};
  std::uint64_t corrupted{};
  std::uint64_t delayed{};
};

class FaultyLink final : public Link {
 public:
  // REQUIRES: `inner` lives longer.
  FaultyLink(Link& inner, std::uint64_t seed, const FaultRates& sending,
             const FaultRates& receiving);
  ~FaultyLink() override;

  std::size_t send(std::span<const Frame> frames, Time now) override;
  std::size_t receive(std::span<Frame> out, Time now) override;
  // The earlier of the inner link's and of what is held back.
  Time next_arrival() const override;

  const FaultCounts& counts() const { return counts_; }

 private:
  struct Held;
  bool release_sends(Time now);  // false if the inner link is full
  void spoil(const Frame& frame, const FaultRates& rates, Time now, std::vector<Held>& held);

  Link& inner_;
  Prng prng_;
  FaultRates sending_;
  FaultRates receiving_;
  FaultCounts counts_;
  std::vector<Held> outgoing_;  // by time; copies
  std::vector<Held> incoming_;  // by time; copies
  std::vector<Held> lent_;      // what the last receive() gave away
};

}  // namespace softhca::link
