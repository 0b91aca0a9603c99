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

CompletionQueue::Written CompletionQueue::write(Cqe cqe, HostMemory& memory, Time now) {
  if (produced_ - taken_ >= ring_.slots) {
    const BusAddr record = advance(ring_.bus, std::uint64_t{ring_.slots} * sizeof(Cqe));
    const pcie::Outcome read = memory.read_bus(record, writable_bytes_of(taken_), now);
    if (!read) return {.outcome = read};
    if (produced_ - taken_ >= ring_.slots) return {.outcome = read, .full = true};
  }
  cqe.lap = 1 + produced_ / ring_.slots;
  const Written written{
      .outcome = memory.write_bus(slot(produced_), bytes_of(cqe), now),
      .wants_event =
          armed_ == Armed::Any ||
          (armed_ == Armed::Solicited &&
           (cqe.status != 0 || (cqe.flags & static_cast<std::uint8_t>(CqeFlag::Solicited)) != 0))};
  if (!written.outcome) return written;
  ++produced_;
  if (written.wants_event) armed_ = Armed::No;
  return written;
}

}  // namespace softhca::nic
