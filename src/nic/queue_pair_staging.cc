// QueuePair: payload that is read in one access before its packets are made.
#include <algorithm>

#include "nic/queue_pair.h"

namespace softhca::nic {

using pcie::Outcome;
using transport::PayloadRef;

// One access for this packet and those that will follow it now. If it fails each makes its own.
bool QueuePair::stage(const PayloadRef& from, const Segments& segments, const Rooms& rooms,
                      Time now) {
  if (from.left == 0 || rooms.count < 2) return false;
  std::array<Bytes, kStagedPackets> parts;
  HostMemory::Staged staged{
      .qpn = context_.qpn, .work = from.work, .offset = from.offset, .step = from.bytes};
  std::uint64_t left = from.bytes + from.left;
  while (left != 0 && staged.count < std::min(parts.size(), rooms.count)) {
    const Bytes room = rooms.at(staged.count);
    parts[staged.count] = room.first(std::min<std::uint64_t>(left, from.bytes));
    left -= parts[staged.count].size();
    staged.rooms[staged.count++] = room.data();
  }
  memory_.forget_staged();
  const Outcome outcome =
      read_request(segments, from.offset, std::span<const Bytes>(parts).first(staged.count), now);
  note(outcome);
  if (outcome) memory_.set_staged(staged);
  return static_cast<bool>(outcome);
}

// Packets of others may have been built meanwhile: then it lies in the wrong room.
bool QueuePair::is_staged(const PayloadRef& from, Bytes room) const {
  const HostMemory::Staged& staged = memory_.staged();
  if (staged.count == 0 || staged.qpn != context_.qpn || staged.work != from.work ||
      from.offset < staged.offset)
    return false;
  const std::uint64_t place = (from.offset - staged.offset) / staged.step;
  return place < staged.count && from.offset == staged.offset + place * staged.step &&
         staged.rooms[place] == room.data();
}

}  // namespace softhca::nic
