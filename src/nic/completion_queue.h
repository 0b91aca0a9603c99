// CompletionQueue, EventQueue: the device's end of the rings that it writes to.
//
// A record is written by DMA, its lap number last. A completion queue that is armed writes an
// event for the next (solicited) completion and raises the interrupt.
//
// Spec        IBTA vol. 1, 11.2.8 (completion queue operations), 11.4.2.2 (request notification)
// Threads     owned by the device
// Invariants  an entry is never overwritten before the program has taken it: the queue fails first
#pragma once
#include <cstdint>

#include "nic/host_memory.h"
#include "nic/ring_format.h"

namespace softhca::nic {

struct RingPlace {
  BusAddr bus;
  std::uint32_t slots{};  // a power of two
};

class EventQueue {
 public:
  EventQueue() = default;
  explicit EventQueue(RingPlace ring) : ring_(ring) {}

  // Writes an event. Gives when it is visible, or the bus fault.
  pcie::Outcome write(Eqe eqe, HostMemory& memory, Time now);
  bool is_set() const { return ring_.slots != 0; }

 private:
  RingPlace ring_;
  std::uint64_t produced_ = 0;
};

class CompletionQueue {
 public:
  enum class Armed : std::uint8_t { No, Solicited, Any };

  CompletionQueue(std::uint32_t cqn, RingPlace ring) : cqn_(cqn), ring_(ring) {}

  // What writing came to. `full`: the program has not taken enough off (CqOverrun).
  struct Written {
    pcie::Outcome outcome;
    bool full{};
    bool wants_event{};  // it was armed for this one; it is not any more
  };
  Written write(Cqe cqe, HostMemory& memory, Time now);

  // The union of what was asked for since the last event holds (CASES C37).
  void arm(Armed what) {
    if (what > armed_) armed_ = what;
  }
  void set_failed() { failed_ = true; }
  bool failed() const { return failed_; }
  std::uint32_t cqn() const { return cqn_; }

 private:
  BusAddr slot(std::uint64_t position) const;

  std::uint32_t cqn_;
  RingPlace ring_;
  std::uint64_t produced_ = 0;
  std::uint64_t taken_ = 0;  // as last read from the doorbell record
  Armed armed_ = Armed::No;
  bool failed_ = false;
};

}  // namespace softhca::nic
