#include "driver/particulars.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "driver/engine_state.h"
#include "trace/words.h"
#include "transport/qp_state.h"

namespace softhca::driver {

using trace::Reason;
using trace::ReasonId;
using transport::QpState;

namespace {

template <std::size_t N>
std::string names_of(std::uint32_t bits,
                     const std::array<std::pair<std::uint32_t, const char*>, N>& names) {
  std::string text;
  for (const auto& [bit, name] : names) {
    if ((bits & bit) == 0) continue;
    if (!text.empty()) text += "|";
    text += name;
  }
  return text.empty() ? "none" : text;
}

std::string rights_text(std::uint32_t access) {
  return names_of(access,
                  std::array<std::pair<std::uint32_t, const char*>, 6>{{{1, "LOCAL_WRITE"},
                                                                        {2, "REMOTE_WRITE"},
                                                                        {4, "REMOTE_READ"},
                                                                        {8, "REMOTE_ATOMIC"},
                                                                        {16, "MW_BIND"},
                                                                        {64, "ON_DEMAND"}}});
}

// As a program writes them, without IBV_QP_ in front.
std::string attributes_text(std::uint32_t mask) {
  return names_of(
      mask, std::array<std::pair<std::uint32_t, const char*>, 18>{{{1u << 1, "CUR_STATE"},
                                                                   {1u << 2, "EN_SQD_ASYNC_NOTIFY"},
                                                                   {1u << 3, "ACCESS_FLAGS"},
                                                                   {1u << 4, "PKEY_INDEX"},
                                                                   {1u << 5, "PORT"},
                                                                   {1u << 6, "QKEY"},
                                                                   {1u << 7, "AV"},
                                                                   {1u << 8, "PATH_MTU"},
                                                                   {1u << 9, "TIMEOUT"},
                                                                   {1u << 10, "RETRY_CNT"},
                                                                   {1u << 11, "RNR_RETRY"},
                                                                   {1u << 12, "RQ_PSN"},
                                                                   {1u << 13, "MAX_QP_RD_ATOMIC"},
                                                                   {1u << 14, "ALT_PATH"},
                                                                   {1u << 15, "MIN_RNR_TIMER"},
                                                                   {1u << 16, "SQ_PSN"},
                                                                   {1u << 17, "MAX_DEST_RD_ATOMIC"},
                                                                   {1u << 20, "DEST_QPN"}}});
}

// What the key table has under a key, whether that is valid or not.
std::string key_text(const EngineState& s, const Reason& reason, const QueuePair* qp) {
  const wire::Key key{reason.object};
  const auto& keys = s.parts.tables.keys;
  if (key.index() >= keys.size() || keys[key.index()].generation == 0)
    return " No region ever had this key.";
  const nic::KeyRecord& record = keys[key.index()];
  const bool is_live = s.device.keys().find(key) != nullptr;
  if (!is_live) {
    const bool replaced = record.state == static_cast<std::uint32_t>(nic::KeyState::Valid);
    return fmt::format(" That region was deregistered{}.",
                       replaced ? ", and another one has its place" : "");
  }
  std::string text = fmt::format(" The region: {} bytes at {:#x}, rights {}, domain {}{}.",
                                 record.bytes, record.start, rights_text(record.access), record.pd,
                                 s.registrations.place_text(key));
  if (reason.id == ReasonId::KeyOtherDomain && qp != nullptr)
    text += fmt::format(" The queue pair's domain: {}.", qp->pd());
  if (reason.id == ReasonId::OutOfBounds) {
    const std::uint64_t end = record.start + record.bytes;
    const std::uint64_t outside = reason.address < record.start ? reason.address
                                  : reason.address < end        ? end
                                                                : reason.address;
    text += fmt::format(" The first byte outside: {:#x}.", outside);
  }
  return text;
}

std::string peer_text(const transport::QpAttributes& a) {
  return fmt::format("{} queue pair {:#x}", wire::gid_text(a.address.destination),
                     a.dest_qpn.value);
}

std::string patience_text(const transport::QpAttributes& a) {
  const double milliseconds = static_cast<double>(transport::ack_timeout(a.timeout).ps) / 1e9;
  return fmt::format("timeout {} ({:.3g} ms), retry_cnt {}", a.timeout, milliseconds,
                     a.retry_count);
}

std::string silence_text(const transport::QpAttributes& a) {
  return fmt::format(" The peer: {}; {}.", peer_text(a), patience_text(a));
}

// What to look at, the likeliest first.
std::string likely_text(const nic::Silence& silence, std::size_t packet_bytes) {
  if (silence.by_pair)
    return fmt::format(
        " It was last heard {} ago. Likely: it stopped or died; packets are lost; or, if only long "
        "messages stick, a link on the way carries less than {} bytes.",
        trace::time_text(*silence.by_pair), packet_bytes);
  if (silence.of_peer)
    return fmt::format(
        " This queue pair never heard of it; others heard its address {} ago. Likely: the QPN is "
        "wrong, or that queue pair is not in RTR, or gone.",
        trace::time_text(*silence.of_peer));
  return fmt::format(
      " Nothing was ever heard of it. Likely: its process does not run, or its queue pair is not "
      "in RTR; GID or QPN are wrong; a firewall drops UDP 4791; or a link on the way carries less "
      "than {} bytes.",
      packet_bytes);
}

// Of the longest packet.
std::size_t ip_bytes_at_most(const transport::QpAttributes& a) {
  const auto first = wire::opcode_of(wire::Service::Rc, wire::Operation::WriteFirst);
  return (a.address.destination.is_ipv4() ? wire::kIpv4Bytes : wire::kIpv6Bytes) + wire::kUdpBytes +
         wire::find_opcode(first)->header_bytes() + a.path_mtu_bytes + wire::kIcrcBytes;
}

std::string gids_text(const EngineState& s) {
  std::string text = " There are:";
  for (const GidEntry& entry : s.gids)
    text += fmt::format(" {} ({})", entry.index, wire::gid_text(entry.gid));
  return text + ".";
}

std::string transition_text(std::uint32_t from_and_to) {
  return fmt::format(" From {} to {}.",
                     transport::state_name(static_cast<QpState>(from_and_to >> 8)),
                     transport::state_name(static_cast<QpState>(from_and_to & 0xff)));
}

}  // namespace

std::string silence_of(const EngineState& s, const QueuePair& qp, const nic::Silence& silence) {
  const transport::QpAttributes& a = qp.attributes();
  const auto source = std::ranges::find(s.gids, a.address.source_gid_index, &GidEntry::index);
  return fmt::format(" From {} to {} by {}; path MTU {}, the interface's {}; {}.{}",
                     source == s.gids.end() ? "?" : wire::gid_text(source->gid), peer_text(a),
                     s.parts.interface.empty() ? "its cable" : s.parts.interface, a.path_mtu_bytes,
                     s.port.interface_mtu, patience_text(a),
                     likely_text(silence, ip_bytes_at_most(a)));
}

std::string name_of(wire::Qpn qpn) { return fmt::format("queue pair {:#x}", qpn.value); }

std::string particulars_of(const EngineState& s, const Reason& reason, const QueuePair* qp) {
  switch (reason.id) {
    case ReasonId::KeyUnknown:
    case ReasonId::KeyStale:
    case ReasonId::KeyOtherDomain:
    case ReasonId::RightMissing:
    case ReasonId::OutOfBounds:
    case ReasonId::AddressWraps:
      return key_text(s, reason, qp);
    case ReasonId::AttributeMissing:
      return " Missing: IBV_QP_" + attributes_text(reason.object) + ".";
    case ReasonId::AttributeNotAllowed:
    case ReasonId::AttributeOutOfRange:
      return " It is IBV_QP_" + attributes_text(reason.object) + ".";
    case ReasonId::BadTransition:
      return transition_text(reason.object);
    case ReasonId::GidIndexUnset:
      return gids_text(s);
    case ReasonId::QpNotReady:
      return qp == nullptr ? std::string()
                           : fmt::format(" It is in {}.", transport::state_name(qp->state()));
    case ReasonId::RetriesSpent:
      return qp == nullptr ? std::string() : silence_text(qp->attributes());
    case ReasonId::RnrRetriesSpent:
    case ReasonId::RemoteAccess:
    case ReasonId::RemoteInvalidRequest:
    case ReasonId::RemoteOperational:
      return qp == nullptr ? std::string() : " The peer: " + peer_text(qp->attributes()) + ".";
    case ReasonId::InjectedFault:
      return s.parts.faults == nullptr ? std::string() : s.parts.faults->origin_text(reason.object);
    default:
      return {};
  }
}

}  // namespace softhca::driver
