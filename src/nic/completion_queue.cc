#include "nic/completion_queue.h"

#include "base/range.h"

namespace softhca::nic {

pcie::Outcome EventQueue::write(Eqe eqe, HostMemory& memory, Time now) {
  eqe.lap = static_cast<std::uint32_t>(1 + produced_ / ring_.slots);
  const BusAddr at = advance(ring_.bus, produced_ % ring_.slots * sizeof(Eqe));
  const pcie::Outcome outcome = memory.write_bus(at, bytes_of(eqe), now);
  if (outcome) ++produced_;
  return outcome;
}

BusAddr CompletionQueue::slot(std::uint64_t position) const {
  return advance(ring_.bus, position % ring_.slots * sizeof(Cqe));
}

// Does the program wait for this one?
bool CompletionQueue::is_awaited(const Cqe& cqe) const {
  if (armed_ != Armed::Solicited) return armed_ == Armed::Any;
  return cqe.status != 0 || (cqe.flags & static_cast<std::uint8_t>(CqeFlag::Solicited)) != 0;
}

// Whoever waits for work that has failed need not wait longer.
bool CompletionQueue::is_event_held(const Cqe& cqe, Time now) {
  if (!moderation_.is_on() || cqe.status != 0 || ++held_ >= moderation_.count) return false;
  if (event_due_ == Time::never()) event_due_ = now + moderation_.period;
  return true;
}

void CompletionQueue::release_event() {
  armed_ = Armed::No;
  held_ = 0;
  event_due_ = Time::never();
}

CompletionQueue::Written CompletionQueue::write(Cqe& cqe, HostMemory& memory, Time now) {
  if (produced_ - taken_ >= ring_.slots) {
    const BusAddr record = advance(ring_.bus, std::uint64_t{ring_.slots} * sizeof(Cqe));
    const pcie::Outcome read = memory.read_bus(record, writable_bytes_of(taken_), now);
    if (!read) return {.outcome = read};
    if (produced_ - taken_ >= ring_.slots)
      return {
          .outcome = read, .full = overrun_ == Overrun::Fails, .lost = overrun_ == Overrun::Loses};
  }
  cqe.lap = 1 + produced_ / ring_.slots;
  Written written{.outcome = memory.write_bus(slot(produced_), bytes_of(cqe), now)};
  if (!written.outcome) return written;
  ++produced_;
  written.wants_event = is_awaited(cqe) && !is_event_held(cqe, now);
  if (written.wants_event) release_event();
  return written;
}

}  // namespace softhca::nic
