// The agent's calls: what programs want.
#include "cm/agent.h"

#include <algorithm>

namespace softhca::cm {
namespace {

using enum trace::ReasonId;

trace::Reason check_private(ConstBytes bytes, std::size_t limit) {
  if (bytes.size() <= limit) return {};
  return {.id = PrivateTooLong, .length = bytes.size(), .high = limit};
}

template <std::size_t N>
void put_private(ConstBytes bytes, wire::PrivateBytes<N>& out) {
  std::ranges::copy(bytes, out.begin());
}

// The same behind the addresses of a service that has them.
template <std::size_t N>
void put_private(wire::ServiceId service, const wire::IpAddresses& addresses, ConstBytes bytes,
                 wire::PrivateBytes<N>& out) {
  const Bytes room(out);
  const bool is_ip = wire::is_ip_service(service);
  if (is_ip) wire::emit_ip_service(addresses, room);
  std::ranges::copy(bytes, room.subspan(is_ip ? wire::kIpServiceBytes : 0).begin());
}

constexpr std::uint8_t kFailoverUnsupported = 1;

// What a field of so many bits can say of a number.
std::uint8_t clamped(std::uint8_t value, unsigned bits) {
  return std::min(value, static_cast<std::uint8_t>((1u << bits) - 1));
}

std::uint8_t transport_number(Transport transport) {
  switch (transport) {
    case Transport::Rc:
      return wire::kCmRc;
    case Transport::Uc:
      return wire::kCmUc;
    case Transport::Xrc:
      break;
  }
  return wire::kCmExtended;
}

wire::CmReq req_of(const Conversation& c, const ConnectRequest& request, std::uint64_t guid) {
  const Terms& t = c.terms;
  wire::CmReq req;
  req.local_id = c.local;
  req.vendor_id = request.ece.vendor_id;
  req.service = t.service;
  req.ca_guid = guid;
  req.qpn = t.local_qpn;
  req.responder_resources = t.responder_resources;
  req.initiator_depth = t.initiator_depth;
  req.remote_response_timeout = clamped(request.patience.response_timeout, 5);
  req.local_response_timeout = req.remote_response_timeout;
  req.transport = transport_number(t.transport);
  req.extended_transport = t.transport == Transport::Xrc ? wire::kCmXrc : 0;
  req.flow_control = t.flow_control;
  req.psn = t.local_psn;
  req.retry_count = t.retry_count;
  req.rnr_retry_count = t.rnr_retry_count;
  req.pkey = t.path.pkey;
  req.path_mtu = t.path.mtu;
  req.max_cm_retries = c.retries;
  req.srq = request.srq;
  req.primary = {.local_lid = 0xffff,  // RoCE has none; permissive, as Linux says it
                 .remote_lid = 0xffff,
                 .local_gid = t.path.local,
                 .remote_gid = t.path.remote,
                 .flow_label = t.path.flow_label,
                 .packet_rate = t.path.packet_rate,
                 .traffic_class = t.path.traffic_class,
                 .hop_limit = t.path.hop_limit,
                 .service_level = t.path.service_level,
                 .subnet_local = false,
                 .ack_timeout = t.path.ack_timeout};
  put_private(t.service, request.addresses, request.private_bytes, req.private_bytes);
  return req;
}

wire::CmRep rep_of(const Conversation& c, const AcceptRequest& request, const Settings& settings) {
  const Terms& t = c.terms;
  wire::CmRep rep;
  rep.local_id = c.local;
  rep.remote_id = c.remote;
  // An XRC target is named as the context that it was, before queue pairs had targets.
  (t.transport == Transport::Xrc ? rep.local_eecn : rep.qpn.value) = t.local_qpn.value;
  rep.vendor_id = request.ece.vendor_id;
  rep.psn = t.local_psn;
  rep.responder_resources = t.responder_resources;
  rep.initiator_depth = t.initiator_depth;
  rep.target_ack_delay = clamped(settings.ack_delay, 5);
  rep.failover = c.asks_failover ? kFailoverUnsupported : 0;
  rep.flow_control = request.flow_control;
  rep.rnr_retry_count = clamped(request.rnr_retry_count, 3);
  rep.srq = request.srq;
  rep.ca_guid = settings.ca_guid;
  put_private(request.private_bytes, rep.private_bytes);
  return rep;
}

}  // namespace

Agent::Agent(const Settings& settings, Prng prng) : settings_(settings), prng_(prng) {
  // Ids are drawn until one is free.
  ASSERT(settings.limits.conversations <= std::size_t{1} << (kCommIdBlockShift - 1));
  ASSERT(settings.block < 1u << (32 - kCommIdBlockShift));
}

Result<ListenerId, trace::Reason> Agent::listen(const ListenRequest& request) {
  const ListenerId id{last_listener_ + 1};
  if (!services_.emplace(std::pair(request.service, request.address), id).second)
    return trace::Reason{.id = ServiceTaken, .object = wire::port_of(request.service)};
  last_listener_ = id.value;
  listeners_[id] = {.request = request};
  return id;
}

void Agent::set_backlog(ListenerId listener, std::uint32_t backlog) {
  const auto it = listeners_.find(listener);
  ASSERT(it != listeners_.end());
  it->second.request.backlog = backlog;
  it->second.is_full_told = false;
}

void Agent::close(ListenerId listener) {
  const auto it = listeners_.find(listener);
  ASSERT(it != listeners_.end());
  services_.erase({it->second.request.service, it->second.request.address});
  listeners_.erase(it);
  std::erase_if(events_, [&](const Event& event) {
    return event.kind == EventKind::BacklogFull && event.listener == listener;
  });
}

Conversation* Agent::held(wire::CommId id) {
  const auto it = conversations_.find(id);
  return it != conversations_.end() && it->second.held ? &it->second : nullptr;
}

const Conversation* Agent::find(wire::CommId id) const {
  const auto it = conversations_.find(id);
  return it != conversations_.end() && it->second.held ? &it->second : nullptr;
}

Result<Conversation*, trace::Reason> Agent::open(const wire::IpAddresses& addresses,
                                                 const Path& path, const Patience& patience) {
  if (path.remote.is_zero()) return trace::Reason{.id = DestinationGidZero};
  if (path.local.is_ipv4() != path.remote.is_ipv4() ||
      addresses.source.is_ipv4() != addresses.destination.is_ipv4())
    return trace::Reason{.id = GidFamilyDiffers};
  if (path.mtu < 1 || path.mtu > settings_.mtu)
    return trace::Reason{
        .id = AttributeOutOfRange, .length = path.mtu, .low = 1, .high = settings_.mtu};
  Conversation* c = create();
  if (c == nullptr)
    return trace::Reason{.id = ConnectionsExhausted, .high = settings_.limits.conversations};
  c->transaction = c->local.value;
  c->terms.path = path;
  c->terms.path.ack_timeout = clamped(path.ack_timeout, 5);
  c->terms.addresses = addresses;
  set_patience(*c, clamped(patience.response_timeout, 5), clamped(patience.retries, 4));
  return c;
}

Result<wire::CommId, trace::Reason> Agent::connect(const ConnectRequest& request, Time now) {
  const bool is_ip = wire::is_ip_service(request.service);
  const auto too_long =
      check_private(request.private_bytes, is_ip ? kIpReqPrivateBytes : kReqPrivateBytes);
  if (too_long) return too_long;
  const auto opened = open(request.addresses, request.path, request.patience);
  if (!opened) return opened.error();
  Conversation& c = **opened;
  c.state = State::ReqSent;
  c.terms.transport = request.transport;
  c.terms.service = request.service;
  c.terms.local_qpn = request.qpn;
  c.terms.local_psn = {static_cast<std::uint32_t>(prng_.next()) & wire::kMask24};
  c.terms.responder_resources = request.responder_resources;
  c.terms.initiator_depth = request.initiator_depth;
  c.terms.retry_count = clamped(request.retry_count, 3);
  c.terms.rnr_retry_count = clamped(request.rnr_retry_count, 3);
  c.terms.flow_control = request.flow_control;
  send(c, req_of(c, request, settings_.ca_guid), request.ece.options);
  await_answer(c, now);
  return c.local;
}

Result<wire::CommId, trace::Reason> Agent::resolve(const ResolveRequest& request, Time now) {
  const bool is_ip = wire::is_ip_service(request.service);
  const auto too_long =
      check_private(request.private_bytes, is_ip ? kIpSidrReqPrivateBytes : kSidrReqPrivateBytes);
  if (too_long) return too_long;
  const auto opened = open(request.addresses, request.path, request.patience);
  if (!opened) return opened.error();
  Conversation& c = **opened;
  c.state = State::SidrSent;
  c.is_resolution = true;
  c.terms.service = request.service;
  wire::CmSidrReq req{.request_id = c.local, .pkey = c.terms.path.pkey, .service = request.service};
  put_private(request.service, request.addresses, request.private_bytes, req.private_bytes);
  send(c, req);
  await_answer(c, now);
  return c.local;
}

Agent::Done Agent::accept(wire::CommId id, const AcceptRequest& request, Time now) {
  Conversation* c = held(id);
  if (c == nullptr || c->state != State::ReqReceived)
    return trace::Reason{.id = ConnectionState, .object = id.value};
  const auto too_long = check_private(request.private_bytes, kRepPrivateBytes);
  if (too_long) return too_long;
  note_answered(*c);
  c->terms.local_qpn = request.qpn;
  // 12.7.29 and 12.7.30: at most what the request offered.
  c->terms.responder_resources =
      std::min(request.responder_resources, c->terms.responder_resources);
  c->terms.initiator_depth = std::min(request.initiator_depth, c->terms.initiator_depth);
  c->state = State::RepSent;
  send(*c, rep_of(*c, request, settings_), request.ece.options);
  await_answer(*c, now);
  return {};
}

Agent::Done Agent::answer(wire::CommId id, const ResolveAnswer& resolution, Time now) {
  Conversation* c = held(id);
  if (c == nullptr || c->state != State::SidrReceived)
    return trace::Reason{.id = ConnectionState, .object = id.value};
  const auto too_long = check_private(resolution.private_bytes, kSidrRepPrivateBytes);
  if (too_long) return too_long;
  note_answered(*c);
  c->terms.local_qpn = resolution.qpn;
  wire::CmSidrRep rep{.request_id = c->remote, .vendor_id = resolution.ece.vendor_id};
  rep.qpn = resolution.qpn;
  rep.service = c->terms.service;
  rep.qkey = resolution.qkey;
  put_private(resolution.private_bytes, rep.private_bytes);
  send(*c, rep, resolution.ece.options);
  linger(*c, now);
  return {};
}

Agent::Done Agent::reject(wire::CommId id, ConstBytes private_bytes, Time now) {
  Conversation* c = held(id);
  const bool is_resolution = c != nullptr && c->state == State::SidrReceived;
  if (!is_resolution &&
      (c == nullptr || (c->state != State::ReqReceived && c->state != State::RepReceived)))
    return trace::Reason{.id = ConnectionState, .object = id.value};
  const auto too_long =
      check_private(private_bytes, is_resolution ? kSidrRepPrivateBytes : kRejPrivateBytes);
  if (too_long) return too_long;
  note_answered(*c);
  if (is_resolution) {
    refuse_datagrams(*c, private_bytes, now);
  } else {
    send_rej(*c, c->is_passive() ? wire::CmSubject::Req : wire::CmSubject::Rep,
             wire::RejReason::Consumer, private_bytes);
    linger(*c, now);
  }
  return {};
}

Agent::Done Agent::establish(wire::CommId id, ConstBytes private_bytes, Time) {
  Conversation* c = held(id);
  const State state = c != nullptr ? c->state : State::Closed;
  if (state != State::RepReceived && state != State::RepSent && state != State::Established)
    return trace::Reason{.id = ConnectionState, .object = id.value};
  const auto too_long = check_private(private_bytes, kRtuPrivateBytes);
  if (too_long) return too_long;
  if (state == State::RepReceived) {
    wire::CmRtu rtu{.local_id = c->local, .remote_id = c->remote};
    put_private(private_bytes, rtu.private_bytes);
    send(*c, rtu);
    c->state = State::Established;
    c->was_connected = true;
  } else if (state == State::RepSent) {
    establish_by_peer(*c, {});
  }
  return {};
}

Agent::Done Agent::disconnect(wire::CommId id, ConstBytes private_bytes, Time now) {
  Conversation* c = held(id);
  if (c != nullptr && (c->is_over() || c->state == State::DreqSent)) return {};
  if (c == nullptr || c->state != State::Established)
    return trace::Reason{.id = ConnectionState, .object = id.value};
  const auto too_long = check_private(private_bytes, kDreqPrivateBytes);
  if (too_long) return too_long;
  send_dreq(*c, private_bytes, now);
  return {};
}

void Agent::destroy(wire::CommId id, Time now) {
  Conversation* c = held(id);
  ASSERT(c != nullptr);
  c->held = false;
  note_answered(*c);
  std::erase_if(events_, [&](const Event& event) { return event.id == id; });
  switch (c->state) {
    case State::ReqSent:
      send_rej(*c, wire::CmSubject::Req, wire::RejReason::Timeout);
      close(*c);
      break;
    case State::ReqReceived:
      send_rej(*c, wire::CmSubject::Req, wire::RejReason::Consumer);
      linger(*c, now);
      break;
    case State::RepReceived:
    case State::RepSent:
      send_rej(*c, c->is_passive() ? wire::CmSubject::Other : wire::CmSubject::Rep,
               wire::RejReason::Consumer);
      linger(*c, now);
      break;
    case State::Established:
      send_dreq(*c, {}, now);
      break;
    case State::SidrReceived:
      refuse_datagrams(*c, {}, now);
      break;
    case State::DreqSent:
    case State::TimeWait:
      arm(*c, c->deadline);  // it counts as lingering from now on
      break;
    case State::SidrSent:
    case State::Closed:
      close(*c);
      break;
  }
  trim();
}

void Agent::say(const Conversation& c, const wire::CmMadBytes& mad) {
  out_.push_back({.source = c.terms.path.local, .destination = c.terms.path.remote, .mad = mad});
}

void Agent::send(Conversation& c, const wire::CmMessage& message, std::uint32_t modifier) {
  const bool begins = std::holds_alternative<wire::CmDreq>(message);
  c.last = wire::emit_cm({.transaction = begins ? std::uint64_t{c.local.value} : c.transaction,
                          .modifier = modifier,
                          .message = message});
  say(c, *c.last);
}

void Agent::send_rej(Conversation& c, wire::CmSubject subject, wire::RejReason reason,
                     ConstBytes private_bytes) {
  wire::CmRej rej{.local_id = c.local, .remote_id = c.remote, .subject = subject};
  rej.reason = reason;
  if (reason == wire::RejReason::Timeout) {  // table 109: with it goes who has waited
    rej.additional_length = sizeof settings_.ca_guid;
    store_be(Bytes(rej.additional), 0, settings_.ca_guid);
  }
  put_private(private_bytes, rej.private_bytes);
  send(c, rej);
}

void Agent::send_dreq(Conversation& c, ConstBytes private_bytes, Time now) {
  wire::CmDreq dreq{.local_id = c.local, .remote_id = c.remote, .remote_qpn = c.terms.remote_qpn};
  put_private(private_bytes, dreq.private_bytes);
  send(c, dreq);
  c.state = State::DreqSent;
  await_answer(c, now);
}

void Agent::refuse_datagrams(Conversation& c, ConstBytes private_bytes, Time now) {
  wire::CmSidrRep rep{.request_id = c.remote, .status = wire::SidrStatus::Rejected};
  rep.service = c.terms.service;
  put_private(private_bytes, rep.private_bytes);
  send(c, rep);
  linger(c, now);
}

void Agent::tell(const Conversation& c, EventKind kind, ConstBytes private_bytes,
                 const trace::Reason& reason, std::uint16_t status) {
  if (!c.held) return;
  events_.push_back({.kind = kind,
                     .id = c.local,
                     .listener = c.listener,
                     .status = status,
                     .reason = reason,
                     .terms = c.terms,
                     .private_bytes = {private_bytes.begin(), private_bytes.end()}});
}

std::optional<Outgoing> Agent::poll_datagram() {
  if (out_.empty()) return std::nullopt;
  const Outgoing first = out_.front();
  out_.pop_front();
  return first;
}

std::optional<Event> Agent::poll_event() {
  if (events_.empty()) return std::nullopt;
  Event first = std::move(events_.front());
  events_.pop_front();
  return first;
}

}  // namespace softhca::cm
