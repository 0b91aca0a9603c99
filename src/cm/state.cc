#include "cm/state.h"

#include "base/assert.h"

namespace softhca::cm {
namespace {

using enum Reaction;

// clang-format off
constexpr Reaction kReactions[kStates - 1][std::variant_size_v<wire::CmMessage>] = {
    // REQ    MRA     REJ     REP     RTU     DREQ    DREP    SIDR_REQ SIDR_REP
    {Ignore, Take,   Take,   Take,   Ignore, Ignore, Ignore, Ignore, Ignore},  // ReqSent
    {Ignore, Ignore, Take,   Delay,  Ignore, Ignore, Ignore, Ignore, Ignore},  // RepReceived
    {Delay,  Ignore, Take,   Ignore, Ignore, Ignore, Ignore, Ignore, Ignore},  // ReqReceived
    {Repeat, Take,   Take,   Ignore, Take,   Take,   Ignore, Ignore, Ignore},  // RepSent
    {Ignore, Ignore, Take,   Repeat, Ignore, Take,   Ignore, Ignore, Ignore},  // Established
    {Ignore, Ignore, Take,   Repeat, Ignore, Take,   Take,   Ignore, Ignore},  // DreqSent
    {Ignore, Ignore, Ignore, Ignore, Ignore, Ignore, Ignore, Ignore, Take},    // SidrSent
    {Ignore, Ignore, Ignore, Ignore, Ignore, Ignore, Ignore, Ignore, Ignore},  // SidrReceived
    {Repeat, Ignore, Ignore, Repeat, Repeat, Answer, Ignore, Repeat, Ignore},  // TimeWait
};
// clang-format on

}  // namespace

Reaction reaction(State state, std::size_t message) {
  ASSERT(message < std::variant_size_v<wire::CmMessage>);
  if (state == State::Closed) return Unknown;
  return kReactions[static_cast<std::size_t>(state)][message];
}

}  // namespace softhca::cm
