#include "link/sim_link.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/assert.h"

namespace softhca::link {

namespace {

// Header, checksum, preamble and gap of an Ethernet frame.
constexpr std::int64_t kEthernetOverhead = 14 + 4 + 8 + 12;
// How long an overtaken frame is held back at most, where the network has no delay of its own.
constexpr Duration kReorderingAtLeast = microseconds(1);

std::int64_t bytes_on_wire(const wire::Datagram& datagram, std::size_t udp_payload) {
  const std::size_t ip = datagram.is_ipv4() ? wire::kIpv4Bytes : wire::kIpv6Bytes;
  return kEthernetOverhead + static_cast<std::int64_t>(ip + wire::kUdpBytes + udp_payload);
}

// In parts of 1,000,000.
std::uint64_t mark_chance(const SwitchPort& port, std::int64_t queued) {
  if (port.marks_all_at == 0 || queued < port.marks_from) return 0;
  if (queued >= port.marks_all_at) return 1'000'000;
  return static_cast<std::uint64_t>(1000 * std::int64_t{port.marks_at_most} *
                                    (queued - port.marks_from) /
                                    (port.marks_all_at - port.marks_from));
}

}  // namespace

class SimNetwork::End final : public Link {
 public:
  struct InFlight {
    wire::Datagram datagram;
    std::vector<std::byte> bytes;
  };

  End(SimNetwork& network, std::span<const wire::Gid> addresses)
      : network_(network), addresses_(addresses.begin(), addresses.end()) {}

  std::size_t send(std::span<const Frame> frames, Time now) override {
    for (const Frame& frame : frames) network_.carry(*this, frame, now);
    return frames.size();
  }

  std::size_t receive(std::span<Frame> out, Time now) override {
    lent_.clear();
    network_.pass_port(*this, now);
    while (lent_.size() < out.size() && !inbox_.empty() && inbox_.begin()->first.first <= now) {
      if (connected_)
        lent_.push_back(std::move(inbox_.begin()->second));
      else
        ++network_.statistics_.lost;
      inbox_.erase(inbox_.begin());
    }
    for (std::size_t i = 0; i < lent_.size(); ++i) out[i] = {lent_[i].datagram, lent_[i].bytes};
    network_.statistics_.delivered += lent_.size();
    return lent_.size();
  }

  Time next_arrival() const override {
    const Time waiting = port_.empty() ? Time::never() : port_.begin()->first.first;
    return earlier(waiting, inbox_.empty() ? Time::never() : inbox_.begin()->first.first);
  }

 private:
  friend class SimNetwork;

  bool has(const wire::Gid& gid) const {
    return std::find(addresses_.begin(), addresses_.end(), gid) != addresses_.end();
  }

  SimNetwork& network_;
  std::vector<wire::Gid> addresses_;
  bool connected_ = true;
  Time busy_until_{};                        // this host's wire
  std::map<const End*, Time> last_arrival_;  // by destination; keeps the order
  using Arrivals = std::map<std::pair<Time, std::uint64_t>, InFlight>;
  Arrivals inbox_;              // by arrival, then by sending
  Arrivals port_;               // the same at the switch's port towards this host, if that is slow
  Time port_busy_until_{};      // with what has passed it
  std::vector<InFlight> lent_;  // what the last receive() gave away
};

SimNetwork::SimNetwork(std::uint64_t seed, const SimCosts& costs) : prng_(seed), costs_(costs) {}
SimNetwork::~SimNetwork() = default;

Link& SimNetwork::attach(std::span<const wire::Gid> addresses) {
  ends_.push_back(std::make_unique<End>(*this, addresses));
  return *ends_.back();
}

SimNetwork::End& SimNetwork::end_of(const Link& end) {
  const auto found = std::find_if(ends_.begin(), ends_.end(),
                                  [&](const auto& candidate) { return candidate.get() == &end; });
  ASSERT(found != ends_.end());
  return **found;
}

void SimNetwork::set_connected(const Link& end, bool connected) {
  end_of(end).connected_ = connected;
}

void SimNetwork::set_joined(const Link& end, const wire::Gid& group, bool joined) {
  ASSERT(group.is_multicast());
  std::vector<wire::Gid>& addresses = end_of(end).addresses_;
  std::erase(addresses, group);
  if (joined) addresses.push_back(group);
}

Time SimNetwork::next_arrival() const {
  Time next = Time::never();
  for (const auto& end : ends_) next = earlier(next, end->next_arrival());
  return next;
}

void SimNetwork::carry(End& from, const Frame& frame, Time now) {
  ++statistics_.sent;
  from.busy_until_ =
      later(from.busy_until_, now) +
      picoseconds(costs_.ps_per_byte) * bytes_on_wire(frame.datagram, frame.bytes.size());
  bool is_wanted = false;
  for (const auto& end : ends_) {
    if (!end->has(frame.datagram.destination)) continue;
    is_wanted = true;
    deliver(from, *end, frame);
    if (!frame.datagram.destination.is_multicast()) return;
  }
  if (!is_wanted) ++statistics_.lost;
}

void SimNetwork::deliver(End& from, End& to, const Frame& frame) {
  if (!from.connected_ || prng_.chance(costs_.loss, 1000)) {
    ++statistics_.lost;
    return;
  }
  End::InFlight copy{frame.datagram, {frame.bytes.begin(), frame.bytes.end()}};
  if (!copy.bytes.empty() && prng_.chance(costs_.corruption, 1000)) {
    const std::uint64_t bit = prng_.below(copy.bytes.size() * 8);
    copy.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    ++statistics_.corrupted;
  }
  const int copies = prng_.chance(costs_.duplication, 1000) ? 2 : 1;
  if (copies == 2) ++statistics_.duplicated;
  End::Arrivals& arrivals = costs_.port.ps_per_byte == 0 ? to.inbox_ : to.port_;
  for (int i = 0; i < copies; ++i)
    arrivals.emplace(std::pair(arrival_time(from, to), sequence_++), copy);
}

// Takes up, in the order in which they came there, what has come to the port of this host.
void SimNetwork::pass_port(End& to, Time now) {
  const SwitchPort& port = costs_.port;
  for (; !to.port_.empty() && to.port_.begin()->first.first <= now;
       to.port_.erase(to.port_.begin())) {
    auto& [place, frame] = *to.port_.begin();
    const auto [arrived, number] = place;
    const std::int64_t bytes = bytes_on_wire(frame.datagram, frame.bytes.size());
    const Time begins = later(to.port_busy_until_, arrived);
    const std::int64_t queued =
        port.ps_per_byte == 0 ? 0 : (begins - arrived).ps / port.ps_per_byte;
    if (port.queue_bytes != 0 && queued + bytes > port.queue_bytes) {
      ++statistics_.overflowed;
      continue;
    }
    std::uint8_t& traffic_class = frame.datagram.traffic_class;
    const std::uint64_t chance = mark_chance(port, queued);
    if ((traffic_class & wire::kEcnMask) != 0 && chance != 0 && prng_.chance(chance, 1'000'000)) {
      traffic_class = wire::with_ecn(traffic_class, wire::kEcnMarked);
      ++statistics_.marked;
    }
    to.port_busy_until_ = begins + picoseconds(port.ps_per_byte) * bytes;
    to.inbox_.emplace(std::pair(to.port_busy_until_, number), std::move(frame));
  }
}

std::int64_t SimNetwork::queued_bytes(const wire::Gid& host, Time now) const {
  if (costs_.port.ps_per_byte == 0) return 0;
  for (const auto& end : ends_)
    if (end->has(host))
      return (later(end->port_busy_until_, now) - now).ps / costs_.port.ps_per_byte;
  return 0;
}

Time SimNetwork::arrival_time(End& from, const End& to) {
  const auto spread = static_cast<std::uint64_t>(costs_.delay_spread.ps);
  const auto extra = static_cast<std::int64_t>(prng_.below(spread + 1));
  const Time arrival = from.busy_until_ + costs_.delay + picoseconds(extra);
  if (prng_.chance(costs_.reordering, 1000)) {
    ++statistics_.reordered;
    const Duration most = std::max(kReorderingAtLeast, costs_.delay + costs_.delay_spread);
    const std::uint64_t held = 1 + prng_.below(static_cast<std::uint64_t>(most.ps));
    return arrival + picoseconds(static_cast<std::int64_t>(held));
  }
  Time& last = from.last_arrival_[&to];
  last = later(last, arrival);
  return last;
}

}  // namespace softhca::link
