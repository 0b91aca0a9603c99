// QpCounters: what one queue pair did, one number a row.
//
// They lie in the record that the device publishes of the queue pair (nic/records.h). The transport
// adds to them where it happens; anybody may read.
//
// See also  counters.h: the same for the whole device
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/clock.h"

namespace softhca::trace {

// Rows keep their order for ever: readers of another build index by it. Add at the end.
enum class QpCounter : std::uint16_t {
  PacketsSent,
  BytesSent,
  PacketsReceived,
  BytesReceived,
  // The sending half.
  Retransmits,
  Timeouts,
  AcksReceived,
  SequenceNaksReceived,
  InvalidRequestNaksReceived,
  RemoteAccessNaksReceived,
  RemoteOperationalNaksReceived,
  RnrNaksReceived,
  RnrWaits,
  RnrWaitPs,
  WindowFullPs,
  // The receiving half.
  AcksSent,
  SequenceNaksSent,
  InvalidRequestNaksSent,
  RemoteAccessNaksSent,
  RemoteOperationalNaksSent,
  RnrNaksSent,
  Duplicates,
  OutOfOrder,
  // Congestion: the notification point, the reaction point.
  EcnMarked,
  CnpsSent,
  CnpsHandled,
  CnpsIgnored,
  // One-sided requests to a peer on this host.
  DirectRequests,
  DirectBytes,
  Count_,
};

inline constexpr std::size_t kQpCounterCount = static_cast<std::size_t>(QpCounter::Count_);

struct QpCounterInfo {
  QpCounter counter;
  std::string_view name;  // as in `softhca stat --json`
  bool is_time;           // picoseconds
  std::string_view text;
};

extern const std::array<QpCounterInfo, kQpCounterCount> kQpCounters;

class QpCounters {
 public:
  void add(QpCounter counter, std::uint64_t n = 1) {
    cells_[static_cast<std::size_t>(counter)] += n;
  }
  void add(QpCounter counter, Duration time) { add(counter, static_cast<std::uint64_t>(time.ps)); }
  std::uint64_t get(QpCounter counter) const { return cells_[static_cast<std::size_t>(counter)]; }

 private:
  // With room for rows to come, so that the record keeps its size.
  static constexpr std::size_t kRoom = 32;
  static_assert(kQpCounterCount <= kRoom);
  std::array<std::uint64_t, kRoom> cells_{};
};

}  // namespace softhca::trace
