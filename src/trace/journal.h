// Journal: a ring of events; Tracer: how everybody reports to it and to the counters.
//
// Recording is off unless somebody asks; then `emit` costs one predictable branch. The ring keeps
// the newest records and says how many it lost.
//
// Threads  owned by the device's owner, like everything that emits
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trace/counters.h"
#include "trace/event.h"
#include "trace/reason.h"

namespace softhca::trace {

class Journal {
 public:
  // Keeps the newest `capacity` events. REQUIRES: capacity > 0.
  explicit Journal(std::size_t capacity) : ring_(capacity) {}

  void append(Event event);

  // Hears every event as it is appended; one listener, or none (an empty one).
  using Listener = std::function<void(const Event&)>;
  void set_listener(Listener listener) { listener_ = std::move(listener); }

  // Oldest first.
  std::vector<Event> events() const;
  std::uint64_t appended() const { return appended_; }
  std::uint64_t lost() const { return appended_ > ring_.size() ? appended_ - ring_.size() : 0; }

  // FNV-1a over every record ever appended: equal journals have equal hashes.
  std::uint64_t hash() const { return hash_; }

 private:
  std::vector<Event> ring_;
  std::uint64_t appended_ = 0;
  std::uint64_t hash_ = 0xcbf29ce484222325u;
  Listener listener_;
};

// "12.345678 ms  packet_sent qpn 0x4017 opcode 10 psn 7 payload 64 nth 1 dest_qpn 0x5001"
std::string event_text(const Event& event);

// Handed by reference to every part of a device.
class Tracer {
 public:
  Tracer(Counters counters, Journal* journal, std::uint16_t host = 0)
      : counters_(counters), journal_(journal), host_(host) {}

  void count(Counter counter, std::uint64_t n = 1) { counters_.add(counter, n); }

  void emit(EventKind kind, Time now, std::uint32_t object, std::uint64_t a = 0,
            std::uint64_t b = 0, std::uint64_t c = 0, std::uint64_t d = 0, std::uint64_t e = 0) {
    if (journal_ != nullptr) [[unlikely]]
      journal_->append({.time_ps = now.ps,
                        .kind = kind,
                        .host = host_,
                        .object = object,
                        .sequence = 0,
                        .fields = {a, b, c, d, e}});
  }

  void emit(const Reason& reason, Time now) {
    emit(EventKind::Refusal, now, reason.object, static_cast<std::uint64_t>(reason.id),
         reason.address, reason.length, reason.low, reason.high);
  }

  const Counters& counters() const { return counters_; }
  bool recording() const { return journal_ != nullptr; }

 private:
  Counters counters_;
  Journal* journal_;  // null: not recording
  std::uint16_t host_;
};

}  // namespace softhca::trace
