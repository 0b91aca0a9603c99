// Injector: says, for every packet, request and access of a device, which faults of a plan hit it.
//
// Each fault counts what fits it and draws from a stream of its own, whatever the others do: the
// same plan and the same packets in the same order give the same hits, and another fault in the
// plan changes none of them. What hits is counted and becomes an event.
//
// Threads  owned by the device's owner
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/bytes.h"
#include "base/prng.h"
#include "base/range.h"
#include "faults/plan.h"
#include "trace/journal.h"
#include "wire/gid.h"
#include "wire/packet.h"

namespace softhca::faults {

class Injector {
 public:
  // `tracer` outlives this.
  Injector(Plan plan, trace::Tracer& tracer);

  // The cable has something to do.
  bool spoils_packets() const { return spoils_packets_; }

  struct PacketFate {
    bool is_lost{};
    bool is_doubled{};
    Duration late{};
    std::uint32_t passed_by{};               // waits for so many of its queue pair
    std::optional<std::uint64_t> flipped{};  // bit
    std::optional<std::size_t> kept{};       // bytes
  };
  // A packet from, or to, `peer`. REQUIRES: a side.
  PacketFate on_packet(Side side, const wire::Gid& peer, ConstBytes packet, Time now);

  struct WorkFate {
    std::uint8_t status{};
    trace::Reason reason{};  // none: it is done as usual
  };
  WorkFate on_work(wire::Qpn qpn, std::uint8_t opcode, std::uint64_t wr_id, Time now);

  // A request has come for the responder. Until when it answers nothing; Time{0}: it answers.
  Time on_request(wire::Qpn qpn, const wire::Bth& bth, Time now);
  // The request needs a receive. True: there shall be none.
  bool denies_receive(wire::Qpn qpn, const wire::Bth& bth, Time now);

  struct AccessFate {
    Duration late{};
    trace::Reason reason{};  // none: it goes through
  };
  // REQUIRES: a side; at least one byte.
  AccessFate on_access(Side side, Range<BusSpace> access, Time now);

  // The device's queue pairs, and whom they are connected to.
  void note_queue_pair(wire::Qpn qpn);
  void note_peer(wire::Qpn qpn, wire::Qpn peer);
  void forget_queue_pair(wire::Qpn qpn);
  // What the driver registers, for faults of a region. One that is known has moved.
  void note_region(wire::Key key, Range<BusSpace> at);
  void forget_region(wire::Key key);

  // " Injected by fault 2 of plan.toml, line 9."
  std::string origin_text(std::uint32_t number) const;
  // " 3 faults of plan.toml were injected before." Nothing, if none was.
  std::string so_far_text() const;

 private:
  struct Entry {
    Fault fault;
    std::uint32_t number{};  // from 1
    Prng prng;
    std::uint64_t fitted = 0;
    std::uint64_t hits = 0;
  };
  struct Severed {
    wire::Gid peer;
    Time until;
    std::uint32_t number{};  // of the fault
  };
  struct QueuePair {
    wire::Qpn qpn;
    std::uint32_t number{};
    wire::Qpn peer;
  };
  struct Region {
    wire::Key key;
    std::uint32_t number{};
    Range<BusSpace> at;
  };
  // What an event says beside the fault.
  struct About {
    std::uint32_t object{};  // queue pair
    std::uint64_t at{};      // PSN, wr_id or bus address
    std::uint64_t opcode{};
  };

  bool fits(const Fault& fault, wire::Qpn qpn, std::uint8_t opcode) const;
  bool fits(const Fault& fault, wire::Qpn qpn, std::uint8_t opcode, wire::Psn psn) const;
  wire::Qpn own_end(Side side, ConstBytes packet) const;
  static bool is_turn(Entry& entry);
  void hit(const Entry& entry, trace::Counter counter, const About& about, Time now);
  void mark(Entry& entry, ConstBytes packet, PacketFate& fate) const;
  bool is_in_region(const Fault& fault, Range<BusSpace> access) const;
  const Severed* find_severed(const wire::Gid& peer, Time now);

  std::string name_;
  std::vector<Entry> entries_;
  trace::Tracer& tracer_;
  bool spoils_packets_ = false;
  std::uint64_t injected_ = 0;
  std::vector<Severed> severed_;
  std::vector<QueuePair> queue_pairs_;
  std::uint32_t queue_pairs_seen_ = 0;
  std::vector<Region> regions_;
  std::uint32_t regions_seen_ = 0;
};

}  // namespace softhca::faults
