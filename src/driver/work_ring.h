// WorkRing: the program's end of a ring of work requests that the device takes from.
//
// Threads  called with the device owned
#pragma once
#include <cstdint>

#include "base/result.h"
#include "driver/attributes.h"
#include "driver/ring_memory.h"
#include "nic/receive_queue.h"

namespace softhca::driver {

class Registrations;

struct WorkRing {
  RingMemory memory;
  std::uint32_t slots{};     // a power of two; 0: no ring
  std::uint32_t stride{};    // bytes of a slot
  std::uint32_t segments{};  // scatter-gather entries of a request at most
  std::uint32_t posted{};    // requests ever posted, modulo 2^32
  std::uint32_t rung{};      // of these, how many the device was told of
  std::uint32_t signaled{};  // how many there were with the last that asks for a completion

  // A ring for receives, without memory if `slots` is 0. FAILS WITH what Registrations::add_ring
  // says
  static Result<WorkRing, trace::Reason> for_receives(std::uint32_t slots, std::uint32_t segments,
                                                      Registrations& memory, Time now,
                                                      Bytes lent = {});
  static std::uint64_t receive_bytes(std::uint32_t slots, std::uint32_t segments);

  Bytes slot(std::uint32_t index) const {
    return memory.bytes().subspan(std::size_t{index & (slots - 1)} * stride, stride);
  }
  nic::QueuePlace place() const { return {memory.bus(), slots, stride, segments}; }
  // Writes a receive into the next slot. `done` is how many slots the device is done with, `object`
  // whom a refusal names. FAILS WITH TooManySges, QueueFull
  Result<void, trace::Reason> post_receive(const ReceiveRequest& request, std::uint32_t done,
                                           std::uint32_t object);
  // Whether the device has to be told of requests; it then counts as told.
  bool take_doorbell() {
    const bool due = rung != posted;
    rung = posted;
    return due;
  }
};

// What the device publishes in a record, as it is now.
std::uint32_t published(const std::uint32_t& cell);

}  // namespace softhca::driver
