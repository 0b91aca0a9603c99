// The side of a queue pair that takes receives which are not its own: shared queues, and XRC, where
// each request names one.
#include "nic/queue_pair.h"

namespace softhca::nic {

using trace::Reason;
using trace::ReasonId;

wire::Service QueuePair::service() const {
  if (is_for_datagrams()) return wire::Service::Ud;
  if (context_.type == transport::QpType::Uc) return wire::Service::Uc;
  return transport::is_xrc(context_.type) ? wire::Service::Xrc : wire::Service::Rc;
}

// Only queues of the target's domain can be named.
void QueuePair::name_shared(std::uint32_t srqn) {
  named_ = shared_.find(srqn);
  if (named_ != nullptr && named_->context().xrcd != context_.xrcd) named_ = nullptr;
}

Reason QueuePair::check_shared_queue(std::uint32_t srqn) {
  if (named_ == nullptr) return {.id = ReasonId::XrcQueueUnknown, .object = srqn};
  if (named_->failed()) return {.id = ReasonId::SharedQueueFailed, .object = srqn};
  return {};
}

// A response leaves later than its request came; the queue may have gone since.
std::uint32_t QueuePair::domain_of(const transport::PayloadRef& region) {
  if (context_.xrcd == 0) return context_.pd;
  name_shared(region.srqn);
  return domain_in_hand();
}

std::optional<transport::ReceiveSlot> QueuePair::take_receive() {
  std::optional<transport::ReceiveSlot> slot;
  if (!shares_receives()) {
    slot = receives_.take(receive_, context_.qpn, now_);
  } else {
    SharedReceiveQueue* const from = context_.srqn != 0 ? shared_.find(context_.srqn) : named_;
    if (from != nullptr && from->tags() != nullptr && is_send_in_hand_)
      slot = take_tagged(*from);
    else if (from != nullptr)
      slot = from->take(receive_, context_.qpn, now_);
  }
  if (slot) ready_at_ = later(ready_at_, receive_.ready_at);
  return slot;
}

}  // namespace softhca::nic
