// Conversation: what is known of one connection, or of one resolution of a datagram service.
#pragma once
#include <optional>

#include "base/clock.h"
#include "cm/event.h"
#include "cm/state.h"

namespace softhca::cm {

struct Conversation {
  wire::CommId local{};
  wire::CommId remote{};  // 0 until the peer has said it
  State state{};
  ListenerId listener{};    // passive side; 0 on the other
  bool held = true;         // the program knows the id and hears of it
  bool unanswered = false;  // counts in the listener's backlog
  bool is_resolution = false;
  bool asks_failover = false;  // the request names a second path
  bool was_connected = false;
  std::uint64_t transaction{};  // of the messages that set it up
  Terms terms{};

  // What was sent last, for when its answer does not come or was lost.
  std::optional<wire::CmMadBytes> last{};
  Time deadline = Time::never();
  Duration response_time{};  // how long an answer is waited for
  Duration linger_time{};    // how long the last word may be asked for again, if never connected
  std::uint8_t retries = 0;  // of this conversation
  std::uint8_t retries_left = 0;
  bool delayed = false;  // an MRA has come for what was sent last

  bool is_passive() const { return listener.value != 0; }
  bool is_over() const { return state == State::TimeWait || state == State::Closed; }
};

}  // namespace softhca::cm
