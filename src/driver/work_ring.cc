#include "driver/work_ring.h"

#include <atomic>

#include "driver/registration.h"
#include "nic/ring_format.h"

namespace softhca::driver {

using trace::Reason;
using trace::ReasonId;

std::uint32_t published(const std::uint32_t& cell) {
  return std::atomic_ref<std::uint32_t>(const_cast<std::uint32_t&>(cell))
      .load(std::memory_order_acquire);
}

Result<WorkRing, Reason> WorkRing::for_receives(std::uint32_t slots, std::uint32_t segments,
                                                Registrations& memory, Time now) {
  WorkRing ring;
  if (slots == 0) return ring;
  ring.slots = slots;
  ring.segments = segments;
  ring.stride =
      static_cast<std::uint32_t>(sizeof(nic::ReceiveWqe) + segments * sizeof(nic::Segment));
  auto bytes = memory.add_ring(std::uint64_t{slots} * ring.stride, now);
  if (!bytes) return bytes.error();
  ring.memory = std::move(*bytes);
  return ring;
}

Result<void, Reason> WorkRing::post_receive(const ReceiveRequest& request, std::uint32_t done,
                                            std::uint32_t object) {
  if (request.sges.size() > segments)
    return Reason{.id = ReasonId::TooManySges,
                  .object = object,
                  .length = request.sges.size(),
                  .high = segments};
  if (posted - done >= slots)
    return Reason{.id = ReasonId::QueueFull, .object = object, .high = slots};
  const Bytes into = slot(posted);
  std::size_t at = sizeof(nic::ReceiveWqe);
  for (const Sge& s : request.sges) {
    store_le(into, at, nic::Segment{s.address, s.length, s.lkey});
    at += sizeof(nic::Segment);
  }
  store_le(into, 0,
           nic::ReceiveWqe{request.wr_id, posted, static_cast<std::uint32_t>(request.sges.size())});
  ++posted;
  return {};
}

}  // namespace softhca::driver
