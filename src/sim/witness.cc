#include "sim/witness.h"

namespace softhca::sim {

void Heard::add(const trace::Event& event) {
  if (hosts_.size() <= event.host) hosts_.resize(event.host + std::size_t{1});
  Kind& kind = hosts_[event.host][static_cast<std::size_t>(event.kind)];
  ++kind.count;
  for (std::size_t i = 0; i < trace::kEventFields; ++i) kind.sums[i] += event.fields[i];
  if (kind.first.size() < kRemembered) kind.first.push_back(event);
  kind.last = event;
}

const Heard::Kind& Heard::of(std::uint16_t host, trace::EventKind kind) const {
  static const Kind nothing;
  return host < hosts_.size() ? hosts_[host][static_cast<std::size_t>(kind)] : nothing;
}

Witness::Witness(trace::Journal& journal) : journal_(journal) {
  journal_.set_listener([this](const trace::Event& event) { heard_.add(event); });
}

Witness::~Witness() { journal_.set_listener({}); }

}  // namespace softhca::sim
