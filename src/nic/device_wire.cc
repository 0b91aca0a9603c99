// The device's side towards the cable: packets in, timers, packets out.
#include <algorithm>
#include <atomic>
#include <utility>

#include "base/assert.h"
#include "nic/device.h"
#include "wire/icrc.h"

namespace softhca::nic {

using trace::Counter;
using trace::EventKind;
using trace::QpCounter;
using transport::QpState;

namespace {

// Of the IP packet that a datagram is.
std::uint64_t ip_bytes(const wire::Datagram& datagram, std::size_t bytes) {
  return bytes + wire::kUdpBytes + (datagram.is_ipv4() ? wire::kIpv4Bytes : wire::kIpv6Bytes);
}

// Of every management datagram.
constexpr std::uint8_t kMadOpcode = wire::opcode_of(wire::Service::Ud, wire::Operation::SendOnly);

// That it does, as long as it lives.
struct Working {
  bool& flag;
  explicit Working(bool& f) : flag(f) { flag = true; }
  ~Working() { flag = false; }
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;
};

}  // namespace

std::size_t Device::receive(Time now) {
  const Working working(is_receiving_);
  const std::size_t count = link_.receive(received_, now);
  std::size_t good = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!multicast_.is_empty() && received_[i].datagram.destination.is_multicast())
      deliver_multicast(received_[i], now);
    else if (examine(received_[i], arrived_[good], now))
      ++good;
  }
  std::span<const Arrived> rest(arrived_.data(), good);
  while (!rest.empty()) {
    const std::size_t run = run_at(rest);
    deliver(rest.first(run), now);
    rest = rest.subspan(run);
  }
  if (count != 0) link_.release();
  if (!held_.empty()) [[unlikely]]
    flush_held(now);
  return count;
}

// Peers of this host were shut out before; what they had said until then lay there.
void Device::flush_held(Time now) {
  std::vector<std::uint32_t> heard;
  std::erase_if(held_, [&](const Held& held) {
    if (!link_.has_received(held.until)) return false;
    heard.push_back(held.index);
    return true;
  });
  for (const std::uint32_t index : heard) {
    Slot& slot = slots_[index];
    slot.qp->flush_held(now);
    after_work(slot, now);
  }
}

// How many packets from the first on are of one WRITE or SEND, one behind the other.
std::size_t Device::run_at(std::span<const Arrived> packets) {
  const auto is_long = [](const wire::OpcodeInfo& info) {
    return info.kind == wire::Kind::Write || info.kind == wire::Kind::Send;
  };
  const wire::Packet& first = packets[0].packet;
  std::size_t count = 1;
  while (count < packets.size() && is_long(*first.info) &&
         !packets[count - 1].packet.info->ends()) {
    const Arrived& next = packets[count];
    if (next.slot != packets[0].slot || next.packet.info->kind != first.info->kind ||
        next.packet.info->starts() || next.packet.headers.xrc_srqn != first.headers.xrc_srqn ||
        next.packet.headers.bth.psn != packets[count - 1].packet.headers.bth.psn.plus(1))
      break;
    ++count;
  }
  return count;
}

void Device::note_received(Slot& slot, const Arrived& arrived, Time now) {
  const wire::Bth& bth = arrived.packet.headers.bth;
  slot.heard_at = now;
  slot.qp->counters().add(QpCounter::PacketsReceived);
  slot.qp->counters().add(QpCounter::BytesReceived,
                          ip_bytes(arrived.frame->datagram, arrived.frame->bytes.size()));
  tracer_.emit(EventKind::PacketReceived, now, bth.dest_qpn.value, bth.opcode, bth.psn.value,
               arrived.packet.payload.size());
  // IBTA A17.9: whoever sent it is told.
  const wire::Datagram& datagram = arrived.frame->datagram;
  if (wire::is_marked(datagram.traffic_class)) [[unlikely]]
    if (slot.qp->on_marked(arrived.packet, datagram, now)) activate(slot);
}

void Device::deliver(std::span<const Arrived> run, Time now) {
  for (std::size_t i = 1; i < run.size(); ++i) ahead_[i - 1] = run[i].packet.payload;
  Slot& slot = *run.front().slot;
  QueuePair& qp = *slot.qp;
  if (qp.is_for_datagrams()) return deliver_datagram(run.front(), now);
  for (std::size_t i = 0; i < run.size(); ++i) {
    const wire::Packet& packet = run[i].packet;
    const wire::Bth& bth = packet.headers.bth;
    if (qp.state() == QpState::Error) {  // since one of those before it
      drop(bth.dest_qpn, packet.headers, Counter::PacketsDropped, now);
      continue;
    }
    note_received(slot, run[i], now);
    qp.on_packet(packet, std::span(ahead_).subspan(i, run.size() - 1 - i), now);
    if (const trace::Reason why = qp.last_drop()) {
      tracer_.emit(why, now);
      drop(bth.dest_qpn, packet.headers, Counter::UnreliableDropped, now);
    }
    if (i + 1 == run.size() || !qp.has_no_news()) after_work(slot, now);
    if (qp.state() == QpState::Rtr && !slot.established_told) {
      slot.established_told = true;
      raise_event(EqeKind::Established, bth.dest_qpn.value, trace::ReasonId::None, now);
      publish(slot);
    }
  }
  qp.end_run();
}

// IBTA A17.9: what a queue pair sends is in somebody's way.
void Device::take_notification(const Arrived& arrived, Time now) {
  note_received(*arrived.slot, arrived, now);
  arrived.slot->qp->on_notification(now);
}

// What is not for a receive that waits for it was told by somebody else, or of an earlier life of
// the queue pair.
void Device::take_placed(const PlacedNotice& notice, const link::Frame& frame, Time now) {
  Slot* const slot = find(notice.qpn());
  if (slot == nullptr || !is_from_peer(*slot->qp, frame) ||
      notice.generation != tables_.qps[notice.qpn().value - first_qpn_].generation ||
      !slot->qp->on_placed(notice, now))
    return tracer_.count(Counter::PacketsDropped);
  slot->heard_at = now;
  tracer_.count(Counter::MessagesPlaced);
  tracer_.emit(EventKind::Placed, now, notice.qpn().value, notice.receive, notice.bytes);
  after_work(*slot, now);
}

// C9-101: what cannot be received is dropped, and nobody but the counters hears of it.
void Device::deliver_datagram(const Arrived& arrived, Time now) {
  Slot& slot = *arrived.slot;
  const wire::Packet& packet = arrived.packet;
  const wire::Bth& bth = packet.headers.bth;
  const auto refuse = [&](Counter counter) { drop(bth.dest_qpn, packet.headers, counter, now); };
  if (slot.qp->state() == QpState::Error)  // since one of those before it
    return refuse(Counter::PacketsDropped);
  using Arrival = transport::Datagrams::Arrival;
  switch (slot.qp->on_datagram(packet, arrived.frame->datagram, now)) {
    case Arrival::Received:
    case Arrival::Failed:
      note_received(slot, arrived, now);
      return after_work(slot, now);
    case Arrival::WrongQkey:
      return refuse(Counter::QkeyMismatches);
    case Arrival::Malformed:
      return refuse(Counter::PacketsMalformed);
    case Arrival::NoReceive:
    case Arrival::ReceiveTooSmall:
      return refuse(Counter::DatagramsDropped);
  }
}

void Device::drop(wire::Qpn qpn, const wire::Headers& headers, Counter counter, Time now) {
  tracer_.count(counter);
  tracer_.emit(EventKind::PacketDropped, now, qpn.value, headers.bth.opcode, headers.bth.psn.value,
               static_cast<std::uint64_t>(counter));
}

// C9-39 ff. for RoCEv2: the addresses are those of the connection, and the P_Key is the default.
// Datagrams come from anybody.
bool Device::is_from_peer(const QueuePair& qp, const link::Frame& frame) {
  if (qp.is_for_datagrams()) return true;
  return frame.datagram.source == qp.path().destination &&
         frame.datagram.destination == qp.path().source;
}

std::optional<wire::Packet> Device::parse(const link::Frame& frame) {
  tracer_.count(Counter::PacketsReceived);
  tracer_.count(Counter::PacketBytesReceived, ip_bytes(frame.datagram, frame.bytes.size()));
  const auto parsed = wire::parse(frame.bytes);
  if (parsed) return *parsed;
  if (parsed.error() == wire::ParseError::UnknownOpcode)
    if (const auto reserved = wire::parse_reserved(frame.bytes)) return reserved;
  tracer_.count(Counter::PacketsMalformed);
  return std::nullopt;
}

// Whether its ICRC is right; one that is not is dropped here.
bool Device::is_intact(const link::Frame& frame, const wire::Packet& packet, Time now) {
  if (!frame.has_icrc) return true;
  switch (icrcs_.check(frame.datagram, frame.bytes, frame.place_in_burst)) {
    case wire::IcrcVerdict::Right:
      return true;
    case wire::IcrcVerdict::Solved:
      tracer_.count(Counter::IcrcSolved);
      return true;
    case wire::IcrcVerdict::Wrong:
      break;
  }
  drop(packet.headers.bth.dest_qpn, packet.headers, Counter::IcrcErrors, now);
  return false;
}

bool Device::listens(const QueuePair& qp, const wire::Packet& packet) {
  const bool receives = qp.state() == QpState::Rtr || qp.state() == QpState::Rts ||
                        qp.state() == QpState::Sqd || qp.state() == QpState::Sqe;
  const bool key_fits = (packet.headers.bth.pkey & 0x7fff) == (wire::kDefaultPkey & 0x7fff);
  return receives && !qp.is_raw() && key_fits;
}

bool Device::hears(const QueuePair& qp, const wire::Packet& packet) {
  return listens(qp, packet) && packet.info->service == qp.service();
}

bool Device::examine(const link::Frame& frame, Arrived& into, Time now) {
  if (!frame.has_icrc)
    if (const auto notice = PlacedNotice::of(frame.bytes)) {
      take_placed(*notice, frame, now);
      return false;
    }
  const auto packet = parse(frame);
  if (!packet) return false;
  const auto refuse = [&] {
    drop(packet->headers.bth.dest_qpn, packet->headers, Counter::PacketsDropped, now);
    return false;
  };
  // One that is in somebody else's memory could still change while it is read.
  if (packet->headers.bth.dest_qpn == wire::kManagementQpn && on_management_ && frame.has_icrc)
      [[unlikely]] {
    take_management(frame, *packet, now);
    return false;
  }
  Slot* const slot = find(packet->headers.bth.dest_qpn);
  if (slot == nullptr) {
    tracer_.count(Counter::UnknownQpn);
    return refuse();
  }
  if (!is_intact(frame, *packet, now)) return false;
  // Those of congestion are for queue pairs of every service.
  const bool is_notification = packet->info->kind == wire::Kind::Congestion;
  const bool is_heard = is_notification ? listens(*slot->qp, *packet) : hears(*slot->qp, *packet);
  if (!is_heard || !is_from_peer(*slot->qp, frame)) return refuse();
  into = {*packet, slot, &frame};
  if (is_notification) [[unlikely]]
    take_notification(into, now);
  return !is_notification;
}

// IBTA 10.5.2: a copy for each queue pair that is attached, the sender's too if it is.
void Device::deliver_multicast(const link::Frame& frame, Time now) {
  const auto packet = parse(frame);
  if (!packet) return;
  const std::span<const wire::Qpn> members = multicast_.members(frame.datagram.destination);
  if (members.empty() || packet->headers.bth.dest_qpn != kMulticastQpn)
    return drop(packet->headers.bth.dest_qpn, packet->headers, Counter::PacketsDropped, now);
  if (!is_intact(frame, *packet, now)) return;
  for (const wire::Qpn member : std::vector(members.begin(), members.end())) {
    Slot* const slot = find(member);
    if (slot != nullptr && slot->qp->is_for_datagrams() && hears(*slot->qp, *packet))
      deliver_datagram({*packet, slot, &frame}, now);
  }
}

// IBTA 13.5.3.3 (Q_Key), 13.4.1 (one size).
void Device::take_management(const link::Frame& frame, const wire::Packet& packet, Time now) {
  const auto refuse = [&](Counter counter) {
    drop(wire::kManagementQpn, packet.headers, counter, now);
  };
  if (!is_intact(frame, packet, now)) return;
  if (packet.headers.bth.opcode != kMadOpcode || packet.payload.size() != wire::kMadBytes)
    return refuse(Counter::PacketsMalformed);
  if (packet.headers.qkey != wire::kManagementQkey) return refuse(Counter::QkeyMismatches);
  tracer_.emit(EventKind::PacketReceived, now, wire::kManagementQpn.value,
               packet.headers.bth.opcode, packet.headers.bth.psn.value, packet.payload.size());
  on_management_({frame.datagram, packet.headers.source_qpn, packet.payload, frame.bytes}, now);
}

bool Device::send_management(const wire::Datagram& path, const wire::CmMadBytes& mad, Time now) {
  if (!has_room()) return false;
  const wire::Headers headers{.bth = {.opcode = kMadOpcode,
                                      .migrated = true,
                                      .pkey = wire::kDefaultPkey,
                                      .dest_qpn = wire::kManagementQpn,
                                      .psn = management_psn_},
                              .qkey = wire::kManagementQkey,
                              .source_qpn = wire::kManagementQpn};
  management_psn_ = management_psn_.plus(1);
  const std::size_t header_bytes = wire::find_opcode(kMadOpcode)->header_bytes();
  const Bytes frame = next_frame(header_bytes);
  wire::emit(headers, frame.first(header_bytes));
  std::ranges::copy(mad, frame.begin() + static_cast<std::ptrdiff_t>(header_bytes));
  close_frame(frame, header_bytes + mad.size(), path, now);
  tracer_.emit(EventKind::PacketSent, now, wire::kManagementQpn.value, headers.bth.opcode,
               headers.bth.psn.value, mad.size(), 1, wire::kManagementQpn.value);
  flush_outbox(now);
  return true;
}

bool Device::run_timers(Time now) {
  if (now < timers_at_) return false;
  timers_at_ = Time::never();
  for (const std::uint32_t index : std::vector<std::uint32_t>(used_slots_)) {
    Slot& slot = slots_[index];
    const Time deadline = slot.qp->next_deadline();
    if (deadline <= now) {
      slot.qp->on_time(now);
      after_work(slot, now);
    } else {
      timers_at_ = earlier(timers_at_, deadline);
    }
  }
  return true;
}

void Device::activate(Slot& slot) {
  if (slot.active) return;
  slot.active = true;
  active_.push_back(slot.qp->context().qpn.value - first_qpn_);
}

bool Device::transmit(Time now, Turn first) {
  owed_since_ = refused_at_ = Time::never();
  memory_.forget_staged();
  flush_outbox(now);
  send_frames();
  int budget = kSendBudget;
  bool worked = false;
  std::size_t blocked = 0;  // of the active ones, from the last on
  while (budget > 0 && blocked < active_.size() && has_room()) {
    const std::uint32_t index = active_.front();
    active_.pop_front();
    Slot& slot = slots_[index];
    slot.active = false;
    const std::size_t whole_turn = turn_of(*slot.qp, now);
    std::size_t turn = whole_turn;
    blocked = turn == 0 ? blocked + 1 : 0;
    while (turn > 0 && has_room() && build_frame(slot, now, first, turn)) --turn, --budget;
    if (turn == 0 || !has_room()) activate(slot);
    worked |= turn != whole_turn;
    timers_at_ = earlier(timers_at_, slot.qp->next_deadline());
    if (outbox_.size() >= kFrames / 2 || built_bytes_ >= kBatchBytes) flush_outbox(now);
    if (raw_waiting_ >= kRawFrames / 2) send_frames();
  }
  flush_outbox(now);
  send_frames();
  if (blocked != 0 && blocked == active_.size()) refused_at_ = now;
  return worked;
}

// How many packets of a queue pair may be built now. 0: its peer has no room for more.
std::size_t Device::turn_of(const QueuePair& qp, Time now) {
  const std::size_t turn = qp.turn_packets();
  if (qp.is_raw() || qp.is_for_datagrams()) return turn;
  const auto room = [&] {
    const std::size_t made = outbox_.size();
    const std::size_t fits = link_.room_for(qp.path(), qp.peer(), made + turn, now);
    return fits - std::min(fits, made);
  };
  if (const std::size_t packets = room(); packets != 0) return packets;
  flush_outbox(now);
  return room();
}

// The headers end where the payload begins, however long they are.
Bytes Device::next_frame(std::size_t header_bytes) {
  return Bytes(frames_).subspan(frame_next_ * kFrameBytes + kPayloadAt - header_bytes);
}

// Through the memory of this host, where nobody looks at an ICRC.
bool Device::goes_by_memory(Slot& slot, const wire::Datagram& path, wire::Qpn to, Time now) {
  const link::Way way = link_.way_to(path, to, now);
  if (way != slot.way) {
    slot.way = way;
    const auto word = way.is_memory ? kPathRing : static_cast<std::uint32_t>(way.why_not);
    std::atomic_ref(tables_.qps[slot.qp->context().qpn.value - first_qpn_].message_path)
        .store(word, std::memory_order_relaxed);
  }
  return way.is_memory;
}

// A frame is whole but for its ICRC, and leaves. Gives its bytes as an IP packet.
std::uint64_t Device::close_frame(Bytes frame, std::size_t covered, const wire::Datagram& path,
                                  Time ready_at, bool has_icrc) {
  if (has_icrc) store_le(frame, covered, icrcs_.icrc(path, frame.first(covered)));
  outbox_.push_back({frame.first(covered + wire::kIcrcBytes), path, ready_at, has_icrc});
  frame_next_ = (frame_next_ + 1) % kFrames;
  built_bytes_ += covered;
  const std::uint64_t bytes = ip_bytes(path, covered + wire::kIcrcBytes);
  tracer_.count(Counter::PacketsSent);
  tracer_.count(Counter::PacketBytesSent, bytes);
  return bytes;
}

// Builds the next packet of a queue pair into the outbox. False if it has none.
bool Device::build_frame(Slot& slot, Time now, Turn first, std::size_t turn) {
  QueuePair& qp = *slot.qp;
  const auto outgoing = qp.poll_packet(now, first);
  if (!outgoing) {
    if (!qp.has_send_completion()) return false;
    after_work(slot, now);
    return true;
  }
  if (qp.is_raw()) {
    switch_frame(slot, *outgoing, now);
    return true;
  }
  const wire::Datagram& path = qp.path_of(*outgoing);
  const wire::Headers& headers = outgoing->emission.headers;
  const std::size_t payload_bytes = outgoing->emission.payload.bytes;
  const Rooms rooms{.ring = Bytes(frames_).subspan(kPayloadAt, kFrames * kFrameBytes),
                    .stride = kFrameBytes,
                    .first = frame_next_,
                    .count = std::min(kFrames - outbox_.size(), turn)};
  if (payload_bytes != 0 && !qp.gather(*outgoing, rooms, now)) {
    count_transport(slot, now);
    after_work(slot, now);  // the transport knows: it fails the request or answers with a NAK
    return true;
  }
  const std::size_t header_bytes = wire::find_opcode(headers.bth.opcode)->header_bytes();
  const Bytes frame = next_frame(header_bytes);
  wire::emit(headers, frame.first(header_bytes));
  const std::size_t covered = header_bytes + payload_bytes + headers.bth.pad;
  std::fill_n(frame.begin() + static_cast<std::ptrdiff_t>(header_bytes + payload_bytes),
              headers.bth.pad, std::byte{0});
  const bool by_memory = goes_by_memory(slot, path, headers.bth.dest_qpn, now);
  const std::uint64_t bytes =
      close_frame(frame, covered, path, later(now, qp.ready_at()), !by_memory);
  qp.counters().add(QpCounter::PacketsSent);
  qp.counters().add(QpCounter::BytesSent, bytes);
  tracer_.emit(EventKind::PacketSent, now, qp.context().qpn.value, headers.bth.opcode,
               headers.bth.psn.value, payload_bytes, outgoing->emission.again ? 2 : 1,
               headers.bth.dest_qpn.value);
  if (qp.is_unreliable())
    after_work(slot, now);  // done with its packet
  else if (outgoing->is_response || outgoing->emission.again)
    count_transport(slot, now);
  return true;
}

// Frames leave in the order in which they were built, none before its time.
void Device::flush_outbox(Time now) {
  built_bytes_ = 0;
  while (!outbox_.empty() && outbox_.front().ready_at <= now) {
    std::size_t count = 0;
    for (const Built& built : outbox_) {
      if (count == batch_.size() || built.ready_at > now) break;
      batch_[count] = {built.datagram, built.bytes};
      batch_[count++].has_icrc = built.has_icrc;
    }
    const std::size_t taken = link_.send({batch_.data(), count}, now);
    outbox_.erase(outbox_.begin(), outbox_.begin() + static_cast<std::ptrdiff_t>(taken));
    refused_at_ = taken < count ? now : Time::never();
    if (taken < count) return;
  }
}

namespace {

// Which counter of the device takes over what a queue pair's transport has counted.
struct Share {
  QpCounter of_pair;
  Counter of_device;
};
constexpr Share kShares[] = {
    {QpCounter::Retransmits, Counter::Retransmits},
    {QpCounter::Timeouts, Counter::Timeouts},
    {QpCounter::AcksReceived, Counter::AcksReceived},
    {QpCounter::SequenceNaksReceived, Counter::NaksReceived},
    {QpCounter::InvalidRequestNaksReceived, Counter::NaksReceived},
    {QpCounter::RemoteAccessNaksReceived, Counter::NaksReceived},
    {QpCounter::RemoteOperationalNaksReceived, Counter::NaksReceived},
    {QpCounter::RnrNaksReceived, Counter::RnrNaksReceived},
    {QpCounter::AcksSent, Counter::AcksSent},
    {QpCounter::SequenceNaksSent, Counter::NaksSent},
    {QpCounter::InvalidRequestNaksSent, Counter::NaksSent},
    {QpCounter::RemoteAccessNaksSent, Counter::NaksSent},
    {QpCounter::RemoteOperationalNaksSent, Counter::NaksSent},
    {QpCounter::RnrNaksSent, Counter::RnrNaksSent},
    {QpCounter::Duplicates, Counter::Duplicates},
    {QpCounter::OutOfOrder, Counter::OutOfOrder},
};

}  // namespace

void Device::count_transport(Slot& slot, Time now) {
  const trace::QpCounters& counters = slot.qp->counters();
  const auto since = [&](QpCounter which) { return counters.get(which) - slot.seen.get(which); };
  bool any = since(QpCounter::RnrWaitPs) != 0;
  for (const Share& share : kShares)
    if (const std::uint64_t n = since(share.of_pair); n != 0) {
      tracer_.count(share.of_device, n);
      any = true;
    }
  if (!any) return;
  const std::uint32_t qpn = slot.qp->context().qpn.value;
  if (const std::uint64_t n = since(QpCounter::Timeouts); n != 0) {
    tracer_.emit(EventKind::Timeout, now, qpn, n);
    tell_silence(slot, now);
  }
  if (const std::uint64_t n = since(QpCounter::Retransmits); n != 0)
    tracer_.emit(EventKind::Retransmit, now, qpn, n);
  if (const std::uint64_t ps = since(QpCounter::RnrWaitPs); ps != 0)
    tracer_.emit(EventKind::RnrWait, now, qpn, ps);
  slot.seen = counters;
}

// One that has no retries left fails instead.
void Device::tell_silence(Slot& slot, Time now) {
  if (slot.silence_told || slot.qp->state() == QpState::Error) return;
  slot.silence_told = true;
  if (!on_silence_) return;
  const auto ago = [&](Time heard) {
    return heard == Time::never() ? std::nullopt : std::optional(now - heard);
  };
  std::optional<Duration> of_peer;
  for (const std::uint32_t index : used_slots_) {
    const Slot& other = slots_[index];
    const auto heard = ago(other.heard_at);
    if (!heard || other.qp->path().destination != slot.qp->path().destination) continue;
    of_peer = of_peer ? std::min(*of_peer, *heard) : *heard;
  }
  on_silence_(slot.qp->context().qpn, {ago(slot.heard_at), of_peer});
}

}  // namespace softhca::nic
