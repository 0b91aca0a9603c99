// Where the bytes of a message go in the memory of a peer of this host: into the receive that it
// has posted next, or, of a WRITE with an immediate, where that says. What its responder would read
// of its ring is read here, several at once.
//
// Threads  the owner of the device, inside the peer's memory (local/accessors.h)
#pragma once
#include <cstdint>

#include "driver/peer_tables.h"
#include "nic/same_host.h"

namespace softhca::driver {

// Appends where `bytes` of the part belong. Yes; NoReceive if the peer has posted none; No if it
// does not take the message plainly: what is wrong it says itself.
// REQUIRES: `receives` are those of the peer's queue pair `qpn`, in process `pid`.
nic::Delivered locate_message(const PeerTables& tables, std::uint32_t pid,
                              const PeerTables::Receives& receives, wire::Qpn qpn,
                              const nic::Delivery& part, std::uint64_t bytes,
                              nic::PostedReceives& known, pcie::SpanList& into);

}  // namespace softhca::driver
