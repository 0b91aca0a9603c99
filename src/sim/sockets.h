// Sockets: the same bytes between the same programs by way of both kernels, as a baseline.
//
// The sender's processor copies them out of the program into buffers of the kernel; its NIC
// fetches those by DMA; the receiver's NIC puts them into buffers of its kernel and interrupts;
// the program is woken, and its processor copies them once more. Bytes, frames, mappings and
// copies are real; what the processors do besides is priced (sim/constants.h).
//
// Left out, which favours sockets: acknowledgements, connection set-up, retransmission.
#pragma once
#include <cstdint>
#include <vector>

#include "sim/constants.h"
#include "sim/transfer.h"

namespace softhca::sim {

// What one side of a socket transfer did.
struct SocketSide {
  Host::Counts counted{};
  std::uint64_t system_calls{};
  Duration cpu_busy;
};

struct SocketResult {
  SocketSide client, server;
  Duration took;  // until the program has its last byte
  bool arrived = false;
};

class SocketPath {
 public:
  // From the transfer's source to its target. The kernels' buffers are taken here.
  explicit SocketPath(Transfer& transfer);
  ~SocketPath();
  SocketPath(const SocketPath&) = delete;
  SocketPath& operator=(const SocketPath&) = delete;

  // Moves the whole buffer, from the world's time on; the clock then stands behind it. `slept` is
  // for how long the receiving program has waited.
  SocketResult move(Duration slept);

 private:
  // A frame of the kernel, mapped for the NIC.
  struct Buffer {
    PhysAddr frame;
    host::DmaMapping mapping;
  };

  Buffer take_buffer(const TransferEnd& end, host::BusRights rights);
  void release(const TransferEnd& end, const Buffer& buffer);

  Transfer& transfer_;
  const TransferEnd& from_;
  const TransferEnd& to_;
  std::vector<Buffer> receive_ring_;
  Time wire_busy_;
};

// What both ends counted from the posting on; and of sockets, if they were run.
std::vector<LedgerRow> ledger_of(const Transfer& transfer, const SocketResult* sockets = nullptr);

// `transfers` of the buffer by each of the two ways, at irregular times.
std::vector<WaySummary> compare_ways(Transfer& transfer, std::uint32_t transfers);

}  // namespace softhca::sim
