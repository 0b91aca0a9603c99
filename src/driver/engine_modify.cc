// The engine's modify_qp: the state table, the ranges of attributes, and the path to the peer.
#include <algorithm>

#include "driver/engine.h"
#include "driver/engine_state.h"
#include "transport/qp_state.h"

namespace softhca::driver {

using trace::Reason;
using trace::ReasonId;
using transport::QpAttribute;
using transport::QpAttributes;
using transport::QpState;

namespace {

// Takes over what the mask names.
void merge(QpAttributes& into, const QpAttributes& from, transport::QpAttributeMask mask) {
  const auto take = [&](QpAttribute bit, auto member) {
    if (mask.has(bit)) into.*member = from.*member;
  };
  take(QpAttribute::AccessFlags, &QpAttributes::access_flags);
  take(QpAttribute::PkeyIndex, &QpAttributes::pkey_index);
  take(QpAttribute::Port, &QpAttributes::port);
  take(QpAttribute::Qkey, &QpAttributes::qkey);
  take(QpAttribute::AddressVector, &QpAttributes::address);
  take(QpAttribute::PathMtu, &QpAttributes::path_mtu_bytes);
  take(QpAttribute::Timeout, &QpAttributes::timeout);
  take(QpAttribute::RetryCount, &QpAttributes::retry_count);
  take(QpAttribute::RnrRetry, &QpAttributes::rnr_retry);
  take(QpAttribute::RqPsn, &QpAttributes::rq_psn);
  take(QpAttribute::SqPsn, &QpAttributes::sq_psn);
  take(QpAttribute::MaxReads, &QpAttributes::max_reads);
  take(QpAttribute::MaxDestReads, &QpAttributes::max_dest_reads);
  take(QpAttribute::MinRnrTimer, &QpAttributes::min_rnr_timer);
  take(QpAttribute::DestQpn, &QpAttributes::dest_qpn);
  take(QpAttribute::PathMigState, &QpAttributes::path_mig_state);
  into.rq_psn.value &= wire::kMask24;
  into.sq_psn.value &= wire::kMask24;
}

struct Bound {
  QpAttribute attribute;
  std::uint64_t value;
  std::uint64_t low;
  std::uint64_t high;
};

Reason check_ranges(const QpAttributes& a, transport::QpAttributeMask mask) {
  const Bound bounds[] = {
      {QpAttribute::Port, a.port, 1, 1},
      {QpAttribute::PkeyIndex, a.pkey_index, 0, 0},
      {QpAttribute::Timeout, a.timeout, 0, 31},
      {QpAttribute::RetryCount, a.retry_count, 0, 7},
      {QpAttribute::RnrRetry, a.rnr_retry, 0, 7},
      {QpAttribute::MinRnrTimer, a.min_rnr_timer, 0, 31},
      {QpAttribute::MaxReads, a.max_reads, 0, nic::kMaxReads},
      {QpAttribute::MaxDestReads, a.max_dest_reads, 0, nic::kMaxReads},
      {QpAttribute::PathMtu, a.path_mtu_bytes, 256, 4096},
      {QpAttribute::DestQpn, a.dest_qpn.value, 0, wire::kMask24},
  };
  for (const Bound& b : bounds)
    if (mask.has(b.attribute) && (b.value < b.low || b.value > b.high))
      return {.id = ReasonId::AttributeOutOfRange,
              .object = static_cast<std::uint32_t>(b.attribute),
              .length = b.value,
              .low = b.low,
              .high = b.high};
  return {};
}

}  // namespace

Reason Engine::check_address(const transport::AddressVector& address) const {
  const auto& gids = state_->gids;
  if (!address.is_global) return {.id = ReasonId::NoGrh};
  const auto source = std::ranges::find(gids, address.source_gid_index, &GidEntry::index);
  if (source == gids.end())
    return {.id = ReasonId::GidIndexUnset, .object = address.source_gid_index};
  if (address.destination.is_zero()) return {.id = ReasonId::DestinationGidZero};
  if (address.destination.is_ipv4() != source->gid.is_ipv4())
    return {.id = ReasonId::GidFamilyDiffers, .object = address.source_gid_index};
  return {};
}

// Datagrams come to any address of the port. One that cannot be opened is told of and does without.
Reason Engine::open_addresses(const QueuePair& qp) const {
  const EngineState& s = *state_;
  Reason first = s.port.down ? s.port.down : Reason{.id = ReasonId::GidIndexUnset};
  bool any = false;
  for (const GidEntry& entry : s.gids) {
    const auto port = s.parts.open_path(entry.gid, qp.qpn());
    if (!port && !any) first = port.error();
    any |= static_cast<bool>(port);
  }
  return any ? Reason{} : first;
}

Result<void, Reason> Engine::modify_qp(QueuePair& qp, const QpAttributes& wanted,
                                       transport::QpAttributeMask mask, Time now) {
  EngineState& s = *state_;
  const auto refuse = [&](const Reason& reason) {
    s.parts.tracer.emit(reason, now);
    s.tell("modify of queue pair " + std::to_string(qp.qpn().value), reason, &qp);
    return reason;
  };
  const QpState from = qp.state();
  const QpState to = mask.has(QpAttribute::State) ? wanted.state : from;
  if (const Reason bad = transport::check_transition(qp.type(), from, to, mask)) return refuse(bad);
  if (const Reason bad = check_ranges(wanted, mask)) return refuse(bad);
  if (mask.has(QpAttribute::CurrentState) && wanted.believed != from)
    return refuse({.id = ReasonId::StateDiffers,
                   .object = static_cast<std::uint32_t>(wanted.believed) << 8 |
                             static_cast<std::uint32_t>(from)});
  QpAttributes next = qp.attributes_;
  merge(next, wanted, mask);
  next.notify_drained = mask.has(QpAttribute::EnableSqdNotify) && wanted.notify_drained;

  wire::Datagram path;
  if (mask.has(QpAttribute::AddressVector)) {
    if (next.address.port != 1)
      return refuse({.id = ReasonId::AttributeOutOfRange,
                     .object = static_cast<std::uint32_t>(QpAttribute::AddressVector),
                     .length = next.address.port,
                     .low = 1,
                     .high = 1});
    if (const Reason bad = check_address(next.address)) return refuse(bad);
    if (next.path_mtu_bytes > s.port.active_mtu)
      return refuse(
          {.id = ReasonId::MtuTooLarge, .length = next.path_mtu_bytes, .high = s.port.active_mtu});
    path.source = std::ranges::find(s.gids, next.address.source_gid_index, &GidEntry::index)->gid;
    path.destination = next.address.destination;
    path.hop_limit = hop_limit_of(next.address);
    path.traffic_class = next.address.traffic_class;
    path.flow_label = next.address.flow_label;
    const auto port = s.parts.open_path(path.source, qp.qpn());
    if (!port) return refuse(port.error());
    path.source_port = *port;
  }
  if (qp.type() == transport::QpType::Ud && from == QpState::Init && to == QpState::Rtr) {
    next.path_mtu_bytes = s.port.active_mtu;  // C10-93: of the port
    if (const Reason bad = open_addresses(qp)) return refuse(bad);
  }
  if (to == QpState::Reset) {
    next = {};
    qp.send_.posted = qp.send_.rung = qp.send_.signaled = qp.receive_.posted = qp.receive_.rung = 0;
  }
  s.device.modify_qp(qp.qpn(), next, to, path, now);
  if (qp.type() == transport::QpType::RawPacket) s.open_for_frames();
  if (to == QpState::Reset) {
    for (CompletionQueue* const cq : {qp.send_cq(), qp.receive_cq()})
      if (cq != nullptr) cq->forget(qp.qpn());
  }
  qp.attributes_ = next;
  return {};
}

}  // namespace softhca::driver
