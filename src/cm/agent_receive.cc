// What the agent does with datagrams.
#include <algorithm>

#include "cm/agent.h"
#include "cm/rejection.h"
#include "wire/time_code.h"

namespace softhca::cm {
namespace {

using wire::CmSubject;
using wire::RejReason;

// How long the answer to a resolution is kept for who asks again: 8.6 s, since a SIDR_REQ says
// nothing of times, and Linux asks again after 4.3 s.
constexpr std::uint8_t kResolutionTimeout = 21;

std::optional<Transport> transport_of(const wire::CmReq& req) {
  if (req.transport == wire::kCmRc) return Transport::Rc;
  if (req.transport == wire::kCmUc) return Transport::Uc;
  if (req.transport == wire::kCmExtended && req.extended_transport == wire::kCmXrc)
    return Transport::Xrc;
  return std::nullopt;
}

// A number of a peer that decides how long something of this side waits.
std::uint8_t believed(std::uint8_t code) { return std::min(code, kMaxPatience); }

struct Refusal {
  RejReason reason{};  // 0: none
  wire::PrivateBytes<16> additional{};
  std::size_t additional_length{};
};

// What is wrong with a request, whoever listens. The addresses in it must be those that it came
// with: else the answer, and the connection, would go to somebody who has not asked.
Refusal check_req(const wire::CmReq& req, const Arrival& from, std::uint8_t mtu) {
  if (req.local_id.value == 0) return {.reason = RejReason::InvalidCommId};
  if (!transport_of(req)) return {.reason = RejReason::InvalidTransport};
  if (req.primary.local_gid != from.source || req.primary.remote_gid != from.destination) {
    Refusal refusal{.reason = RejReason::InvalidGid, .additional_length = 16};
    std::ranges::copy(std::as_bytes(std::span(from.destination.bytes)), refusal.additional.begin());
    return refusal;
  }
  if (req.path_mtu < 1 || req.path_mtu > mtu) {
    Refusal refusal{.reason = RejReason::InvalidMtu, .additional_length = 1};
    refusal.additional[0] = std::byte{mtu};
    return refusal;
  }
  if (wire::is_ip_service(req.service) && !wire::parse_ip_service(req.private_bytes))
    return {.reason = RejReason::UnsupportedRequest};
  return {};
}

Terms terms_of(const wire::CmReq& req) {
  Terms t;
  t.transport = *transport_of(req);
  t.service = req.service;
  if (wire::is_ip_service(req.service)) t.addresses = *wire::parse_ip_service(req.private_bytes);
  t.path = {.local = req.primary.remote_gid,
            .remote = req.primary.local_gid,
            .flow_label = req.primary.flow_label,
            .traffic_class = req.primary.traffic_class,
            .hop_limit = req.primary.hop_limit,
            .service_level = req.primary.service_level,
            .packet_rate = req.primary.packet_rate,
            .pkey = req.pkey,
            .mtu = req.path_mtu,
            .ack_timeout = believed(req.primary.ack_timeout)};
  t.remote_qpn = req.qpn;
  t.remote_psn = req.psn;
  t.responder_resources = req.initiator_depth;
  t.initiator_depth = req.responder_resources;
  t.retry_count = req.retry_count;
  t.rnr_retry_count = req.rnr_retry_count;
  t.flow_control = req.flow_control;
  t.remote_srq = req.srq;
  t.remote_guid = req.ca_guid;
  return t;
}

// The code of a time that holds those of both codes (12.7.34: the path, and the target's delay).
std::uint8_t sum_of_times(std::uint8_t a, std::uint8_t b) {
  const std::uint8_t longer = std::max(a, b), shorter = std::min(a, b);
  const unsigned sum = longer + (shorter + 1u >= longer ? 1u : 0u);
  return static_cast<std::uint8_t>(std::min<unsigned>(sum, wire::kMaxTimeCode));
}

// The program's bytes of a request: behind the addresses, if it has them.
ConstBytes program_bytes(wire::ServiceId service, ConstBytes private_bytes) {
  return private_bytes.subspan(wire::is_ip_service(service) ? wire::kIpServiceBytes : 0);
}

}  // namespace

void Agent::on_datagram(const Arrival& arrival, ConstBytes bytes, Time now) {
  const auto mad = wire::parse_cm(bytes);
  if (!mad || arrival.source_qpn != wire::kManagementQpn) {
    ++tally_.malformed;
    return;
  }
  const Received in{arrival, *mad, now};
  std::visit([&](const auto& message) { on(in, message); }, mad->message);
  trim();
}

// Until its REP a peer may be anybody at its address: a listener's process may be another's.
Conversation* Agent::find(const Arrival& from, wire::CommId local, wire::CommId remote,
                          bool is_resolution) {
  const auto it = conversations_.find(local);
  if (it == conversations_.end()) return nullptr;
  Conversation& c = it->second;
  const bool is_from_peer =
      c.terms.path.remote == from.source && c.terms.path.local == from.destination;
  const bool is_its = c.remote.value == 0 || c.remote == remote;
  return is_from_peer && is_its && c.is_resolution == is_resolution ? &c : nullptr;
}

Conversation* Agent::find_request(const wire::Gid& source, wire::CommId remote,
                                  bool is_resolution) {
  const auto it = by_remote_.find({source, remote, is_resolution});
  return it == by_remote_.end() ? nullptr : &conversations_.at(it->second);
}

// True if the message is to be taken. If not, it has got the answer that it deserves.
bool Agent::admit(Conversation* c, const Received& in) {
  const Reaction what =
      c == nullptr ? Reaction::Unknown : reaction(c->state, in.mad.message.index());
  if (what == Reaction::Take) return true;
  if (what == Reaction::Unknown)
    ++tally_.unknown;
  else
    ++tally_.duplicates;
  switch (what) {
    case Reaction::Take:
    case Reaction::Ignore:
      break;
    case Reaction::Delay:
      delay(*c, c->is_passive() ? CmSubject::Req : CmSubject::Rep);
      break;
    case Reaction::Repeat:
      if (c->last) say(*c, *c->last);
      break;
    case Reaction::Answer:
    case Reaction::Unknown:
      answer_unknown(in);
      break;
  }
  return false;
}

// 12.9.8.2: who believes in a conversation that is over here learns that it is.
void Agent::answer_unknown(const Received& in) {
  if (const auto* rep = std::get_if<wire::CmRep>(&in.mad.message)) {
    wire::CmRej rej{.local_id = rep->remote_id, .remote_id = rep->local_id};
    rej.subject = CmSubject::Rep;
    rej.reason = RejReason::InvalidCommId;
    reply(in, rej);
  } else if (const auto* dreq = std::get_if<wire::CmDreq>(&in.mad.message)) {
    reply(in, wire::CmDrep{.local_id = dreq->remote_id, .remote_id = dreq->local_id});
  }
}

void Agent::delay(const Conversation& c, CmSubject subject) {
  wire::CmMra mra{.local_id = c.local, .remote_id = c.remote, .subject = subject};
  mra.service_timeout = settings_.service_timeout;
  say(c, wire::emit_cm({.transaction = c.transaction, .message = mra}));
}

void Agent::reply(const Received& in, const wire::CmMessage& message) {
  out_.push_back({.source = in.from.destination,
                  .destination = in.from.source,
                  .mad = wire::emit_cm({.transaction = in.mad.transaction, .message = message})});
}

void Agent::refuse(const Received& in, const wire::CmReq& req, RejReason reason,
                   ConstBytes additional) {
  wire::CmRej rej{.remote_id = req.local_id, .subject = CmSubject::Req};
  rej.additional_length = static_cast<std::uint8_t>(additional.size());
  rej.reason = reason;
  std::ranges::copy(additional, rej.additional.begin());
  ++tally_.refused;
  reply(in, rej);
}

ListenerId Agent::listener_of(wire::ServiceId service, const wire::Gid& address) const {
  const bool is_ipv4 = address.is_ipv4();
  for (const wire::Gid& bound : {address, is_ipv4 ? kEveryIpv4Address : address, wire::Gid{}}) {
    const auto it = services_.find({service, bound});
    if (it == services_.end()) continue;
    if (!is_ipv4 || !listeners_.at(it->second).request.only_ipv6) return it->second;
  }
  return {};
}

// False if a request has to be dropped.
bool Agent::find_room(ListenerId id) {
  Listener& listener = listeners_.at(id);
  if (listener.unanswered < listener.request.backlog) return true;
  ++tally_.dropped;
  if (!listener.is_full_told)
    events_.push_back({.kind = EventKind::BacklogFull,
                       .listener = id,
                       .reason = {.id = trace::ReasonId::BacklogFull,
                                  .object = wire::port_of(listener.request.service),
                                  .high = listener.request.backlog}});
  listener.is_full_told = true;
  return false;
}

// Null if there is no room.
Conversation* Agent::open_passive(const Received& in, ListenerId listener, wire::CommId remote,
                                  const Terms& terms) {
  Conversation* c = create();
  if (c == nullptr) return nullptr;
  c->remote = remote;
  c->is_resolution = std::holds_alternative<wire::CmSidrReq>(in.mad.message);
  c->state = c->is_resolution ? State::SidrReceived : State::ReqReceived;
  c->listener = listener;
  c->unanswered = true;
  ++listeners_.at(listener).unanswered;
  c->transaction = in.mad.transaction;
  c->terms = terms;
  by_remote_[{in.from.source, remote, c->is_resolution}] = c->local;
  return c;
}

// 12.9.8.3.1: true if the peer's queue pair has a conversation here already, which the peer does
// not know of any more.
bool Agent::take_down_stale(const QpKey& key, Time now) {
  const auto it = by_qp_.find(key);
  if (it == by_qp_.end()) return false;
  Conversation& old = conversations_.at(it->second);
  if (old.state == State::Established) send_dreq(old, {}, now);
  return true;
}

void Agent::on(const Received& in, const wire::CmReq& req) {
  if (Conversation* c = find_request(in.from.source, req.local_id, false)) {
    const bool is_same = c->terms.remote_qpn == req.qpn && c->terms.remote_psn == req.psn &&
                         c->terms.service == req.service;
    if (is_same)
      static_cast<void>(admit(c, in));
    else
      refuse(in, req, RejReason::DuplicateCommId);
    return;
  }
  const Refusal wrong = check_req(req, in.from, settings_.mtu);
  if (wrong.reason != RejReason{})
    return refuse(in, req, wrong.reason,
                  ConstBytes(wrong.additional).first(wrong.additional_length));
  Terms terms = terms_of(req);
  terms.remote_ece = {req.vendor_id, in.mad.modifier};
  const ListenerId listener =
      listener_of(req.service, wire::is_ip_service(req.service) ? terms.addresses.destination
                                                                : in.from.destination);
  if (listener == ListenerId{}) return refuse(in, req, RejReason::InvalidServiceId);
  if (listeners_.at(listener).request.datagrams)
    return refuse(in, req, RejReason::InvalidTransport);
  const QpKey qp{in.from.source, req.qpn};
  if (take_down_stale(qp, in.now)) return refuse(in, req, RejReason::StaleConnection);
  if (!find_room(listener)) return;
  Conversation* c = open_passive(in, listener, req.local_id, terms);
  if (c == nullptr) return refuse(in, req, RejReason::NoResources);
  by_qp_[qp] = c->local;
  // Drawn now, since a program makes its queue pair ready before it accepts.
  c->terms.local_psn = {static_cast<std::uint32_t>(prng_.next()) & wire::kMask24};
  c->asks_failover = req.alternate != wire::CmPath{};
  set_patience(*c, believed(req.local_response_timeout), req.max_cm_retries);
  // So that a REJ that is lost is there when the request comes again.
  c->linger_time = wire::duration_of(believed(req.remote_response_timeout)) +
                   wire::duration_of(terms.path.ack_timeout) * 2;
  tell(*c, EventKind::ConnectRequest, program_bytes(req.service, req.private_bytes));
}

void Agent::on(const Received& in, const wire::CmMra& mra) {
  Conversation* c = find(in.from, mra.remote_id, mra.local_id);
  if (!admit(c, in)) return;
  const CmSubject subject = c->state == State::ReqSent ? CmSubject::Req : CmSubject::Rep;
  // Once for each time that something was sent, or a peer could hold it for ever.
  if (mra.subject != subject || c->delayed) {
    ++tally_.duplicates;
    return;
  }
  c->delayed = true;
  arm(*c, later(c->deadline, in.now + wire::duration_of(believed(mra.service_timeout)) +
                                 wire::duration_of(c->terms.path.ack_timeout)));
}

// A REQ may be refused by who has no id for it; and who gives one up has no id of the other side.
void Agent::on(const Received& in, const wire::CmRej& rej) {
  Conversation* c = rej.remote_id.value == 0 ? find_request(in.from.source, rej.local_id, false)
                                             : find(in.from, rej.remote_id, rej.local_id);
  if (!admit(c, in)) return;
  const trace::Reason reason = reason_of(rej.reason);
  switch (c->state) {
    case State::DreqSent:
      return end_established(*c, {}, {}, in.now);
    case State::Established:
      return end_established(*c, {}, reason, in.now);
    default:
      c->last.reset();
      tell(*c, EventKind::Rejected, rej.private_bytes, reason,
           static_cast<std::uint16_t>(rej.reason));
      c->state == State::ReqSent ? close(*c) : linger(*c, in.now);
  }
}

void Agent::on(const Received& in, const wire::CmRep& rep) {
  Conversation* c = find(in.from, rep.remote_id, rep.local_id);
  if (!admit(c, in)) return;
  Terms& t = c->terms;
  c->remote = rep.local_id;
  t.remote_qpn = t.transport == Transport::Xrc ? wire::Qpn{rep.local_eecn} : rep.qpn;
  const QpKey qp{t.path.remote, t.remote_qpn};
  if (take_down_stale(qp, in.now)) {
    send_rej(*c, CmSubject::Rep, RejReason::StaleConnection);
    tell(*c, EventKind::Rejected, {}, reason_of(RejReason::StaleConnection),
         static_cast<std::uint16_t>(RejReason::StaleConnection));
    return linger(*c, in.now);
  }
  by_qp_[qp] = c->local;
  t.remote_psn = rep.psn;
  t.responder_resources = std::min(t.responder_resources, rep.initiator_depth);
  t.initiator_depth = std::min(t.initiator_depth, rep.responder_resources);
  t.rnr_retry_count = rep.rnr_retry_count;
  t.flow_control = rep.flow_control;
  t.remote_srq = rep.srq;
  t.remote_guid = rep.ca_guid;
  t.remote_ece = {rep.vendor_id, in.mad.modifier};
  t.path.ack_timeout = sum_of_times(t.path.ack_timeout, believed(rep.target_ack_delay));
  c->state = State::RepReceived;
  c->last.reset();
  arm(*c, Time::never());
  tell(*c, EventKind::Reply, rep.private_bytes);
}

void Agent::on(const Received& in, const wire::CmRtu& rtu) {
  Conversation* c = find(in.from, rtu.remote_id, rtu.local_id);
  if (admit(c, in)) establish_by_peer(*c, rtu.private_bytes);
}

// Answered at once, whenever the program will look: nothing that it could say would change it.
void Agent::on(const Received& in, const wire::CmDreq& dreq) {
  Conversation* c = find(in.from, dreq.remote_id, dreq.local_id);
  if (!admit(c, in)) return;
  if (dreq.remote_qpn != c->terms.local_qpn) {
    ++tally_.unknown;
    return;
  }
  // Its RTU was lost.
  if (c->state == State::RepSent) establish_by_peer(*c, {});
  answer_unknown(in);
  end_established(*c, dreq.private_bytes, {}, in.now);
}

void Agent::on(const Received& in, const wire::CmDrep& drep) {
  Conversation* c = find(in.from, drep.remote_id, drep.local_id);
  if (admit(c, in)) end_established(*c, drep.private_bytes, {}, in.now);
}

void Agent::on(const Received& in, const wire::CmSidrReq& req) {
  if (Conversation* c = find_request(in.from.source, req.request_id, true)) {
    static_cast<void>(admit(c, in));
    return;
  }
  const auto say = [&](wire::SidrStatus status) {
    wire::CmSidrRep rep{.request_id = req.request_id, .status = status};
    rep.service = req.service;
    ++tally_.refused;
    reply(in, rep);
  };
  Terms terms;
  terms.service = req.service;
  terms.path = {.local = in.from.destination, .remote = in.from.source};
  terms.path.pkey = req.pkey;
  terms.path.mtu = settings_.mtu;
  const auto addresses = wire::parse_ip_service(req.private_bytes);
  const bool is_ip = wire::is_ip_service(req.service);
  if (is_ip && !addresses) return say(wire::SidrStatus::UnsupportedVersion);
  if (is_ip) terms.addresses = *addresses;
  const ListenerId listener =
      listener_of(req.service, is_ip ? addresses->destination : in.from.destination);
  if (listener == ListenerId{} || !listeners_.at(listener).request.datagrams)
    return say(wire::SidrStatus::Unsupported);
  if (!find_room(listener)) return;
  Conversation* c = open_passive(in, listener, req.request_id, terms);
  if (c == nullptr) return say(wire::SidrStatus::NoQp);
  c->linger_time = wire::duration_of(kResolutionTimeout);
  tell(*c, EventKind::ResolveRequest, program_bytes(req.service, req.private_bytes));
}

void Agent::on(const Received& in, const wire::CmSidrRep& rep) {
  Conversation* c = find(in.from, rep.request_id, {}, true);  // the answer has no id of its own
  if (!admit(c, in)) return;
  c->terms.remote_qpn = rep.qpn;
  c->terms.remote_qkey = rep.qkey;
  c->terms.remote_ece = {rep.vendor_id, in.mad.modifier};
  if (rep.status == wire::SidrStatus::Valid)
    tell(*c, EventKind::Resolved, rep.private_bytes);
  else
    tell(*c, EventKind::Rejected, rep.private_bytes, reason_of(rep.status),
         static_cast<std::uint16_t>(rep.status));
  close(*c);
}

}  // namespace softhca::cm
