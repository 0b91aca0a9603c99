// FaultyLink: a link on which a plan's faults happen to packets.
//
// A decorator around any link, live or simulated. What the plan loses on the way out has left the
// device and never comes to the link inside; what it loses on the way in has come through it.
//
// Threads  as the link inside
#pragma once
#include <cstdint>
#include <vector>

#include "faults/injector.h"
#include "link/link.h"

namespace softhca::link {

class FaultyLink final : public Link {
 public:
  // REQUIRES: both live longer.
  FaultyLink(Link& inner, faults::Injector& injector);
  ~FaultyLink() override;

  std::size_t send(std::span<const Frame> frames, Time now) override;
  std::size_t receive(std::span<Frame> out, Time now) override;
  // The earlier of the inner link's and of what is held back.
  Time next_arrival() const override;

  // A cable that holds more frames than this loses those that come. Of each direction.
  static constexpr std::size_t kHeldAtMost = 4096;
  // A packet that is to be passed by others does not wait for them any longer.
  static constexpr Duration kPassedWithin = milliseconds(1);

 private:
  struct Held;
  bool release_sends(Time now);  // false if the inner link is full
  void carry(const Frame& frame, faults::Side side, Time now, std::vector<Held>& held);
  static void let_follow(std::uint32_t receiver, Time now, std::vector<Held>& held);

  Link& inner_;
  faults::Injector& injector_;
  std::vector<Held> outgoing_;  // by time; copies
  std::vector<Held> incoming_;  // by time; copies
  std::vector<Held> lent_;      // what the last receive() gave away
};

}  // namespace softhca::link
