// Connections: the connection manager of a device: its agent, the datagrams of queue pair 1, the
// names by which other processes of this host find who listens, and who hears of what.
//
// A listener of every address opens them all, also those that the port gets later. Datagrams leave
// from one UDP port after the other, so that an answer which the kernel gives to a process that is
// stopped comes to another one when it is asked for again.
//
// Who asks for a service that nobody listens to is refused a little later: many a server begins to
// listen when its client knows the port already (perftest, qperf), and clients made of software are
// fast.
//
// A peer that is another process of this host is watched: if it is killed, what would come from it
// is said here. Peers on other hosts are found out by who sends to them.
//
// Threads     owned by the device's owner
// Invariants  (1) a conversation has a sink until it is destroyed, or it is destroyed at once
//             (2) after every call with a `now` nothing is left in the agent that could be told
// See also    cm/agent.h, ARCHITECTURE.md, "Connections are made by a machine of their own"
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "base/prng.h"
#include "cm/agent.h"
#include "cm/event.h"
#include "driver/attributes.h"
#include "driver/engine_parts.h"
#include "nic/device.h"

namespace softhca::driver {

class Connections {
 public:
  using Done = cm::Agent::Done;
  using Id = Result<wire::CommId, trace::Reason>;
  // Hears why something was refused or did not come about.
  using Teller = std::function<void(std::string_view what, const trace::Reason&)>;

  // REQUIRES: `parts` and `device` live longer.
  Connections(const EngineParts& parts, nic::Device& device, Teller tell);
  ~Connections();

  // See abi/connections.h. `request` is for an address of the port, or for all.
  Result<cm::ListenerId, trace::Reason> listen(const cm::ListenRequest& request,
                                               cm::ConnectionSink& sink);
  void set_backlog(cm::ListenerId listener, std::uint32_t backlog);
  void close(cm::ListenerId listener);
  // See abi/connections.h. REQUIRES: the sink lives longer
  void watch_removal(cm::ConnectionSink& sink) { watchers_.push_back(&sink); }
  Id connect(const cm::ConnectRequest& request, cm::ConnectionSink& sink, Time now);
  Id resolve(const cm::ResolveRequest& request, cm::ConnectionSink& sink, Time now);
  Done accept(wire::CommId id, const cm::AcceptRequest& request, Time now);
  Done answer(wire::CommId id, const cm::ResolveAnswer& resolution, Time now);
  Done reject(wire::CommId id, ConstBytes private_bytes, Time now);
  Done establish(wire::CommId id, ConstBytes private_bytes, Time now);
  Done disconnect(wire::CommId id, ConstBytes private_bytes, Time now);
  void destroy(wire::CommId id, Time now);

  // What has come to queue pair 1; what follows from it is done by progress().
  void on_datagram(const nic::Device::ManagementDatagram& datagram, Time now);
  // The first packet of a connection has come to the queue pair, its RTU perhaps not.
  void on_traffic(wire::Qpn qpn, Time now);
  void set_port(const PortAttributes& port, std::span<const GidEntry> gids);
  // Its interface has gone, or the device has stopped. Told once, to those who watch.
  void tell_removal(const trace::Reason& why);
  // Finds out which processes of this host have ended, and can say nothing more.
  void look_for_ended(Time now);
  // The program ends: peers hear so.
  void disconnect_all(Time now);

  // True if there was anything to do.
  bool progress(Time now);
  Time next_deadline() const;

  const cm::Agent& agent() const { return agent_; }

 private:
  struct Ended {
    std::uint32_t block{};
    Time believed_from{};
  };
  struct Listening {
    cm::ConnectionSink* sink{};
    wire::ServiceId service{};
    wire::Gid address{};
  };
  // A request for a service that nobody listens to yet.
  struct Held {
    Time until{};
    wire::Datagram from;
    std::vector<std::byte> packet;
  };
  bool hold(const nic::Device::ManagementDatagram& datagram, Time now);
  void let_go(Time now);
  void hear(const wire::Datagram& from, wire::Qpn source_qpn, ConstBytes mad, Time now);
  // Begins a conversation over the path: what call() gives, whose events go to the sink.
  template <class Call>
  Id begin(const cm::Path& path, cm::ConnectionSink& sink, Time now, Call&& call);
  // What call() gives; then what follows from it is done.
  template <class Call>
  auto settled(Time now, Call&& call);
  void settle(Time now);
  Result<void, trace::Reason> open_addresses(const wire::Gid& address);
  bool is_own(const wire::Gid& address) const;
  void watch_peer(wire::CommId id, Time now);
  void give_back(const Listening& listening);
  void hand_out(const cm::Event& event, Time now);
  void send_datagrams(Time now);
  void count();

  const EngineParts& parts_;
  nic::Device& device_;
  Teller tell_;
  cm::Agent agent_;
  std::vector<wire::Gid> addresses_;  // of the port
  std::map<cm::ListenerId, Listening> listeners_;
  std::map<wire::CommId, cm::ConnectionSink*> sinks_;
  std::vector<cm::ConnectionSink*> watchers_;
  std::map<wire::Qpn, wire::CommId> unconfirmed_;  // accepted, and nothing has come since
  std::deque<cm::Outgoing> waiting_;               // for room in the device
  std::deque<Held> held_;                          // in this order
  bool has_heard_ = false;                         // since progress() was last called
  bool is_removed_ = false;
  std::uint32_t sent_ = 0;
  Time next_look_{};         // for peers that have ended
  std::deque<Ended> ended_;  // in this order
  cm::Tally counted_{};      // what the device's counters have taken over
};

}  // namespace softhca::driver
