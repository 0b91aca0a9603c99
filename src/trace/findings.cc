#include "trace/findings.h"

#include <map>
#include <utility>

namespace softhca::trace {
namespace {

// The same object and the same reason is the same cause; a repetition that was not told is of
// whoever was told of the reason first.
class Causes {
 public:
  void add(ToldLine line, Time at) {
    const auto [first, is_first] = by_reason_.emplace(line.reason, all_.size());
    if (line.how == Telling::Again && !is_first) return repeat(first->second);
    const auto [same, is_new] = by_object_.emplace(std::pair(line.reason, line.about), all_.size());
    if (!is_new) return repeat(same->second);
    all_.push_back({.at = at,
                    .is_warning = line.how == Telling::Warning,
                    .reason = line.reason,
                    .about = std::move(line.about),
                    .text = std::move(line.text)});
  }
  std::vector<Cause> take() { return std::move(all_); }

 private:
  void repeat(std::size_t index) { ++all_[index].repeated; }

  std::vector<Cause> all_;
  std::map<ReasonId, std::size_t> by_reason_;
  std::map<std::pair<ReasonId, std::string>, std::size_t> by_object_;
};

}  // namespace

Findings findings_of(const Recorded& recorded) {
  Findings found;
  Causes causes;
  std::map<std::uint32_t, Delays> by_qpn;
  for (std::size_t i = 0; i < recorded.events.size(); ++i) {
    const Event& event = recorded.events[i];
    found.last = later(found.last, {event.time_ps});
    switch (event.kind) {
      case EventKind::Told:
        causes.add(told_at(recorded.events, i), {event.time_ps});
        break;
      case EventKind::Timeout:
        by_qpn[event.object].timeouts += event.fields[0];
        break;
      case EventKind::Retransmit:
        by_qpn[event.object].retransmits += event.fields[0];
        break;
      case EventKind::RnrWait: {
        Delays& delays = by_qpn[event.object];
        ++delays.rnr_waits;
        // Unsigned: a file may say anything.
        delays.rnr_waited.ps = static_cast<std::int64_t>(
            static_cast<std::uint64_t>(delays.rnr_waited.ps) + event.fields[0]);
        break;
      }
      default:
        break;
    }
  }
  found.causes = causes.take();
  for (auto& [qpn, delays] : by_qpn) {
    delays.qpn = qpn;
    found.delays.push_back(delays);
  }
  return found;
}

}  // namespace softhca::trace
