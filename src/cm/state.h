// State: where a conversation is, and what each message means there.
//
// Spec  IBTA vol. 1, 12.9.5 to 12.9.7 (state diagrams). An MRA changes only how long is waited, so
//       its states are not apart; nor is that of a received DREQ, which is answered at once.
#pragma once
#include <cstdint>

#include "wire/cm_message.h"

namespace softhca::cm {

enum class State : std::uint8_t {
  ReqSent,
  RepReceived,  // this side's program has not confirmed yet
  ReqReceived,  // this side's program has not answered yet
  RepSent,
  Established,
  DreqSent,
  SidrSent,
  SidrReceived,
  TimeWait,  // over; what still comes of it is answered
  Closed,    // over; only the program still has its id
};
inline constexpr std::size_t kStates = 10;

enum class Reaction : std::uint8_t {
  Ignore,
  Take,     // it is what was waited for
  Delay,    // it came twice and the program has not answered: an MRA
  Repeat,   // the answer was lost: what was sent last is sent again
  Answer,   // with a DREP, as if nothing was known of the conversation
  Unknown,  // the conversation is as good as never heard of
};

// What message number `message` (the index in wire::CmMessage) means. A REQ or SIDR_REQ is here
// one that has made the conversation, and came again.
Reaction reaction(State state, std::size_t message);

}  // namespace softhca::cm
