// The device's part in raw packets: frames go to the queue pairs whose flow rules they match.
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
  for (const Steering::Target& target : steering_.targets_of(wire::fields_of(frame))) {
    Slot* const slot = find(target.qpn);
    if (slot == nullptr) continue;
    using Arrival = transport::Datagrams::Arrival;
    const Arrival arrival = slot->qp->on_frame(frame, target.tag, now);
    const bool dropped = arrival == Arrival::NoReceive || arrival == Arrival::ReceiveTooSmall;
    tracer_.count(dropped ? Counter::RawFramesDropped : Counter::RawFramesReceived);
    after_work(*slot, now);
  }
}

}  // namespace softhca::nic
