// The device's part in raw packets: its switch. Frames go to the queue pairs whose flow rules they
// match, and to the interface.
#include <algorithm>

#include "base/assert.h"
#include "nic/device.h"

namespace softhca::nic {

using link::FrameUse;
using trace::Counter;
using trace::QpCounter;
using Who = Steering::Who;

Result<void, trace::Reason> Device::open_for_frames() {
  if (frame_port_ == nullptr) return {};
  const bool sends = std::ranges::any_of(used_slots_, [&](std::uint32_t index) {
    const QueuePair& qp = *slots_[index].qp;
    return qp.is_raw() && qp.state() != transport::QpState::Reset &&
           qp.state() != transport::QpState::Init;
  });
  FrameUse use = sends ? FrameUse::Sending : FrameUse::None;
  // What its address is, an open port knows.
  Result<void, trace::Reason> opened;
  if (steering_.size() != 0 && frame_use_ <= FrameUse::Sending)
    opened = frame_port_->open_for(FrameUse::Own);
  if (opened && steering_.size() != 0) use = steering_.use(frame_port_->address());
  if (opened) opened = frame_port_->open_for(use);
  frame_use_ = opened ? use : FrameUse::None;
  if (frame_use_ == FrameUse::None)
    tracer_.count(Counter::SendErrors, std::exchange(raw_waiting_, 0));
  return opened;
}

// What a switch does: a frame whose destination is here goes there, to any other it goes out, and
// those for a group do both.
bool Device::stays_inside(const wire::FrameFields& fields) const {
  if (frame_use_ == FrameUse::None) return true;
  if (fields.is_multicast()) return false;
  return steering_.is_destination(fields) ||
         (!frame_port_->brings_back() &&
          std::ranges::equal(fields.destination, frame_port_->address()));
}

// The frame leaves whole, as the program wrote it. A sniffer sees also what goes elsewhere. What an
// interface brings back is steered then.
void Device::switch_frame(Slot& slot, const QueuePair::Outgoing& outgoing, Time now) {
  QueuePair& qp = *slot.qp;
  std::vector<std::byte>& frame = raw_frames_[raw_waiting_];
  frame.resize(outgoing.emission.payload.bytes);
  const Rooms rooms{.ring = frame, .stride = frame.size()};
  const bool gathered = static_cast<bool>(qp.gather(outgoing, rooms, now));
  after_work(slot, now);
  if (!gathered) return;  // the request has failed
  tracer_.count(Counter::RawFramesSent);
  qp.counters().add(QpCounter::PacketsSent);
  qp.counters().add(QpCounter::BytesSent, frame.size());
  const wire::FrameFields fields = wire::fields_of(frame);
  const bool stays = stays_inside(fields);
  if (!stays) ++raw_waiting_;
  if (stays || !frame_port_->brings_back())
    steer(frame, fields, stays || fields.is_multicast() ? Who::All : Who::Sniffers, now);
}

// A NIC takes the RoCEv2 packets of its addresses out before it looks at flow rules.
bool Device::is_own_packet(const wire::FrameFields& fields) const {
  if (!fields.has(wire::FrameLayer::Udp) ||
      load_be<std::uint16_t>(bytes_of(fields.destination_port)) != wire::kUdpPort)
    return false;
  wire::Gid to = wire::Gid::of_ipv4(std::to_array(fields.ipv4_destination));
  if (fields.has(wire::FrameLayer::Ipv6)) to.bytes = std::to_array(fields.ipv6_destination);
  return std::ranges::find(addresses_, to) != addresses_.end() || !multicast_.members(to).empty();
}

std::size_t Device::receive_frames(Time now) {
  if (frame_use_ <= FrameUse::Sending) return 0;
  const std::size_t count = frame_port_->receive(raw_received_);
  tracer_.count(Counter::RawFramesIn, count);
  for (const ConstBytes frame : std::span(raw_received_).first(count)) {
    const wire::FrameFields fields = wire::fields_of(frame);
    steer(frame, fields, is_own_packet(fields) ? Who::Sniffers : Who::All, now);
  }
  return count;
}

// What finds no room now leaves later, in its turn.
void Device::send_frames() {
  if (raw_waiting_ == 0) return;
  std::array<ConstBytes, kRawFrames> batch;
  std::copy_n(raw_frames_.begin(), raw_waiting_, batch.begin());
  const auto [taken, lost] = frame_port_->send({batch.data(), raw_waiting_});
  tracer_.count(Counter::RawFramesOut, taken - lost);
  tracer_.count(Counter::SendErrors, lost);
  const std::span<std::vector<std::byte>> waiting(raw_frames_.data(), raw_waiting_);
  std::rotate(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(taken), waiting.end());
  raw_waiting_ -= taken;
}

void Device::steer(ConstBytes frame, const wire::FrameFields& fields, Who who, Time now) {
  for (const Steering::Target& target : steering_.targets_of(fields, who)) {
    Slot* slot = find(target.qpn);
    ASSERT(slot != nullptr);
    const QpContext& context = slot->qp->context();
    if (!context.spread_over.empty()) {
      const std::size_t entries = context.spread_over.size();
      slot = find(context.spread_over[spread_hash(context.spreading, fields) % entries]);
      ASSERT(slot != nullptr);
    }
    using Arrival = transport::Datagrams::Arrival;
    const Arrival arrival = slot->qp->on_frame(frame, target.tag, now);
    const bool dropped = arrival == Arrival::NoReceive || arrival == Arrival::ReceiveTooSmall;
    tracer_.count(dropped ? Counter::RawFramesDropped : Counter::RawFramesReceived);
    if (!dropped) {
      slot->qp->counters().add(QpCounter::PacketsReceived);
      slot->qp->counters().add(QpCounter::BytesReceived, frame.size());
    }
    after_work(*slot, now);
  }
}

}  // namespace softhca::nic
