#include "transport/congestion.h"

#include "base/assert.h"

namespace softhca::transport {

bool NotificationPoint::on_marked(wire::Qpn peer, std::uint16_t pkey, Duration interval, Time now) {
  if (waiting_ || now < next_at_) return false;
  next_at_ = now + interval;
  waiting_.emplace();
  waiting_->opcode = wire::opcode_of(wire::Service::Cnp, wire::Operation::SendMiddle);
  waiting_->pkey = pkey;
  waiting_->becn = true;
  waiting_->dest_qpn = peer;
  return true;
}

Emission NotificationPoint::poll_packet() {
  ASSERT(waiting_);
  Emission out;
  out.headers.bth = *waiting_;
  out.payload.bytes = wire::kCnpPayloadBytes;
  waiting_.reset();
  return out;
}

}  // namespace softhca::transport
