// Counters: what the device did, one number a row; they prove that each byte took the whole chain.
//
// The numbers lie in memory that the owner provides (live: the process's table memfd, so that
// `softhca stat` can read them without asking). One owner adds; anybody may read.
//
// See also  ARCHITECTURE.md, "Tables"; cli/command_stat.cc
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace softhca::trace {

// Rows keep their order for ever: readers of another build index by it. Add at the end.
enum class Counter : std::uint16_t {
  RegionsRegistered,
  RegionsDeregistered,
  BytesRegistered,
  PagesPinned,
  PagesUnpinned,
  PagesCountedNotPinned,
  IommuLeavesMapped,
  IommuLeavesUnmapped,
  IommuTablePages,
  IotlbHits,
  IotlbMisses,
  IommuFaults,
  DmaReads,
  DmaReadBytes,
  DmaWrites,
  DmaWriteBytes,
  TlpMemoryReads,
  TlpMemoryWrites,
  TlpCompletions,
  Doorbells,
  WqesFetched,
  KeyChecks,
  KeyRefusals,
  CqesWritten,
  EqesWritten,
  Interrupts,
  PacketsSent,
  PacketBytesSent,
  PacketsReceived,
  PacketBytesReceived,
  PacketsDropped,
  PacketsMalformed,
  IcrcErrors,
  IcrcSolved,
  AcksSent,
  AcksReceived,
  NaksSent,
  NaksReceived,
  RnrNaksSent,
  RnrNaksReceived,
  Retransmits,
  Timeouts,
  Duplicates,
  OutOfOrder,
  PacketsForwardedOut,
  PacketsForwardedIn,
  CpuCopies,
  CpuCopyBytes,
  Wakeups,
  SendErrors,
  StaleTranslations,
  PeerAccesses,
  QkeyMismatches,
  DatagramsDropped,
  RawFramesSent,
  RawFramesReceived,
  RawFramesDropped,
  CompletionsLost,
  DeviceMemoryReads,
  DeviceMemoryWrites,
  UnreliableDropped,
  PageRequests,
  PageRequestsRefused,
  RawFramesOut,
  RawFramesIn,
  UnknownQpn,
  PacketsFaulted,
  WorkFaulted,
  RequestsFaulted,
  AccessesFaulted,
  SocketDrops,
  EcnMarked,
  CnpsSent,
  CnpsHandled,
  CnpsIgnored,
  CmMalformed,
  CmUnknown,
  CmDuplicates,
  CmRequestsDropped,
  CmRequestsRefused,
  CmResent,
  DirectRequests,
  DirectBytes,
  RingPacketsSent,
  RingPacketsReceived,
  DirectInFrames,
  FramesMoved,
  FramesReturned,
  FramesOrphaned,
  MessagesPlaced,
  Count_,
};

inline constexpr std::size_t kCounterCount = static_cast<std::size_t>(Counter::Count_);

struct CounterInfo {
  Counter counter;
  std::string_view name;  // as in `softhca stat --json`
  std::string_view text;
};

extern const std::array<CounterInfo, kCounterCount> kCounters;

class Counters {
 public:
  // OWNS nothing; `cells` outlives this object. REQUIRES: cells.size() >= kCounterCount.
  explicit Counters(std::span<std::uint64_t> cells) : cells_(cells.data()) {}

  void add(Counter counter, std::uint64_t n = 1) {
    std::atomic_ref<std::uint64_t> cell(cells_[static_cast<std::size_t>(counter)]);
    cell.store(cell.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  std::uint64_t get(Counter counter) const {
    return std::atomic_ref<std::uint64_t>(cells_[static_cast<std::size_t>(counter)])
        .load(std::memory_order_relaxed);
  }

 private:
  std::uint64_t* cells_;
};

}  // namespace softhca::trace
