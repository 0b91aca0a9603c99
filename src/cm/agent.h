// Agent: the connection manager of one port and process, as a pure machine.
//
// Calls go in with what a program wants, on_datagram() with what came to queue pair 1, on_time()
// with the time. Out come datagrams (poll_datagram), events (poll_event) and the next deadline;
// they are polled until there is none after each of those.
//
// A conversation is named by this side's communication id, whose high bits are the process's
// block, so that whoever gets the datagram of another process of this host knows whose it is. The
// rest is drawn at random. A program holds an id until it destroys it; what the wire still needs
// (a DREQ that is not answered, TimeWait) goes on without it, and without events.
//
// A peer is who a datagram is from: messages of a conversation count only from its address and with
// both ids. Each datagram is answered by at most one, of the same size; besides, a stale connection
// is taken down, and what a program accepts is repeated as often as the request says, at most 15
// times. What peers can make us keep is bounded: requests by the listener's backlog, all
// else by `Limits`; and what they say of times by kMaxPatience.
//
// Spec        IBTA vol. 1, 12.9 (connections), 12.9.8.3 (stale ones), 12.11 (SIDR)
// Threads     one owner; no locks
// Invariants  (1) an id is in use until its program has destroyed it and TimeWait is over
//             (2) after destroy() there is no event about the id
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/prng.h"
#include "base/result.h"
#include "cm/conversation.h"

namespace softhca::cm {

// A communication id is a block's number and, below it, 20 random bits.
inline constexpr std::uint32_t kCommIdBlockShift = 20;
constexpr std::uint32_t block_of(wire::CommId id) { return id.value >> kCommIdBlockShift; }

// The longest code of a time that a peer's word is taken for: 34 s.
inline constexpr std::uint8_t kMaxPatience = 23;

struct Limits {
  std::size_t conversations = 16'384;
  std::size_t lingering = 4'096;  // of those, without a program or in TimeWait: the oldest goes
};

struct Settings {
  std::uint64_t ca_guid{};
  std::uint32_t block{};              // of communication ids
  std::uint8_t mtu = 5;               // the port's: 5 is 4096
  std::uint8_t ack_delay = 15;        // a time (134 ms, as rxe says)
  std::uint8_t service_timeout = 22;  // a time (17 s): how long a program may take, in an MRA
  Limits limits{};
};

// Where a datagram has come from, and at which address of this port.
struct Arrival {
  wire::Gid source{};
  wire::Gid destination{};
  wire::Qpn source_qpn{};
};

struct Outgoing {
  wire::Gid source{};  // this port's
  wire::Gid destination{};
  wire::CmMadBytes mad{};
};

// What came in and what became of it, for counters.
struct Tally {
  std::uint64_t malformed{};   // no datagram of a connection manager
  std::uint64_t unknown{};     // of no conversation
  std::uint64_t duplicates{};  // not what the conversation waited for
  std::uint64_t dropped{};     // requests that the backlog had no room for
  std::uint64_t refused{};     // requests that no program was asked about
  std::uint64_t resent{};      // by this side, for want of an answer
  friend bool operator==(const Tally&, const Tally&) = default;
};

class Agent {
 public:
  // What a call fails with is a reason; a call that fails changes nothing.
  using Done = Result<void, trace::Reason>;

  Agent(const Settings& settings, Prng prng);

  // The port's has changed; what was agreed on stays.
  void set_mtu(std::uint8_t mtu) { settings_.mtu = mtu; }

  // FAILS WITH ServiceTaken
  Result<ListenerId, trace::Reason> listen(const ListenRequest& request);
  // Those that wait already stay.
  void set_backlog(ListenerId listener, std::uint32_t backlog);
  // Requests that it brought stay.
  void close(ListenerId listener);

  // FAILS WITH PrivateTooLong, ConnectionsExhausted, AttributeOutOfRange (MTU),
  // DestinationGidZero, GidFamilyDiffers
  Result<wire::CommId, trace::Reason> connect(const ConnectRequest& request, Time now);
  Result<wire::CommId, trace::Reason> resolve(const ResolveRequest& request, Time now);

  // All of these: FAILS WITH ConnectionState, PrivateTooLong
  Done accept(wire::CommId id, const AcceptRequest& request, Time now);
  Done answer(wire::CommId id, const ResolveAnswer& resolution, Time now);
  // A ConnectRequest, a ResolveRequest or a Reply.
  Done reject(wire::CommId id, ConstBytes private_bytes, Time now);
  // A Reply; or that something has come from the peer although its RTU has not.
  Done establish(wire::CommId id, ConstBytes private_bytes, Time now);
  // Nothing happens if it is over already.
  Done disconnect(wire::CommId id, ConstBytes private_bytes, Time now);
  // Ends it as its state demands; the program forgets the id. REQUIRES: it holds the id.
  void destroy(wire::CommId id, Time now);

  // The process that has the block, at one of this port's own addresses, has ended without a word.
  void on_peer_ended(std::uint32_t block, const std::function<bool(const wire::Gid&)>& is_own,
                     Time now);

  // `mad` is the payload of a packet for queue pair 1 with kManagementQkey.
  void on_datagram(const Arrival& arrival, ConstBytes mad, Time now);
  void on_time(Time now);

  std::optional<Outgoing> poll_datagram();
  std::optional<Event> poll_event();
  Time next_deadline() const { return due_.empty() ? Time::never() : due_.begin()->first; }

  // Whether a request for the service at that address of the port comes to a listener.
  bool listens(wire::ServiceId service, const wire::Gid& address) const {
    return listener_of(service, address) != ListenerId{};
  }
  // Null if no program holds it.
  const Conversation* find(wire::CommId id) const;
  const Tally& tally() const { return tally_; }
  std::size_t conversations() const { return conversations_.size(); }

 private:
  struct Listener {
    ListenRequest request;
    std::uint32_t unanswered = 0;
    bool is_full_told = false;
  };
  // A peer's request: its address, its id, and whether it is a resolution.
  using RemoteKey = std::tuple<wire::Gid, wire::CommId, bool>;
  using QpKey = std::pair<wire::Gid, wire::Qpn>;
  using Dated = std::set<std::pair<Time, wire::CommId>>;

  // A datagram that is understood.
  struct Received {
    const Arrival& from;
    const wire::CmMad& mad;
    Time now;
  };

  // agent.cc
  Conversation* held(wire::CommId id);
  Result<Conversation*, trace::Reason> open(const wire::IpAddresses& addresses, const Path& path,
                                            const Patience& patience);
  void say(const Conversation& c, const wire::CmMadBytes& mad);
  void send(Conversation& c, const wire::CmMessage& message, std::uint32_t modifier = 0);
  void send_rej(Conversation& c, wire::CmSubject subject, wire::RejReason reason,
                ConstBytes private_bytes = {});
  void send_dreq(Conversation& c, ConstBytes private_bytes, Time now);
  void refuse_datagrams(Conversation& c, ConstBytes private_bytes, Time now);
  void tell(const Conversation& c, EventKind kind, ConstBytes private_bytes = {},
            const trace::Reason& reason = {}, std::uint16_t status = 0);

  // agent_receive.cc
  Conversation* find(const Arrival& from, wire::CommId local, wire::CommId remote,
                     bool is_resolution = false);
  Conversation* find_request(const wire::Gid& source, wire::CommId remote, bool is_resolution);
  bool admit(Conversation* c, const Received& in);
  void answer_unknown(const Received& in);
  void delay(const Conversation& c, wire::CmSubject subject);
  void reply(const Received& in, const wire::CmMessage& message);
  void refuse(const Received& in, const wire::CmReq& req, wire::RejReason reason,
              ConstBytes additional = {});
  ListenerId listener_of(wire::ServiceId service, const wire::Gid& address) const;
  bool find_room(ListenerId id);
  Conversation* open_passive(const Received& in, ListenerId listener, wire::CommId remote,
                             const Terms& terms);
  bool take_down_stale(const QpKey& key, Time now);
  void on(const Received& in, const wire::CmReq& req);
  void on(const Received& in, const wire::CmMra& mra);
  void on(const Received& in, const wire::CmRej& rej);
  void on(const Received& in, const wire::CmRep& rep);
  void on(const Received& in, const wire::CmRtu& rtu);
  void on(const Received& in, const wire::CmDreq& dreq);
  void on(const Received& in, const wire::CmDrep& drep);
  void on(const Received& in, const wire::CmSidrReq& req);
  void on(const Received& in, const wire::CmSidrRep& rep);

  // agent_patience.cc
  Conversation* create();
  void arm(Conversation& c, Time deadline);
  void await_answer(Conversation& c, Time now);
  void set_patience(Conversation& c, std::uint8_t response_timeout, std::uint8_t retries);
  void note_answered(Conversation& c);
  void send_again(Conversation& c, Time now);
  void give_up(Conversation& c, Time now);
  void establish_by_peer(Conversation& c, ConstBytes private_bytes);
  void end_established(Conversation& c, ConstBytes private_bytes, const trace::Reason& reason,
                       Time now);
  void linger(Conversation& c, Time now);
  void release_qp(const Conversation& c);
  void close(Conversation& c);
  void end_wait(Conversation& c);
  void trim();

  Settings settings_;
  Prng prng_;
  std::uint32_t last_listener_ = 0;
  std::map<ListenerId, Listener> listeners_;
  std::map<std::pair<wire::ServiceId, wire::Gid>, ListenerId> services_;
  std::map<wire::CommId, Conversation> conversations_;
  std::map<RemoteKey, wire::CommId> by_remote_;  // passive ones, until they are closed
  std::map<QpKey, wire::CommId> by_qp_;          // the peer's queue pairs in use
  Dated due_;                                    // by deadline
  Dated lingering_;                              // those of them that Limits::lingering is about
  std::deque<Outgoing> out_;
  std::deque<Event> events_;
  Tally tally_;
};

}  // namespace softhca::cm
