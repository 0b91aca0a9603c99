#include "driver/live/peer_receives.h"

#include <algorithm>
#include <array>

#include "base/range.h"
#include "driver/live/peer_frames.h"
#include "nic/key_table.h"
#include "nic/ring_format.h"
#include "os/peer_memory.h"

namespace softhca::driver {

using nic::Delivered;

namespace {

constexpr std::uint64_t kFetchedBytes = 16384;  // at once, of a ring

// How many of the slots that are known lie before the one with this number; all, if it is not
// known.
std::uint64_t bytes_before(const PeerTables::Receives& receives, std::uint32_t number,
                           const nic::PostedReceives& known) {
  if (known.generation != receives.generation) return known.slots.size();
  const std::uint64_t at = std::uint64_t{number - known.first} * receives.stride;
  return at + receives.stride <= known.slots.size() ? at : known.slots.size();
}

// Those from `number` on that lie behind each other in the ring.
bool fetch(const PeerTables& tables, std::uint32_t pid, const PeerTables::Receives& receives,
           std::uint32_t number, nic::PostedReceives& known) {
  const std::uint32_t slot = number & (receives.slots - 1);
  const std::uint64_t count = std::min<std::uint64_t>(
      {receives.posted - number, receives.slots - slot, kFetchedBytes / receives.stride});
  known.slots.clear();
  pcie::SpanList spans;
  const BusAddr at = advance(receives.ring, std::uint64_t{slot} * receives.stride);
  if (!tables.locate_ring(at, count * receives.stride, spans)) return false;
  known.slots.resize(count * receives.stride);
  std::array<os::MemoryPiece, os::kPiecesAtOnce> room;
  const os::MemoryPiece here{reinterpret_cast<std::uintptr_t>(known.slots.data()),
                             known.slots.size()};
  if (!os::read_from(pid, driver::pieces_of(spans.all(), room), {&here, 1})) {
    known.slots.clear();
    return false;
  }
  known.first = number;
  known.generation = receives.generation;
  return true;
}

// What is asked of a message whose bytes do not go into the receive.
Delivered locate_in_region(const PeerTables& tables, const PeerTables::Receives& receives,
                           wire::Qpn qpn, const nic::Delivery& part, std::uint64_t bytes,
                           pcie::SpanList& into) {
  const nic::KeyAccess access{.key = part.rkey,
                              .pd = receives.pd,
                              .right = nic::KeyRight::RemoteWrite,
                              .address = part.address + part.offset,
                              .bytes = bytes};
  const bool is_allowed = receives.may_write && (bytes == 0 || tables.locate(access, qpn, into));
  return is_allowed ? Delivered::Yes : Delivered::No;
}

}  // namespace

Delivered locate_message(const PeerTables& tables, std::uint32_t pid,
                         const PeerTables::Receives& receives, wire::Qpn qpn,
                         const nic::Delivery& part, std::uint64_t bytes, nic::PostedReceives& known,
                         pcie::SpanList& into) {
  const std::uint32_t number = part.receive.number;
  if (receives.slots == 0) return Delivered::Never;
  if (receives.generation != part.receive.generation) return Delivered::No;
  if (receives.posted == number) return Delivered::NoReceive;
  if (receives.posted - number > receives.slots) return Delivered::No;
  if (part.is_write) return locate_in_region(tables, receives, qpn, part, bytes, into);
  std::uint64_t at = bytes_before(receives, number, known);
  if (at == known.slots.size()) {
    if (!fetch(tables, pid, receives, number, known)) return Delivered::No;
    at = 0;
  }
  const ConstBytes slot = ConstBytes(known.slots).subspan(at, receives.stride);
  const auto wqe = load_le<nic::ReceiveWqe>(slot);
  if (wqe.index != number || wqe.segments > (slot.size() - sizeof wqe) / sizeof(nic::Segment))
    return Delivered::No;
  std::uint64_t room = 0;
  std::uint64_t offset = part.offset;
  for (std::uint32_t i = 0; i < wqe.segments; ++i) {
    const auto segment = load_le<nic::Segment>(slot, sizeof wqe + i * sizeof(nic::Segment));
    room += segment.bytes;
    const std::uint64_t skipped = std::min<std::uint64_t>(offset, segment.bytes);
    const std::uint64_t here = std::min(segment.bytes - skipped, bytes);
    offset -= skipped;
    bytes -= here;
    const nic::KeyAccess access{.key = {segment.lkey},
                                .pd = receives.pd,
                                .right = nic::KeyRight::LocalWrite,
                                .address = segment.address + skipped,
                                .bytes = here};
    if (here != 0 && !tables.locate(access, qpn, into)) return Delivered::No;
  }
  return room < part.message_bytes ? Delivered::No : Delivered::Yes;
}

}  // namespace softhca::driver
