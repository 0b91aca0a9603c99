// PeerTables: the published tables of another device of this host, as an initiator asks them.
//
// What the peer's responder would check for a request that comes as packets is checked here, of
// its own records: queue pair, key, bounds, page. A yes is plain; everything else is a no, and the
// request goes as packets. The memory is another process's: what counts is read once into a copy,
// and no number in it is believed before it is known to lie within the tables.
//
// Threads     any; the peer may be changing what is read, see Invariants
// Invariants  a yes holds until the accessor leaves (local/accessors.h), if it had entered before
// See also    nic/records.h; ARCHITECTURE.md, "Processes of one host"
#pragma once
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "driver/table_memory.h"
#include "nic/key_table.h"
#include "nic/same_host.h"
#include "pcie/port.h"
#include "transport/attributes.h"

namespace softhca::driver {

class PeerTables {
 public:
  // Nothing if it is not a device's tables of this version. OWNS nothing.
  static std::optional<PeerTables> over(ConstBytes memory);

  const TableHeader& header() const { return header_; }

  // The protection domain of the other end of the connection, if it takes a request of this kind
  // now, and has executed all before the PSN `next`.
  std::optional<std::uint32_t> domain_of(const nic::Connection& connection, wire::Psn next,
                                         transport::WorkOpcode kind) const;

  // The receive queue of the other end of the connection, if it takes messages now, and has
  // executed all before the PSN `next`.
  struct Receives {
    std::uint32_t pd{};
    bool may_write{};            // its own right
    std::uint32_t generation{};  // of its queue pair
    std::uint32_t posted{};      // modulo 2^32
    BusAddr ring;
    std::uint32_t slots{};  // 0: it has none of its own; else a power of two
    std::uint32_t stride{};
  };
  std::optional<Receives> receives_of(const nic::Connection& connection, wire::Psn next) const;
  // The first of them that is not done. Likewise.
  std::optional<nic::NextReceive> next_receive(const nic::Connection& connection,
                                               wire::Psn next) const;
  // Asks for the cache lines that these need.
  void prefetch(wire::Qpn qpn) const;
  // Appends where in the peer's process bytes lie that its device reads. False as locate().
  bool locate_ring(BusAddr at, std::uint64_t bytes, pcie::SpanList& into) const {
    return translate(at, bytes, pcie::Direction::Read, into);
  }

  // Appends where in the peer's process the bytes of an access by its queue pair `qpn` are. False
  // if it is not plainly allowed, or there is no room for more pieces.
  bool locate(const nic::KeyAccess& access, wire::Qpn qpn, pcie::SpanList& into) const;

 private:
  PeerTables(ConstBytes memory, const TableHeader& header) : memory_(memory), header_(header) {}
  const nic::QpRecord* other_end(const nic::Connection& connection, wire::Psn next,
                                 nic::Expected& expected) const;
  std::optional<nic::KeyRecord> record(std::uint32_t index) const;
  bool locate_in_region(const nic::KeyRecord& region, std::uint64_t address, std::uint64_t bytes,
                        pcie::Direction direction, pcie::SpanList& into) const;
  bool translate(BusAddr at, std::uint64_t bytes, pcie::Direction direction,
                 pcie::SpanList& into) const;

  ConstBytes memory_;
  TableHeader header_;  // as it was looked at once
};

}  // namespace softhca::driver
