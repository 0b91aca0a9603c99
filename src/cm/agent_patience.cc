// What waits: for answers, for TimeWait to end, for room.
#include "cm/agent.h"
#include "wire/time_code.h"

namespace softhca::cm {

namespace {
using enum trace::ReasonId;
}  // namespace

// Null if there is no room. The id is drawn: in a row they could be guessed.
Conversation* Agent::create() {
  while (conversations_.size() >= settings_.limits.conversations) {
    if (lingering_.empty()) return nullptr;
    end_wait(conversations_.at(lingering_.begin()->second));
  }
  constexpr std::uint32_t kDrawn = (1u << kCommIdBlockShift) - 1;
  wire::CommId id;
  do {
    id.value =
        settings_.block << kCommIdBlockShift | (static_cast<std::uint32_t>(prng_.next()) & kDrawn);
  } while (id.value == 0 || conversations_.contains(id));
  Conversation& c = conversations_[id];
  c.local = id;
  return &c;
}

// REQUIRES: the state is what it will be while it waits.
void Agent::arm(Conversation& c, Time deadline) {
  due_.erase({c.deadline, c.local});
  lingering_.erase({c.deadline, c.local});
  c.deadline = deadline;
  if (deadline == Time::never()) return;
  due_.emplace(deadline, c.local);
  if (c.state == State::TimeWait || !c.held) lingering_.emplace(deadline, c.local);
}

// 12.7.11 and 12.7.12: how long the other side says that it takes, and the way there and back.
void Agent::set_patience(Conversation& c, std::uint8_t response_timeout, std::uint8_t retries) {
  c.response_time =
      wire::duration_of(response_timeout) + wire::duration_of(c.terms.path.ack_timeout);
  c.linger_time = c.response_time + wire::duration_of(c.terms.path.ack_timeout);
  c.retries = retries;
}

void Agent::await_answer(Conversation& c, Time now) {
  c.retries_left = c.retries;
  c.delayed = false;
  arm(c, now + c.response_time);
}

void Agent::note_answered(Conversation& c) {
  if (!c.unanswered) return;
  c.unanswered = false;
  const auto it = listeners_.find(c.listener);
  if (it == listeners_.end()) return;
  --it->second.unanswered;
  it->second.is_full_told = false;
}

void Agent::on_time(Time now) {
  while (!due_.empty() && due_.begin()->first <= now) {
    Conversation& c = conversations_.at(due_.begin()->second);
    if (c.state == State::TimeWait) {
      end_wait(c);
    } else if (c.retries_left > 0) {
      send_again(c, now);
    } else {
      give_up(c, now);
    }
  }
  trim();
}

void Agent::send_again(Conversation& c, Time now) {
  --c.retries_left;
  c.delayed = false;
  ++tally_.resent;
  say(c, *c.last);
  arm(c, now + c.response_time);
}

// The other side is told, in case that it is only deaf in one direction.
void Agent::give_up(Conversation& c, Time now) {
  const std::uint32_t object = c.local.value;
  switch (c.state) {
    case State::ReqSent:
      send_rej(c, wire::CmSubject::Req, wire::RejReason::Timeout);
      tell(c, EventKind::Unreachable, {}, {.id = ConnectTimedOut, .object = object});
      close(c);
      break;
    case State::RepSent:
      send_rej(c, wire::CmSubject::Rep, wire::RejReason::Timeout);
      tell(c, EventKind::Unreachable, {}, {.id = AcceptUnconfirmed, .object = object});
      linger(c, now);
      break;
    case State::DreqSent:
      end_established(c, {}, {.id = DisconnectUnanswered, .object = object}, now);
      break;
    case State::SidrSent:
      tell(c, EventKind::Unreachable, {}, {.id = ConnectTimedOut, .object = object});
      close(c);
      break;
    default:
      ASSERT(false);  // no other state waits for an answer
  }
}

void Agent::establish_by_peer(Conversation& c, ConstBytes private_bytes) {
  c.state = State::Established;
  c.was_connected = true;
  c.last.reset();
  arm(c, Time::never());
  tell(c, EventKind::Established, private_bytes);
}

void Agent::end_established(Conversation& c, ConstBytes private_bytes, const trace::Reason& reason,
                            Time now) {
  c.last.reset();
  tell(c, EventKind::Disconnected, private_bytes, reason);
  linger(c, now);
}

// As if an operating system had said so for it: an established connection ends, and what was being
// set up will not come about. A request that was not answered yet runs into its time-out.
void Agent::on_peer_ended(std::uint32_t block, const std::function<bool(const wire::Gid&)>& is_own,
                          Time now) {
  for (auto& [id, c] : conversations_) {
    if (block_of(c.remote) != block || c.is_resolution || !is_own(c.terms.path.remote)) continue;
    const trace::Reason reason{.id = PeerEnded, .object = id.value};
    switch (c.state) {
      case State::Established:
      case State::DreqSent:
        end_established(c, {}, reason, now);
        break;
      case State::ReqReceived:
      case State::RepReceived:
      case State::RepSent:
        c.last.reset();
        tell(c, EventKind::Unreachable, {}, reason);
        linger(c, now);
        break;
      default:
        break;
    }
  }
}

// 12.9.8.4 (TimeWait): what was said last is said again to who has missed it.
void Agent::linger(Conversation& c, Time now) {
  release_qp(c);
  c.state = State::TimeWait;
  arm(c, now + (c.was_connected ? wire::duration_of(c.terms.path.ack_timeout) : c.linger_time));
}

void Agent::release_qp(const Conversation& c) {
  const auto it = by_qp_.find({c.terms.path.remote, c.terms.remote_qpn});
  if (it != by_qp_.end() && it->second == c.local) by_qp_.erase(it);
}

// The conversation is gone afterwards, unless its program still holds the id.
void Agent::close(Conversation& c) {
  release_qp(c);
  if (c.is_passive()) by_remote_.erase({c.terms.path.remote, c.remote, c.is_resolution});
  c.state = State::Closed;
  c.last.reset();
  arm(c, Time::never());
  if (!c.held) conversations_.erase(c.local);
}

void Agent::end_wait(Conversation& c) {
  if (c.was_connected && c.state == State::TimeWait) tell(c, EventKind::TimewaitExit);
  close(c);
}

void Agent::trim() {
  while (lingering_.size() > settings_.limits.lingering)
    end_wait(conversations_.at(lingering_.begin()->second));
}

}  // namespace softhca::cm
