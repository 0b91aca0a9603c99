// The device's part in shared receive queues: commands, and what their users are told.
#include "base/assert.h"
#include "nic/device.h"

namespace softhca::nic {

using transport::Status;

void Device::set_srq_limit(std::uint32_t srqn, std::uint32_t limit, Time now) {
  SharedReceiveQueue* const srq = srqs_.find(srqn);
  ASSERT(srq != nullptr);
  srq->set_limit(limit);
  tell_of_shared_queues(now);
}

void Device::move_srq(std::uint32_t srqn, const QueuePlace& ring) {
  SharedReceiveQueue* const srq = srqs_.find(srqn);
  ASSERT(srq != nullptr);
  srq->move_to(ring);
}

std::optional<std::uint32_t> Device::work_on_tags(std::uint32_t srqn, const TagWork& work,
                                                  Time now) {
  SharedReceiveQueue* const srq = srqs_.find(srqn);
  ASSERT(srq != nullptr && srq->tags() != nullptr);
  TagList& tags = *srq->tags();
  Cqe cqe;
  cqe.cookie = work.cookie;
  cqe.kind = static_cast<std::uint8_t>(work.kind);
  cqe.time_ps = static_cast<std::uint64_t>(now.ps);
  std::uint32_t handle = work.entry.handle;
  if (work.kind == CqeKind::TagAdded) {
    const auto added = tags.add(work.entry, work.unexpected_seen);
    if (!added) return std::nullopt;
    handle = *added;
  } else if (work.kind == CqeKind::TagRemoved && !tags.remove(handle)) {
    cqe.status = static_cast<std::uint8_t>(Status::TagList);
    cqe.reason = static_cast<std::uint16_t>(trace::ReasonId::TagNotThere);
  }
  if (work.synchronizes) tags.synchronize(work.unexpected_seen);
  if (work.kind != CqeKind::TagRemoved && tags.is_behind(work.unexpected_seen))
    cqe.flags |= static_cast<std::uint8_t>(CqeFlag::WantsSync);
  if (work.signaled || cqe.status != 0) {
    PendingCqe pending{srq->context().cqn, cqe};
    write_cqe(pending, now);
  }
  return handle;
}

void Device::destroy_srq(std::uint32_t srqn) { srqs_.destroy(srqn); }

// CASES C71: once for each time in ERR, behind the completion of the last receive that it took.
void Device::tell_end(Slot& slot, Time now) {
  if (slot.end_told) return;
  slot.end_told = true;
  const QueuePair& qp = *slot.qp;
  PendingCqe about;
  about.cqe.qpn = qp.context().qpn.value;
  if (qp.ready_at() > now)
    defer({.at = qp.ready_at(), .cqe = about, .is_end = true});
  else
    raise_event(EqeKind::QpLastWqe, about.cqe.qpn, trace::ReasonId::None, now);
}

// A limit that was reached, or a queue that the device can take nothing from any more, which fails
// those who use it.
void Device::tell_of_shared_queues(Time now) {
  for (const SharedReceiveQueue::News& news : srqs_.take_news()) {
    raise_event(news.failure ? EqeKind::SrqError : EqeKind::SrqLimit, news.srqn, news.failure.id,
                now);
    if (!news.failure) continue;
    for (const std::uint32_t index : std::vector<std::uint32_t>(used_slots_))
      if (slots_[index].qp->context().srqn == news.srqn) fail_qp(slots_[index], news.failure, now);
  }
}

}  // namespace softhca::nic
