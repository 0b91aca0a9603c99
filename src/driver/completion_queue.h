// CompletionQueue: the program's end of a ring that the device writes completions to.
//
// Threads  poll() may be called by any thread and takes no device lock; it looks at the ring first
//          and takes the queue's own lock only when there is something. Everything else is called
//          with the device owned.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "driver/attributes.h"
#include "driver/ring_memory.h"

namespace softhca::driver {

class CompletionQueue {
 public:
  CompletionQueue(std::uint32_t cqn, std::uint32_t capacity, RingMemory ring, EventSink* events);

  // Takes completions off the ring, oldest first. Gives how many. 0 does not mean that none is
  // under way: the caller then drives the device and looks again.
  std::size_t poll(std::span<Completion> out);
  bool is_empty() const { return !is_filled(*ring_.load(std::memory_order_acquire)); }

  // From now on remembers what has been polled, for taken().
  void remember() { remembers_ = true; }
  enum class Side : std::uint8_t { Send, Receive };
  // How many requests of a queue have ended with completions that were polled. REQUIRES: remember()
  std::uint32_t taken(wire::Qpn qpn, Side side);

  // Forgets completions of a queue pair that is being destroyed.
  void forget(wire::Qpn qpn);

  // Takes what was not polled along to another ring, oldest first, and goes on there. Says how many
  // entries are filled; nothing, and no change, if the new one has no room for them.
  std::optional<std::uint32_t> move_to(std::uint32_t capacity, RingMemory ring);

  std::uint32_t cqn() const { return cqn_; }
  // Entries that the program may use.
  std::uint32_t capacity() const { return ring_.load(std::memory_order_relaxed)->capacity; }
  EventSink* events() const { return events_; }

 private:
  // A thread may still look at the first entry of a ring that the queue has left: rings stay, and
  // the memory of the last one that was left stays with it.
  struct Ring {
    std::byte* start;
    std::uint32_t capacity;
    RingMemory memory;
    std::atomic<std::uint64_t> next{0};  // entries ever taken off; written under consumer_

    Bytes slot(std::uint64_t at) const;
    Bytes doorbell_record() const;
  };
  static bool is_filled(const Ring& ring);
  Ring& start_ring(std::uint32_t capacity, RingMemory memory);

  std::uint32_t cqn_;
  EventSink* events_;    // null: nobody
  std::mutex consumer_;  // among threads that poll
  bool remembers_{};
  std::map<std::pair<std::uint32_t, Side>, std::uint32_t> taken_;  // by QPN; under consumer_
  std::vector<std::unique_ptr<Ring>> rings_;                       // the last one is in use
  std::atomic<Ring*> ring_{nullptr};
};

}  // namespace softhca::driver
