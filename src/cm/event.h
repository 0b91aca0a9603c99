// Event: what a program is told about one of its conversations.
//
// Of every connection a program hears one outcome, unless it destroys the id before: Established
// (who connects knows that from its establish(), which answers a Reply), Rejected or Unreachable.
// Who was established hears exactly one Disconnected.
#pragma once
#include <vector>

#include "base/bytes.h"
#include "cm/terms.h"
#include "trace/reason.h"

namespace softhca::cm {

struct ListenerId {
  std::uint32_t value{};  // 0: none
  friend constexpr auto operator<=>(ListenerId, ListenerId) = default;
};

enum class EventKind : std::uint8_t {
  ConnectRequest,  // `id` is new: accept, reject or destroy it
  ResolveRequest,  // the same of datagrams: answer, reject or destroy it
  Reply,           // the peer accepts: establish, reject or destroy
  Established,     // the peer, or what came from it, says so
  Resolved,        // the peer's queue pair and Q_Key are in the terms
  Rejected,        // `status` is a wire::RejReason, of a resolution a wire::SidrStatus
  Unreachable,     // nobody answered
  Disconnected,
  TimewaitExit,   // the queue pair's number may be used again
  BacklogFull,    // a warning: `listener` has no room, and requests are dropped; told once
  DeviceRemoved,  // of the driver, to who watches the device: nothing more will come
};

struct Event {
  EventKind kind{};
  wire::CommId id{};
  ListenerId listener{};
  std::uint16_t status{};
  trace::Reason reason{};  // of what failed
  Terms terms{};           // as of this event
  // All that the message has room for; where it ends the program has to know.
  std::vector<std::byte> private_bytes{};
};

// Who hears what becomes of a conversation, or of a listener's requests.
//
// Threads  called with the device owned: returns at once, and calls nothing of it
class ConnectionSink {
 public:
  // A ConnectRequest or ResolveRequest comes to the listener's sink, which gives the sink of the
  // new conversation; null: the program does not want it, and it is rejected. What is given for
  // other events is ignored.
  virtual ConnectionSink* on_event(const Event& event) = 0;

 protected:
  ~ConnectionSink() = default;
};

}  // namespace softhca::cm
