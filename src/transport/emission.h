// Emission: a packet that should leave now: its headers, and where its payload lies.
//
// Transport never sees payload bytes. It names them by a PayloadRef; the device resolves that to
// memory, reads it over the bus, and appends the ICRC.
#pragma once
#include <cstdint>

#include "trace/reason.h"
#include "wire/packet.h"

namespace softhca::transport {

// Where a packet's payload comes from, or goes to.
struct PayloadRef {
  enum class Place : std::uint8_t {
    None,
    SendWork,     // the scatter list of send work request `work`, from `offset` on
    ReceiveWork,  // the scatter list of receive work request `work`, from `offset` on
    Region,       // `key` and `address`: memory that a peer named
  };
  Place place = Place::None;
  std::uint32_t work{};
  std::uint64_t offset{};
  wire::Key key;
  std::uint64_t address{};
  std::uint32_t bytes{};
  std::uint32_t srqn{};  // Region, XRC: the shared receive queue whose domain the key is of
  std::uint64_t left{};  // bytes of the same message behind these; to be sent: that may follow now
  friend bool operator==(const PayloadRef&, const PayloadRef&) = default;
};

struct Emission {
  wire::Headers headers;  // bth.pad is set; dest_qpn and pkey too
  PayloadRef payload;
  bool again{};  // a retransmission
};

}  // namespace softhca::transport
