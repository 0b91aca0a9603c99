// SendWork: a send request as the transport sees it, what becomes of it, and its packets.
//
// What reliable and unreliable connections have in common: a message is cut by the path MTU, and
// the first and last packets say more than the others.
//
// Spec  IBTA vol. 1, 9.2 to 9.4 (opcodes, RETH, immediate data, invalidate)
#pragma once
#include <cstdint>

#include "transport/attributes.h"
#include "transport/emission.h"

namespace softhca::transport {

struct SendWork {
  std::uint32_t work{};  // the device's number of the request; comes back in PayloadRef, Completion
  WorkOpcode opcode{};
  std::uint64_t bytes{};
  std::uint64_t remote_address{};
  wire::Key rkey;
  std::uint32_t immediate{};
  std::uint32_t xrc_srqn{};     // XRC
  std::uint64_t swap_or_add{};  // atomics
  std::uint64_t compare{};
  bool signaled{};
  bool solicited{};
  bool fence{};
  // Set: the request is refused locally. It fails with `status` when all before it are done.
  Status status = Status::Success;
  trace::Reason reason{};
};

struct SendCompletion {
  std::uint32_t work{};
  Status status{};
  bool signaled{};
  trace::Reason reason{};
};

// How many packets the message takes; work on the device's own keys takes none.
std::uint64_t packets_of(const SendWork& work, std::uint32_t mtu);

// Packet `index` of a message of `work`: all but destination, PSN and the request for an ACK.
// REQUIRES: index < packets_of(work, mtu); a SEND or a WRITE.
Emission message_packet(wire::Service service, const SendWork& work, std::uint64_t index,
                        std::uint32_t mtu);

}  // namespace softhca::transport
