// QueuePair: payload that is read in one access before its packets are made.
#include <algorithm>
#include <cstring>

#include "nic/queue_pair.h"

namespace softhca::nic {

using pcie::Outcome;
using transport::PayloadRef;

// One access for this packet and those that will follow it now. If it fails each makes its own.
void QueuePair::stage(const PayloadRef& from, const Segments& segments, Time now) {
  if (is_staged(from)) return;
  const std::uint64_t wanted = from.bytes + std::min(from.left, (kStagedPackets - 1) * from.bytes);
  const Bytes room =
      memory_.staging().first(std::min<std::uint64_t>(wanted, memory_.staging().size()));
  memory_.set_staged({});
  const Outcome outcome = read_request(segments, from.offset, room, now);
  note(outcome);
  if (outcome) memory_.set_staged({context_.qpn, from.work, from.offset, room.size()});
}

bool QueuePair::is_staged(const PayloadRef& from) const {
  const HostMemory::Staged& staged = memory_.staged();
  return staged.bytes != 0 && staged.qpn == context_.qpn && staged.work == from.work &&
         from.offset >= staged.offset && from.offset + from.bytes <= staged.offset + staged.bytes;
}

bool QueuePair::take_staged(const PayloadRef& from, Bytes to) const {
  if (!is_staged(from)) return false;
  std::memcpy(to.data(), memory_.staging().data() + (from.offset - memory_.staged().offset),
              to.size());
  return true;
}

}  // namespace softhca::nic
