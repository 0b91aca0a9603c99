#include "driver/connections.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"
#include "local/qpn_block.h"
#include "wire/packet.h"

namespace softhca::driver {

using cm::EventKind;
using trace::Reason;
using trace::ReasonId;

namespace {

// 1: 256 ... 5: 4096.
std::uint8_t mtu_code(std::uint32_t bytes) {
  return static_cast<std::uint8_t>(std::countr_zero(std::max(bytes, 256u)) - 7);
}

bool is_every(const wire::Gid& address) {
  return address.is_zero() || address == cm::kEveryIpv4Address;
}

// A few hundred are under way when many programs start at once; peers ask again for what is lost.
constexpr std::size_t kWaitingAtMost = 4096;

// The service thread hears at once who has ended; a program that polls keeps it from listening.
constexpr Duration kLookEvery = milliseconds(100);
// What a process has sent before it ended is heard first, also what comes by way of another one.
constexpr Duration kLastWords = milliseconds(50);

// As long as it takes a program on a loaded machine to get from one call to the next; peers wait
// for seconds.
constexpr Duration kHeldFor = milliseconds(200);
constexpr std::size_t kHeldAtMost = 64;

bool is_over(EventKind kind) {
  return kind == EventKind::Rejected || kind == EventKind::Unreachable ||
         kind == EventKind::Disconnected || kind == EventKind::Established;
}

}  // namespace

Connections::Connections(const EngineParts& parts, nic::Device& device, Teller tell)
    : parts_(parts),
      device_(device),
      tell_(std::move(tell)),
      agent_({.ca_guid = parts.guid, .block = local::block_of(parts.first_qpn)}, Prng(parts.seed)) {
}

Connections::~Connections() {
  for (const auto& [id, listening] : listeners_) give_back(listening);
}

bool Connections::hold(const nic::Device::ManagementDatagram& datagram, Time now) {
  if (held_.size() >= kHeldAtMost) return false;
  const auto mad = wire::parse_cm(datagram.mad);
  if (!mad) return false;
  const auto* const req = std::get_if<wire::CmReq>(&mad->message);
  const auto* const sidr = std::get_if<wire::CmSidrReq>(&mad->message);
  if (req == nullptr && sidr == nullptr) return false;
  if (agent_.listens(req != nullptr ? req->service : sidr->service, datagram.from.destination))
    return false;
  held_.push_back({.until = now + kHeldFor,
                   .from = datagram.from,
                   .packet = {datagram.packet.begin(), datagram.packet.end()}});
  return true;
}

void Connections::let_go(Time now) {
  for (; !held_.empty() && held_.front().until <= now; held_.pop_front()) {
    const Held& held = held_.front();
    if (parts_.pass_on_request && parts_.pass_on_request(held.from, held.packet)) continue;
    const auto packet = wire::parse(held.packet);
    ASSERT(packet);  // it was understood when it came
    hear(held.from, packet->headers.source_qpn, packet->payload, now);
  }
}

void Connections::hear(const wire::Datagram& from, wire::Qpn source_qpn, ConstBytes mad, Time now) {
  agent_.on_datagram(
      {.source = from.source, .destination = from.destination, .source_qpn = source_qpn}, mad, now);
}

void Connections::on_datagram(const nic::Device::ManagementDatagram& datagram, Time now) {
  has_heard_ = true;
  if (!hold(datagram, now)) hear(datagram.from, datagram.source_qpn, datagram.mad, now);
}

void Connections::settle(Time now) {
  while (const auto event = agent_.poll_event()) hand_out(*event, now);
  send_datagrams(now);
}

template <class Call>
auto Connections::settled(Time now, Call&& call) {
  auto result = call();
  settle(now);
  return result;
}

template <class Call>
Connections::Id Connections::begin(const cm::Path& path, cm::ConnectionSink& sink, Time now,
                                   Call&& call) {
  if (const auto opened = open_addresses(path.local); !opened) return opened.error();
  return settled(now, [&] {
    const Id id = call();
    if (id) sinks_.emplace(*id, &sink);
    return id;
  });
}

bool Connections::is_own(const wire::Gid& address) const {
  return std::ranges::find(addresses_, address) != addresses_.end();
}

Result<void, Reason> Connections::open_addresses(const wire::Gid& address) {
  const auto open = [this](const wire::Gid& gid) -> Result<void, Reason> {
    const auto opened = parts_.open_path(gid, wire::kManagementQpn);
    if (!opened) return opened.error();
    return {};
  };
  if (!is_every(address)) return open(address);
  Result<void, Reason> last = Reason{.id = ReasonId::NoInterface};
  bool any = false;
  for (const wire::Gid& gid : addresses_) {
    last = open(gid);
    any |= static_cast<bool>(last);
  }
  if (any) return {};
  return last;
}

Result<cm::ListenerId, Reason> Connections::listen(const cm::ListenRequest& request,
                                                   cm::ConnectionSink& sink) {
  if (const auto opened = open_addresses(request.address); !opened) return opened.error();
  const auto id = agent_.listen(request);
  if (!id) return id.error();
  if (parts_.claim_service && !parts_.claim_service(request.service, request.address)) {
    agent_.close(*id);
    return Reason{.id = ReasonId::ServiceTaken, .address = request.service.value};
  }
  listeners_.emplace(*id, Listening{&sink, request.service, request.address});
  return *id;
}

void Connections::give_back(const Listening& listening) {
  if (parts_.give_back_service) parts_.give_back_service(listening.service, listening.address);
}

void Connections::set_backlog(cm::ListenerId listener, std::uint32_t backlog) {
  if (listeners_.contains(listener)) agent_.set_backlog(listener, backlog);
}

void Connections::close(cm::ListenerId listener) {
  const auto found = listeners_.find(listener);
  if (found == listeners_.end()) return;
  give_back(found->second);
  listeners_.erase(found);
  agent_.close(listener);
}

Connections::Id Connections::connect(const cm::ConnectRequest& request, cm::ConnectionSink& sink,
                                     Time now) {
  return begin(request.path, sink, now, [&] { return agent_.connect(request, now); });
}

Connections::Id Connections::resolve(const cm::ResolveRequest& request, cm::ConnectionSink& sink,
                                     Time now) {
  return begin(request.path, sink, now, [&] { return agent_.resolve(request, now); });
}

Connections::Done Connections::accept(wire::CommId id, const cm::AcceptRequest& request, Time now) {
  return settled(now, [&] {
    const Done done = agent_.accept(id, request, now);
    if (done) unconfirmed_[request.qpn] = id;
    return done;
  });
}

Connections::Done Connections::answer(wire::CommId id, const cm::ResolveAnswer& resolution,
                                      Time now) {
  return settled(now, [&] { return agent_.answer(id, resolution, now); });
}

Connections::Done Connections::reject(wire::CommId id, ConstBytes private_bytes, Time now) {
  return settled(now, [&] { return agent_.reject(id, private_bytes, now); });
}

Connections::Done Connections::establish(wire::CommId id, ConstBytes private_bytes, Time now) {
  return settled(now, [&] { return agent_.establish(id, private_bytes, now); });
}

Connections::Done Connections::disconnect(wire::CommId id, ConstBytes private_bytes, Time now) {
  return settled(now, [&] { return agent_.disconnect(id, private_bytes, now); });
}

void Connections::destroy(wire::CommId id, Time now) {
  if (sinks_.erase(id) == 0) return;
  std::erase_if(unconfirmed_, [id](const auto& entry) { return entry.second == id; });
  agent_.destroy(id, now);
  settle(now);
}

void Connections::on_traffic(wire::Qpn qpn, Time now) {
  const auto accepted = unconfirmed_.find(qpn);
  if (accepted == unconfirmed_.end()) return;
  const wire::CommId id = accepted->second;
  unconfirmed_.erase(accepted);
  // It may be over since.
  static_cast<void>(establish(id, {}, now));
}

void Connections::set_port(const PortAttributes& port, std::span<const GidEntry> gids) {
  addresses_.clear();
  for (const GidEntry& entry : gids) addresses_.push_back(entry.gid);
  agent_.set_mtu(mtu_code(port.active_mtu));
  if (port.down.id == ReasonId::NoInterface)
    tell_removal(port.down);
  else
    is_removed_ = false;
  const bool wants_all = std::ranges::any_of(
      listeners_, [](const auto& entry) { return is_every(entry.second.address); });
  if (wants_all && !addresses_.empty())
    // One that another program has is told of there.
    static_cast<void>(open_addresses({}));
}

void Connections::disconnect_all(Time now) {
  std::vector<wire::CommId> all;
  for (const auto& [id, sink] : sinks_) all.push_back(id);
  for (const wire::CommId id : all) destroy(id, now);
}

void Connections::look_for_ended(Time now) {
  if (!parts_.ended_processes) return;
  for (const std::uint32_t block : parts_.ended_processes())
    ended_.push_back({block, now + kLastWords});
  for (; !ended_.empty() && ended_.front().believed_from <= now; ended_.pop_front()) {
    agent_.on_peer_ended(
        ended_.front().block, [this](const wire::Gid& gid) { return is_own(gid); }, now);
    has_heard_ = true;
  }
}

void Connections::tell_removal(const Reason& why) {
  if (std::exchange(is_removed_, true)) return;
  const cm::Event event{.kind = EventKind::DeviceRemoved, .reason = why};
  for (cm::ConnectionSink* const sink : watchers_) sink->on_event(event);
}

// Once its id is known.
void Connections::watch_peer(wire::CommId id, Time now) {
  const cm::Conversation* const c = agent_.find(id);
  if (c == nullptr || c->is_resolution || c->remote.value == 0 || !parts_.watch_process) return;
  if (!is_own(c->terms.path.remote)) return;
  const std::uint32_t block = cm::block_of(c->remote);
  if (!parts_.watch_process(block)) ended_.push_back({block, now + kLastWords});
}

// Programs that poll call this each time: mostly there is nothing.
bool Connections::progress(Time now) {
  const bool is_due = has_heard_ || next_deadline() <= now;
  if (!is_due && now < next_look_) return false;
  has_heard_ = false;
  next_look_ = now + kLookEvery;
  look_for_ended(now);
  if (agent_.next_deadline() <= now) agent_.on_time(now);
  let_go(now);
  settle(now);
  return is_due;
}

Time Connections::next_deadline() const {
  if (!waiting_.empty()) return Time{0};
  Time at = agent_.next_deadline();
  if (!held_.empty()) at = earlier(at, held_.front().until);
  if (!ended_.empty()) at = earlier(at, ended_.front().believed_from);
  return at;
}

void Connections::hand_out(const cm::Event& event, Time now) {
  if (event.reason.id != ReasonId::None)
    tell_(event.kind == EventKind::BacklogFull
              ? "listener"
              : "connection with " + wire::address_text(event.terms.path.remote),
          event.reason);
  const bool is_request =
      event.kind == EventKind::ConnectRequest || event.kind == EventKind::ResolveRequest;
  if (is_request || event.kind == EventKind::BacklogFull) {
    const auto listener = listeners_.find(event.listener);
    cm::ConnectionSink* const sink =
        listener == listeners_.end() ? nullptr : listener->second.sink->on_event(event);
    if (!is_request) return;
    if (sink != nullptr) {
      sinks_.emplace(event.id, sink);
      watch_peer(event.id, now);
    } else {
      static_cast<void>(agent_.reject(event.id, {}, now));
      agent_.destroy(event.id, now);
    }
    return;
  }
  if (is_over(event.kind))
    std::erase_if(unconfirmed_, [&](const auto& entry) { return entry.second == event.id; });
  if (event.kind == EventKind::Reply) watch_peer(event.id, now);
  const auto sink = sinks_.find(event.id);
  if (sink != sinks_.end()) sink->second->on_event(event);
}

namespace {

struct Share {
  std::uint64_t cm::Tally::*of_agent;
  trace::Counter of_device;
};
constexpr Share kShares[] = {
    {&cm::Tally::malformed, trace::Counter::CmMalformed},
    {&cm::Tally::unknown, trace::Counter::CmUnknown},
    {&cm::Tally::duplicates, trace::Counter::CmDuplicates},
    {&cm::Tally::dropped, trace::Counter::CmRequestsDropped},
    {&cm::Tally::refused, trace::Counter::CmRequestsRefused},
    {&cm::Tally::resent, trace::Counter::CmResent},
};

}  // namespace

void Connections::count() {
  const cm::Tally& tally = agent_.tally();
  if (tally == counted_) return;
  for (const auto& [of_agent, of_device] : kShares)
    parts_.tracer.count(of_device, tally.*of_agent - counted_.*of_agent);
  counted_ = tally;
}

void Connections::send_datagrams(Time now) {
  count();
  while (auto datagram = agent_.poll_datagram())
    if (waiting_.size() < kWaitingAtMost) waiting_.push_back(*std::move(datagram));
  for (; !waiting_.empty(); waiting_.pop_front()) {
    const cm::Outgoing& next = waiting_.front();
    const auto port = parts_.open_path(next.source, wire::Qpn{sent_});
    if (!port) continue;  // the address has gone: lost, as on a cable
    const wire::Datagram path{.source = next.source,
                              .destination = next.destination,
                              .source_port = *port,
                              .destination_port = wire::kUdpPort};
    if (!device_.send_management(path, next.mad, now)) return;
    ++sent_;
  }
}

}  // namespace softhca::driver
