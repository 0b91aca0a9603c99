// Event: one thing that happened, as a 64-byte record. The list is closed.
//
// Records are little-endian, have no pointers and no padding, and mean the same on every machine:
// pictures, prices and texts are made from them elsewhere. The names of the fields of each kind
// are in the table, and a file of records carries that table (trace/journal.h).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "base/clock.h"

namespace softhca::trace {

// Rows keep their order for ever. Add at the end.
enum class EventKind : std::uint16_t {
  None,
  Register,
  Deregister,
  Pin,
  Unpin,
  IommuMap,
  IommuUnmap,
  IotlbHit,
  IotlbMiss,
  IommuFault,
  DmaRead,
  DmaWrite,
  Tlp,
  Doorbell,
  WqeFetch,
  KeyCheck,
  KeyRefusal,
  Cqe,
  Eqe,
  Interrupt,
  PacketSent,
  PacketReceived,
  PacketDropped,
  Retransmit,
  Timeout,
  QpState,
  Refusal,
  CpuCopy,
  // What only a modelled machine sees: its processor, its kernel, its bus.
  MmuWalk,
  TlbHit,
  TlbShootdown,
  PageFault,
  FrameMoved,
  FrameKept,
  FrameOrphaned,
  SwapOut,
  SwapIn,
  PageCopied,
  SystemCall,
  IotlbInvalidate,
  StaleTranslation,
  PeerAccess,
  ConfigWrite,
  // Accesses to memory on the device, which no bus sees.
  DeviceMemory,
  // The device asked for a page that is mapped on demand.
  PageRequest,
  // The peer had no receive ready; told when the wait is over.
  RnrWait,
  // A line that the device told, or would have: what it is about, then its text, in pieces.
  Told,
  ToldText,
  // A fault of a plan hit something.
  FaultInjected,
  // A one-sided request was executed in the memory of a peer on this host.
  Direct,
  // A peer on this host has filled a receive, and said so.
  Placed,
  Count_,
};

inline constexpr std::size_t kEventKindCount = static_cast<std::size_t>(EventKind::Count_);
inline constexpr std::size_t kEventFields = 5;

struct Event {
  std::int64_t time_ps{};
  EventKind kind{};
  std::uint16_t host{};      // which host of a simulated world; 0 live
  std::uint32_t object{};    // QPN, key, CQN: see the table
  std::uint64_t sequence{};  // position in the recording, gap-free
  std::array<std::uint64_t, kEventFields> fields{};

  friend bool operator==(const Event&, const Event&) = default;
};
static_assert(sizeof(Event) == 64 && std::is_trivially_copyable_v<Event>);
static_assert(std::has_unique_object_representations_v<Event>, "no padding");

struct EventInfo {
  EventKind kind;
  std::string_view name;
  std::string_view object;                            // what `object` names, "" if nothing
  std::array<std::string_view, kEventFields> fields;  // "" where unused
};

extern const std::array<EventInfo, kEventKindCount> kEvents;

}  // namespace softhca::trace
