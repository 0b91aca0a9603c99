// World: several hosts under one clock and one seed.
//
// Nothing happens between two events: the clock jumps to the next one. The same seed and the same
// calls give the same journal, byte for byte.
//
// Threads  one
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sim/host.h"

namespace softhca::sim {

struct WorldSettings {
  std::uint64_t seed = 1;
  std::size_t hosts = 2;
  link::SimCosts network;
  HostSettings host;                // number, seed and journal are set for each
  std::vector<faults::Plan> plans;  // of faults, by host; the rest have none
  bool record = false;              // keep a journal
  bool ipv6 = false;
  std::size_t journal_events = std::size_t{1} << 16;  // that are kept; all of them are hashed
};

// One simple machine: PCIe Gen3 x8 and 100 Gb/s Ethernet. The numbers are in sim/constants.h.
HostSettings cited_host_costs();
link::SimCosts cited_network_costs();

class World {
 public:
  explicit World(const WorldSettings& settings);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Host& host(std::size_t i) { return *hosts_[i]; }
  std::size_t host_count() const { return hosts_.size(); }
  link::SimNetwork& network() { return *network_; }
  Time now() const { return now_; }
  // FNV-1a over all events so far; 0 unless recording.
  std::uint64_t journal_hash() const;
  const trace::Journal* journal() const { return journal_.get(); }
  trace::Journal* journal() { return journal_.get(); }

  // Lets every host do what is due now; if nothing is, moves the clock to the next event first.
  // False if there is none.
  bool step();
  // Steps until `done` holds; false if nothing is left to happen before `limit` has passed. The
  // clock then stands at the limit.
  bool run_until(const std::function<bool()>& done, Duration limit);
  // Lets so much time pass.
  void pass(Duration time) {
    run_until([] { return false; }, time);
  }

 private:
  bool run_instant();
  Time next_event() const;
  bool step_until(Time end);

  Time now_{};
  std::unique_ptr<trace::Journal> journal_;
  std::unique_ptr<link::SimNetwork> network_;
  std::vector<std::unique_ptr<Host>> hosts_;
};

// The Q_Key of datagram queue pairs that connect() makes.
inline constexpr std::uint32_t kWorldQkey = 0x1234;

// A connected pair of queue pairs, each with a completion queue of its own, in the states that a
// program would bring them to. XRC goes in one direction: there each end has two.
struct Connection {
  struct End {
    Host* host{};
    host::Pid program;
    std::uint32_t pd{};
    driver::CompletionQueue* cq{};
    driver::QueuePair* qp{};
    driver::SharedReceiveQueue* srq{};  // what it receives from; null: its own queue
    driver::QueuePair* target{};        // XRC: what the peer sends to; else null
    std::uint32_t xrcd{};               // of the target

    driver::QueuePair& hearing() const { return target != nullptr ? *target : *qp; }
    // FAILS WITH what Engine::post_receive says
    Result<void, trace::Reason> post_receive(const driver::ReceiveRequest& request, Time now) const;
  };
  End a;
  End b;
};

struct ConnectionSettings {
  transport::QpType type = transport::QpType::Rc;  // or Uc, Ud; XrcSend: XRC in both directions
  std::uint32_t mtu = 1024;
  std::uint32_t depth = 64;
  std::uint32_t sges = 4;
  std::uint32_t inline_bytes = 64;
  std::uint8_t timeout = 10;  // 4.2 ms
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry = 7;
  std::uint8_t min_rnr_timer = 1;  // 10 us
  std::uint8_t max_reads = 4;
  std::uint32_t access = 1 | 2 | 4 | 8;  // of the queue pairs
  std::uint8_t traffic_class = 0;        // what the address vector says
  wire::Psn psn_a{0xff'fff0};            // soon wraps
  wire::Psn psn_b{0x12'3456};
  driver::EventSink* events_a = nullptr;
  driver::EventSink* events_b = nullptr;
  std::uint32_t pd_a = 0;  // protection domains; 0: a new one
  std::uint32_t pd_b = 0;
  driver::SharedReceiveQueue* srq_b = nullptr;  // what `b` receives from; null: its own queue
  bool makes_shared_a = false;                  // a shared queue for this end alone
  bool makes_shared_b = false;
  host::Pid program_a;  // whose the ends are; none: the one that runs there
  host::Pid program_b;
};

// The programs of the ends run from now on; of one host, that of `b`.
// REQUIRES: both engines accept it.
Connection connect(World& world, Host& a, Host& b, const ConnectionSettings& settings = {});
// One end alone, as `a` of the settings: its peer is whoever has this address. REQUIRES: not XRC.
Connection::End connect_to(World& world, Host& host, const wire::Gid& peer, wire::Qpn peer_qpn,
                           const ConnectionSettings& settings);
// Destroys the queues of one end, as a program that is done. REQUIRES: its regions are gone,
// and nobody else receives from its shared queue.
void disconnect(World& world, const Connection::End& end);

}  // namespace softhca::sim
