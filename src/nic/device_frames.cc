// The device's part in raw packets: frames go to the queue pairs whose flow rules they match.
#include "base/assert.h"
#include "nic/device.h"

namespace softhca::nic {

using trace::Counter;

// The frame leaves whole, as the program wrote it.
void Device::switch_frame(Slot& slot, const QueuePair::Outgoing& outgoing, Time now) {
  QueuePair& qp = *slot.qp;
  raw_frame_.resize(outgoing.emission.payload.bytes);
  const bool gathered =
      raw_frame_.empty() || static_cast<bool>(qp.gather(outgoing, raw_frame_, now));
  after_work(slot, now);
  if (!gathered) return;  // the request has failed
  tracer_.count(Counter::RawFramesSent);
  steer(raw_frame_, now);
}

void Device::steer(ConstBytes frame, Time now) {
  const wire::FrameFields fields = wire::fields_of(frame);
  for (const Steering::Target& target : steering_.targets_of(fields)) {
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
    after_work(*slot, now);
  }
}

}  // namespace softhca::nic
