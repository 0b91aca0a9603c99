// MemoryPort: what the transport asks of the device around it. Implemented by nic/queue_pair.
//
// While a packet is being admitted, the device holds its payload; `place` puts it somewhere.
#pragma once
#include <cstdint>
#include <optional>

#include "trace/reason.h"
#include "transport/emission.h"

namespace softhca::transport {

enum class RemoteRight : std::uint8_t { Read, Write };

// A receive work request that was taken off the receive queue.
struct ReceiveSlot {
  std::uint32_t work{};
  std::uint64_t capacity_bytes{};
  trace::Reason broken{};  // the request itself makes no sense or names a bad lkey
};

class MemoryPort {
 public:
  virtual ~MemoryPort() = default;

  // May the peer of this queue pair access [address, +bytes) under `key`? Byte-exact; moves
  // nothing. Not asked for 0 bytes (C9-88: the key of an empty access is not checked).
  virtual trace::Reason check_remote(RemoteRight right, wire::Key key, std::uint64_t address,
                                     std::uint64_t bytes) = 0;

  // Writes the payload in hand to where `to` says.
  virtual trace::Reason place(const PayloadRef& to) = 0;

  // Takes the next posted receive; nothing if there is none.
  virtual std::optional<ReceiveSlot> take_receive() = 0;
};

}  // namespace softhca::transport
