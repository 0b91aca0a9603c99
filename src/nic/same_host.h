// SameHost: what a device asks about other devices of its host, whose memory it can reach itself.
//
// A connection whose peer is on the same host needs no packets for one-sided requests: the
// initiator's device looks at the peer's published tables as the peer's own responder would, and
// moves the bytes. Nor do messages: the bytes of a SEND go into the receive that the peer has
// posted next; the peer is then told, and completes it. Whatever is not plainly allowed goes as
// packets, and the responder says what it always says. Implemented by driver/live/neighbours;
// simulated hosts have none.
//
// See also  nic/queue_pair_direct.cc; ARCHITECTURE.md, "Processes of one host"
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
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

// The receive that a message takes.
struct NextReceive {
  std::uint32_t number{};      // of the work request, modulo 2^32
  std::uint32_t generation{};  // of the peer's queue pair, which counts anew when it was reset
  friend bool operator==(const NextReceive&, const NextReceive&) = default;
};

// A part of a message, or all of it: a SEND, or a WRITE with an immediate.
struct Delivery {
  NextReceive receive;
  std::uint64_t message_bytes{};
  std::uint64_t offset{};  // of the part
  bool is_inline{};        // as above
  bool is_write{};         // its bytes do not go into that, but there
  wire::Key rkey{};
  std::uint64_t address{};  // of the message, as the key counts
};
// Never: the peer has no receive queue of its own.
enum class Delivered : std::uint8_t { Yes, No, NoReceive, Never };

// Some of the receives that the peer has posted, as they lie in its ring: those do not change.
struct PostedReceives {
  std::uint32_t generation{};  // of the peer's queue pair
  std::uint32_t first{};       // number of the first one
  std::vector<std::byte> slots;
};

// How a device tells its peer that it has filled one of its receives. A notice stands for all
// packets of a message whose bytes are where they belong already, and takes their place in the
// memory between both devices, behind what went before. It never leaves the host; neither a PSN nor
// an acknowledgement belongs to it. IBTA vol. 1, 9.2.1: opcodes that begin with 110 are left to
// manufacturers.
struct PlacedNotice {
  static constexpr std::uint8_t kOpcode = 0xc0;
  static constexpr std::uint8_t kWithImmediate = 1, kSolicited = 2, kWrite = 4;

  std::uint8_t opcode = kOpcode;
  std::uint8_t flags{};
  std::uint16_t reserved1{};
  std::uint32_t qpn_be{};  // whose receive it is, where a BTH has its destination
  std::uint32_t reserved2{};
  std::uint32_t bytes{};    // of the message
  std::uint32_t receive{};  // which work request, modulo 2^32
  std::uint32_t generation{};
  std::uint32_t immediate{};
  std::uint32_t no_icrc{};  // where a packet has one

  wire::Qpn qpn() const { return {byte_swapped(qpn_be) & wire::kMask24}; }
  void set_qpn(wire::Qpn qpn) { qpn_be = byte_swapped(qpn.value); }
  bool has(std::uint8_t flag) const { return (flags & flag) != 0; }

  // Nothing if the frame is anything else.
  static std::optional<PlacedNotice> of(ConstBytes frame) {
    if (frame.size() != sizeof(PlacedNotice) || load_le<std::uint8_t>(frame) != kOpcode)
      return std::nullopt;
    return load_le<PlacedNotice>(frame);
  }
};
static_assert(sizeof(PlacedNotice) == 32 && std::has_unique_object_representations_v<PlacedNotice>);

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

  // It is this process, and the peer is one of our own queue pairs.
  virtual bool is_self() const { return false; }

  // Something for that queue pair of the peer is about to come: asks for what will be read of it.
  virtual void prefetch(wire::Qpn) const {}

  // The receive that the connection's next message takes, of a peer that has executed everything
  // before the PSN `next`, and taken what it was told of.
  virtual std::optional<NextReceive> next_receive(const Connection& connection, wire::Psn next) = 0;

  // Places a part of a message, whose bytes are `local`. With the last part comes `tell`, which is
  // called when they are in place; its answer is false if the peer could not be told.
  virtual Delivered deliver(const Connection& connection, wire::Psn next, const Delivery& what,
                            std::span<const pcie::Span> local, PostedReceives& known,
                            const std::function<bool()>& tell, Time now) = 0;
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
