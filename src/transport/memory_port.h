// MemoryPort: what the transport asks of the device around it. Implemented by nic/queue_pair.
//
// While a packet is being admitted, the device holds its payload; `place` puts it somewhere.
#pragma once
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "trace/reason.h"
#include "transport/emission.h"

namespace softhca::transport {

enum class RemoteRight : std::uint8_t { Read, Write, Atomic };

// What to do to the eight bytes at `address`. Numbers, in no byte order.
struct AtomicOperation {
  static AtomicOperation of(const wire::OpcodeInfo& info, const wire::Headers& headers) {
    return {.is_swap = info.operation == wire::Operation::CompareSwap,
            .key = headers.rkey,
            .address = headers.remote_address,
            .swap_or_add = headers.swap_or_add,
            .compare = headers.compare};
  }
  bool is_swap{};  // swap if they equal `compare`; else add, modulo 2^64
  wire::Key key;
  std::uint64_t address{};
  std::uint64_t swap_or_add{};
  std::uint64_t compare{};
  friend bool operator==(const AtomicOperation&, const AtomicOperation&) = default;
};

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

  // XRC: may a request to this queue pair name the shared receive queue `srqn`?
  virtual trace::Reason check_shared_queue(std::uint32_t srqn) = 0;

  // Writes the payload in hand to where `to` says.
  virtual trace::Reason place(const PayloadRef& to) = 0;

  // Executes it as one step among all queue pairs of the device; gives what lay there before.
  virtual Result<std::uint64_t, trace::Reason> execute_atomic(const AtomicOperation& atomic) = 0;

  // A peer's request to make a key of this device unusable.
  virtual trace::Reason invalidate(wire::Key key) = 0;

  // Executes send request `work`, which is_local().
  virtual trace::Reason execute_local(std::uint32_t work) = 0;

  // Takes the next posted receive; nothing if there is none.
  virtual std::optional<ReceiveSlot> take_receive() = 0;
};

}  // namespace softhca::transport
