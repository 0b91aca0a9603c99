// ReceiveQueue: work requests that wait for messages: a ring that the driver posts to and that
// whoever receives takes from.
//
// A queue pair has one of its own; others may be shared, since a request that is taken belongs to
// the taker: it has a copy, and the slot is not read again.
//
// Spec        IBTA vol. 1, 10.8.3 (receive queues), 10.2.9 (shared receive queues)
// Threads     owned by the device
// Invariants  a slot of the ring is read once, in the order of posting
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "nic/host_memory.h"
#include "nic/ring_format.h"
#include "nic/tag_list.h"
#include "transport/memory_port.h"

namespace softhca::nic {

struct QueuePlace {
  BusAddr bus;
  std::uint32_t slots{};   // a power of two; 0: no queue
  std::uint32_t stride{};  // bytes of a slot
  std::uint32_t max_segments{};
};

// A receive request as fetched: all that its taker needs to fill and complete it.
struct FetchedReceive {
  std::uint64_t cookie{};
  std::uint32_t work{};
  std::uint32_t pd{};   // of the keys in it
  std::uint32_t cqn{};  // where it completes; 0: where its taker's do
  std::vector<Segment> segments;
  Time ready_at{};  // when the device has it
  // Tag lists: how its completion is to read, and how much of the message is not placed.
  CqeKind kind = CqeKind::Receive;
  std::uint8_t flags{};  // CqeFlag
  std::uint64_t tag{};
  std::uint32_t private_word{};
  std::uint32_t skipped{};  // bytes in front
  std::optional<RendezvousHeader>
      elsewhere{};  // where the message is; nothing of this one is placed
};

class ReceiveQueue {
 public:
  // OWNS nothing; `memory` and `tracer` outlive it. `pd` is that of the keys in its requests.
  ReceiveQueue(const QueuePlace& ring, std::uint32_t pd, HostMemory& memory, trace::Tracer& tracer)
      : ring_(ring), pd_(pd), memory_(memory), tracer_(tracer) {}

  void on_doorbell(std::uint32_t producer) {
    if (ring_.slots != 0) posted_ = producer;
  }
  // Takes the next request for a message to `taker` and checks its keys; what is wrong with it is
  // told in the slot. Nothing if none is posted.
  std::optional<transport::ReceiveSlot> take(FetchedReceive& into, wire::Qpn taker, Time now);
  // The same where nothing will be received: keys do not matter. False if none is posted.
  bool take_to_flush(FetchedReceive& into, wire::Qpn taker, Time now);
  // A request that was taken has completed.
  void note_done() { ++done_; }
  // Goes on in another ring, in which what is waiting lies at its indices.
  void move_to(const QueuePlace& ring) { ring_ = ring; }
  // As new: what was posted is forgotten.
  void clear() { posted_ = taken_ = done_ = 0; }

  std::uint32_t posted() const { return posted_; }  // modulo 2^32, as are these
  std::uint32_t next() const { return taken_; }     // that will be taken
  std::uint32_t waiting() const { return posted_ - taken_; }
  std::uint32_t done() const { return done_; }

 private:
  trace::Reason fetch(FetchedReceive& into, wire::Qpn taker, Time now);

  QueuePlace ring_;
  std::uint32_t pd_;
  HostMemory& memory_;
  trace::Tracer& tracer_;
  std::uint32_t posted_ = 0;  // by doorbell, modulo 2^32
  std::uint32_t taken_ = 0;
  std::uint32_t done_ = 0;
};

}  // namespace softhca::nic
