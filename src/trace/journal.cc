#include "trace/journal.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"

namespace softhca::trace {

void Journal::append(Event event) {
  event.sequence = appended_;
  for (const std::byte b : bytes_of(event)) {
    hash_ ^= std::to_integer<std::uint64_t>(b);
    hash_ *= 0x100000001b3u;
  }
  ring_[appended_++ % ring_.size()] = event;
  if (listener_) listener_(event);
}

std::vector<Event> Journal::events() const {
  std::vector<Event> all;
  const std::uint64_t kept = std::min<std::uint64_t>(appended_, ring_.size());
  all.reserve(kept);
  for (std::uint64_t i = appended_ - kept; i < appended_; ++i)
    all.push_back(ring_[i % ring_.size()]);
  return all;
}

std::string event_text(const Event& event) {
  const auto index = static_cast<std::size_t>(event.kind);
  if (index >= kEventKindCount) return fmt::format("unknown event {}", index);
  const EventInfo& row = kEvents[index];
  std::string text = fmt::format("{}.{:06} ms  {}", event.time_ps / 1'000'000'000,
                                 event.time_ps / 1000 % 1'000'000, row.name);
  if (!row.object.empty()) text += fmt::format(" {} {:#x}", row.object, event.object);
  for (std::size_t i = 0; i < kEventFields; ++i)
    if (!row.fields[i].empty()) text += fmt::format(" {} {:#x}", row.fields[i], event.fields[i]);
  return text;
}

}  // namespace softhca::trace
