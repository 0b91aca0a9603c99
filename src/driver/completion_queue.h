// CompletionQueue: the program's end of a ring that the device writes completions to.
//
// Threads  poll() may be called by any thread and takes no device lock; it looks at the ring first
//          and takes the queue's own lock only when there is something. Everything else is called
//          with the device owned.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>

#include "driver/attributes.h"
#include "driver/ring_memory.h"

namespace softhca::driver {

class CompletionQueue {
 public:
  CompletionQueue(std::uint32_t cqn, std::uint32_t capacity, RingMemory ring, EventSink* events)
      : cqn_(cqn), capacity_(capacity), ring_(std::move(ring)), events_(events) {}

  // Takes completions off the ring, oldest first. Gives how many. 0 does not mean that none is
  // under way: the caller then drives the device and looks again.
  std::size_t poll(std::span<Completion> out);
  bool is_empty() const;

  // Forgets completions of a queue pair that is being destroyed.
  void forget(wire::Qpn qpn);

  std::uint32_t cqn() const { return cqn_; }
  std::uint32_t capacity() const { return capacity_; }  // entries that the program may use
  EventSink* events() const { return events_; }
  const RingMemory& ring() const { return ring_; }

 private:
  friend class Engine;  // publishes the consumer index to the device

  std::uint32_t cqn_;
  std::uint32_t capacity_;
  RingMemory ring_;
  EventSink* events_;                   // null: nobody
  std::mutex consumer_;                 // among threads that poll
  std::atomic<std::uint64_t> next_{0};  // entries ever taken off; written under consumer_
};

}  // namespace softhca::driver
