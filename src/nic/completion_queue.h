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

// Events of an armed queue wait for `count` completions, or for `period` after the first of them.
// If either is 0, or `count` is 1, they do not wait.
struct Moderation {
  std::uint32_t count{};
  Duration period{};
  bool is_on() const { return count > 1 && period.ps > 0; }
};

class CompletionQueue {
 public:
  enum class Armed : std::uint8_t { No, Solicited, Any };
  // What becomes of a completion for which there is no room: the queue fails, or it is lost.
  enum class Overrun : std::uint8_t { Fails, Loses };

  CompletionQueue(std::uint32_t cqn, RingPlace ring, Overrun overrun = Overrun::Fails)
      : cqn_(cqn), ring_(ring), overrun_(overrun) {}

  // What writing came to. `full`: the program has not taken enough off (CqOverrun).
  struct Written {
    pcie::Outcome outcome;
    bool full{};
    bool lost{};         // likewise, and nobody minds
    bool wants_event{};  // it was armed for this one; it is not any more
  };
  // Gives it its lap.
  Written write(Cqe& cqe, HostMemory& memory, Time now);

  // Goes on in another ring, in which `produced` entries lie already that nobody has taken.
  void move_to(RingPlace ring, std::uint32_t produced) {
    ring_ = ring;
    produced_ = produced;
    taken_ = 0;
  }

  // An event that waits is due when it would be had the new rule been there before it.
  void moderate(const Moderation& rule) {
    if (held_ != 0)
      event_due_ = rule.is_on() && held_ < rule.count
                       ? event_due_ + (rule.period - moderation_.period)
                       : Time{0};
    moderation_ = rule;
  }
  // When an event leaves although no further completion comes; never() if none waits.
  Time event_due() const { return event_due_; }
  // The event that was due leaves now.
  void release_event();

  // The union of what was asked for since the last event holds (CASES C37).
  void arm(Armed what) {
    if (what > armed_) armed_ = what;
  }
  void set_failed() { failed_ = true; }
  bool failed() const { return failed_; }
  std::uint32_t cqn() const { return cqn_; }

 private:
  BusAddr slot(std::uint64_t position) const;
  bool is_awaited(const Cqe& cqe) const;
  bool is_event_held(const Cqe& cqe, Time now);

  std::uint32_t cqn_;
  RingPlace ring_;
  Overrun overrun_;
  Moderation moderation_;
  std::uint32_t held_ = 0;  // completions since the last event whose event waits
  Time event_due_ = Time::never();
  std::uint64_t produced_ = 0;
  std::uint64_t taken_ = 0;  // as last read from the doorbell record
  Armed armed_ = Armed::No;
  bool failed_ = false;
};

}  // namespace softhca::nic
