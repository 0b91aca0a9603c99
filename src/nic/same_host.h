// SameHost: what a device asks about other devices of its host, whose memory it can reach itself.
//
// A connection whose peer is on the same host needs no packets for one-sided requests: the
// initiator's device looks at the peer's published tables as the peer's own responder would, and
// moves the bytes. Whatever is not plainly allowed there goes as packets, and the responder says
// what it always says. Implemented by driver/live/neighbours; simulated hosts have none.
//
// See also  nic/queue_pair_direct.cc; ARCHITECTURE.md, "Processes of one host"
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "pcie/port.h"
#include "trace/reason.h"
#include "transport/attributes.h"
#include "wire/gid.h"
#include "wire/psn.h"

namespace softhca::nic {

// A reliable connection as both ends should know it.
struct Connection {
  wire::Qpn own;
  wire::Qpn peer;
  wire::Gid own_address;
  wire::Gid peer_address;
};

// A WRITE, READ or atomic.
struct DirectRequest {
  wire::Key rkey;
  std::uint64_t address{};  // as the key counts
  std::uint64_t bytes{};    // > 0
  std::uint64_t swap_or_add{};
  std::uint64_t compare{};
  bool is_inline{};  // its bytes in this process lie in memory of the device, which is always there
};

// The memory of one peer. Several connections may share it.
class Neighbour {
 public:
  virtual ~Neighbour() = default;

  // Executes requests of one kind (several WRITEs, one READ, one atomic) of a connection whose peer
  // has executed everything before the PSN `next`. Their bytes in this process are `local`, one
  // behind the other, as the device's own port resolved them. Returns how many, from the first on,
  // were executed; of the others nothing happened that may not happen again.
  virtual std::size_t execute(const Connection& connection, wire::Psn next,
                              transport::WorkOpcode kind, std::span<const DirectRequest> requests,
                              std::span<const pcie::Span> local, Time now) = 0;
};

class SameHost {
 public:
  virtual ~SameHost() = default;

  // The peer, if it is on this host and can be reached; else why not: None if it is elsewhere.
  struct Found {
    std::shared_ptr<Neighbour> neighbour;
    trace::ReasonId why_not{};
  };
  virtual Found find(const Connection& connection) = 0;

  // The owner's part: its tables allow less than before. Returns when nobody is in its memory any
  // more by what they allowed.
  virtual void wait_until_left() = 0;
  // From lock to unlock no peer executes an atomic.
  virtual void lock_atomics() = 0;
  virtual void unlock_atomics() = 0;
};

}  // namespace softhca::nic
