#include "faults/injector.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace softhca::faults {

using trace::Counter;
using trace::Reason;
using trace::ReasonId;

namespace {

bool is_side(Side wanted, Side side) { return wanted == Side::Both || wanted == side; }

// Where a time that is given, or none, ends.
Time end_of(Duration time, Time now) { return time == Duration{} ? Time::never() : now + time; }

}  // namespace

Injector::Injector(Plan plan, trace::Tracer& tracer)
    : name_(std::move(plan.name)), tracer_(tracer) {
  std::uint32_t number = 0;
  for (const Fault& fault : plan.faults) {
    spoils_packets_ |= is_of_packets(fault.what);
    entries_.push_back({.fault = fault, .number = ++number, .prng = Prng(fault.seed)});
  }
}

bool Injector::fits(const Fault& fault, wire::Qpn qpn, std::uint8_t opcode) const {
  if ((fault.qpn && *fault.qpn != qpn) || !fault.opcodes[opcode]) return false;
  if (fault.nth_qp == 0) return true;
  const auto one = std::ranges::find(queue_pairs_, qpn, &QueuePair::qpn);
  return one != queue_pairs_.end() && one->number == fault.nth_qp;
}

bool Injector::fits(const Fault& fault, wire::Qpn qpn, std::uint8_t opcode, wire::Psn psn) const {
  if (!fits(fault, qpn, opcode)) return false;
  if (!fault.psn) return true;
  const std::uint32_t length = (fault.psn->last.value - fault.psn->first.value) & wire::kMask24;
  return ((psn.value - fault.psn->first.value) & wire::kMask24) <= length;
}

// Which of this device's queue pairs a packet is to or from. Packets name their receiver; the
// sender is named by datagrams alone.
wire::Qpn Injector::own_end(Side side, ConstBytes packet) const {
  constexpr std::size_t kSourceQpn = wire::kBthBytes + 4;  // in the DETH
  const wire::Qpn receiver{load_be<std::uint32_t>(packet, 4) & wire::kMask24};
  if (side == Side::In) return receiver;
  const wire::OpcodeInfo* const info = wire::find_opcode(static_cast<std::uint8_t>(packet[0]));
  if (info != nullptr && info->has(wire::Header::Deth) && packet.size() >= kSourceQpn + 4)
    return {load_be<std::uint32_t>(packet, kSourceQpn) & wire::kMask24};
  const auto one = std::ranges::find(queue_pairs_, receiver, &QueuePair::peer);
  return one == queue_pairs_.end() ? wire::Qpn{} : one->qpn;
}

// Of something that fits it. Draws whatever the rest says, so that the stream goes by what fits.
bool Injector::is_turn(Entry& entry) {
  const Fault& fault = entry.fault;
  ++entry.fitted;
  const bool by_chance = !fault.chance || entry.prng.next() >> 32 < *fault.chance;
  if (!by_chance || entry.fitted < fault.nth || (entry.fitted - fault.nth) % fault.every != 0 ||
      entry.hits == fault.count)
    return false;
  ++entry.hits;
  return true;
}

void Injector::hit(const Entry& entry, Counter counter, const About& about, Time now) {
  ++injected_;
  tracer_.count(counter);
  tracer_.emit(trace::EventKind::FaultInjected, now, entry.number, entry.fault.line,
               static_cast<std::uint64_t>(entry.fault.what), about.object, about.at, about.opcode);
}

const Injector::Severed* Injector::find_severed(const wire::Gid& peer, Time now) {
  std::erase_if(severed_, [&](const Severed& one) { return one.until <= now; });
  const auto found = std::ranges::find(severed_, peer, &Severed::peer);
  return found == severed_.end() ? nullptr : &*found;
}

// What one fault does to a packet.
void Injector::mark(Entry& entry, ConstBytes packet, PacketFate& fate) const {
  const Fault& fault = entry.fault;
  switch (fault.what) {
    case What::Drop:
    case What::Sever:
      fate.is_lost = true;
      return;
    case What::Duplicate:
      fate.is_doubled = true;
      return;
    case What::Delay:
      fate.late = std::max(fate.late, fault.time);
      return;
    case What::Reorder:
      fate.passed_by = std::max(fate.passed_by, fault.passed_by);
      return;
    case What::Corrupt: {
      // Behind the BTH, all of which the ICRC covers.
      const std::uint64_t bits = (packet.size() - wire::kBthBytes) * 8;
      if (bits != 0) fate.flipped = wire::kBthBytes * 8 + entry.prng.below(bits);
      return;
    }
    case What::Truncate: {
      const std::size_t wanted = fault.bytes == 0 ? packet.size() / 2 : fault.bytes;
      fate.kept = std::min({wanted, packet.size() - 1, fate.kept.value_or(packet.size())});
      return;
    }
    default:
      ASSERT(false);
  }
}

Injector::PacketFate Injector::on_packet(Side side, const wire::Gid& peer, ConstBytes packet,
                                         Time now) {
  PacketFate fate;
  if (packet.size() < wire::kBthBytes) return fate;
  const auto opcode = static_cast<std::uint8_t>(packet[0]);
  const wire::Qpn qpn = own_end(side, packet);
  const wire::Psn psn{load_be<std::uint32_t>(packet, 8) & wire::kMask24};
  const About about{qpn.value, psn.value, opcode};
  const bool is_severed = find_severed(peer, now) != nullptr;
  for (Entry& entry : entries_) {
    const Fault& fault = entry.fault;
    if (!is_of_packets(fault.what) || (fault.what == What::Sever && is_severed) ||
        !is_side(fault.side, side) || !fits(fault, qpn, opcode, psn) || !is_turn(entry))
      continue;
    mark(entry, packet, fate);
    if (fault.what == What::Sever) {
      severed_.push_back({peer, end_of(fault.time, now), entry.number});
    } else {
      hit(entry, Counter::PacketsFaulted, about, now);
    }
  }
  if (const Severed* const severed = find_severed(peer, now)) {
    fate.is_lost = true;
    hit(entries_[severed->number - 1], Counter::PacketsFaulted, about, now);
  }
  return fate;
}

Injector::WorkFate Injector::on_work(wire::Qpn qpn, std::uint8_t opcode, std::uint64_t wr_id,
                                     Time now) {
  WorkFate fate;
  for (Entry& entry : entries_) {
    const Fault& fault = entry.fault;
    if (fault.what != What::FailWork || !fits(fault, qpn, opcode) ||
        (fault.wr_id && *fault.wr_id != wr_id) || !is_turn(entry))
      continue;
    if (fate.reason) continue;  // it fails once
    hit(entry, Counter::WorkFaulted, {qpn.value, wr_id, opcode}, now);
    fate = {fault.status, {.id = ReasonId::InjectedFault, .object = entry.number}};
  }
  return fate;
}

Time Injector::on_request(wire::Qpn qpn, const wire::Bth& bth, Time now) {
  Time until{0};
  for (Entry& entry : entries_) {
    if (entry.fault.what != What::StallResponder || !fits(entry.fault, qpn, bth.opcode, bth.psn) ||
        !is_turn(entry))
      continue;
    hit(entry, Counter::RequestsFaulted, {qpn.value, bth.psn.value, bth.opcode}, now);
    until = later(until, end_of(entry.fault.time, now));
  }
  return until;
}

bool Injector::denies_receive(wire::Qpn qpn, const wire::Bth& bth, Time now) {
  bool denied = false;
  for (Entry& entry : entries_) {
    if (entry.fault.what != What::ForceRnr || !fits(entry.fault, qpn, bth.opcode, bth.psn) ||
        !is_turn(entry))
      continue;
    hit(entry, Counter::RequestsFaulted, {qpn.value, bth.psn.value, bth.opcode}, now);
    denied = true;
  }
  return denied;
}

bool Injector::is_in_region(const Fault& fault, Range<BusSpace> access) const {
  if (fault.region == 0) return true;
  const auto region = std::ranges::find(regions_, fault.region, &Region::number);
  return region != regions_.end() && region->at.overlaps(access);
}

Injector::AccessFate Injector::on_access(Side side, Range<BusSpace> access, Time now) {
  AccessFate fate;
  for (Entry& entry : entries_) {
    const Fault& fault = entry.fault;
    if (!is_of_accesses(fault.what) || !is_side(fault.side, side) || !is_in_region(fault, access) ||
        !is_turn(entry))
      continue;
    hit(entry, Counter::AccessesFaulted, {0, access.start.value, 0}, now);
    if (fault.what == What::SlowDma)
      fate.late = fate.late + fault.time;
    else if (!fate.reason)
      fate.reason = {.id = ReasonId::InjectedFault, .object = entry.number};
  }
  return fate;
}

void Injector::note_queue_pair(wire::Qpn qpn) {
  queue_pairs_.push_back({qpn, ++queue_pairs_seen_, {}});
}

void Injector::note_peer(wire::Qpn qpn, wire::Qpn peer) {
  const auto one = std::ranges::find(queue_pairs_, qpn, &QueuePair::qpn);
  if (one != queue_pairs_.end()) one->peer = peer;
}

void Injector::forget_queue_pair(wire::Qpn qpn) {
  std::erase_if(queue_pairs_, [&](const QueuePair& one) { return one.qpn == qpn; });
}

void Injector::note_region(wire::Key key, Range<BusSpace> at) {
  const auto known = std::ranges::find(regions_, key, &Region::key);
  if (known != regions_.end())
    known->at = at;
  else
    regions_.push_back({key, ++regions_seen_, at});
}

void Injector::forget_region(wire::Key key) {
  std::erase_if(regions_, [&](const Region& region) { return region.key == key; });
}

std::string Injector::origin_text(std::uint32_t number) const {
  if (number == 0 || number > entries_.size()) return {};
  return " Injected by fault " + std::to_string(number) + " of " + name_ + ", line " +
         std::to_string(entries_[number - 1].fault.line) + ".";
}

std::string Injector::so_far_text() const {
  if (injected_ == 0) return {};
  return " Faults of " + name_ + " injected until now: " + std::to_string(injected_) + ".";
}

}  // namespace softhca::faults
