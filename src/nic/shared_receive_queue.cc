#include "nic/shared_receive_queue.h"

#include <atomic>

#include "base/assert.h"

namespace softhca::nic {

using trace::ReasonId;

namespace {

void tell(std::uint32_t& cell, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(cell).store(value, std::memory_order_release);
}

}  // namespace

SharedReceiveQueue::SharedReceiveQueue(const SrqContext& context, HostMemory& memory,
                                       trace::Tracer& tracer, SrqRecord& record,
                                       std::vector<News>& news)
    : context_(context),
      receives_(context.ring, context.pd, memory, tracer),
      record_(record),
      news_(news) {
  if (context.tags != 0) tags_.emplace(context.tags);
}

std::optional<transport::ReceiveSlot> SharedReceiveQueue::take(FetchedReceive& into,
                                                               wire::Qpn taker, Time now) {
  if (failed_) return std::nullopt;
  const auto slot = receives_.take(into, taker, now);
  if (!slot) return std::nullopt;
  into.cqn = context_.cqn;
  tell(record_.taken, slot->work + 1);
  const bool is_bus_fault =
      slot->broken.id >= ReasonId::IommuNotMapped && slot->broken.id < ReasonId::WqeMalformed;
  if (is_bus_fault) fail(slot->broken);
  check_limit();
  return slot;
}

void SharedReceiveQueue::set_limit(std::uint32_t limit) {
  limit_ = limit;
  tell(record_.limit, limit);
  check_limit();
}

void SharedReceiveQueue::check_limit() {
  if (limit_ == 0 || receives_.waiting() >= limit_) return;
  limit_ = 0;
  tell(record_.limit, 0);
  news_.push_back({.srqn = context_.srqn});
}

void SharedReceiveQueue::fail(const trace::Reason& why) {
  if (failed_) return;
  failed_ = true;
  tell(record_.state, static_cast<std::uint32_t>(SrqState::Failed));
  news_.push_back({.srqn = context_.srqn, .failure = why});
}

void SharedReceiveQueues::create(const SrqContext& context) {
  ASSERT(context.srqn - first_ < queues_.size() && find(context.srqn) == nullptr);
  SrqRecord& record = this->record(context.srqn);
  record = {.srqn = context.srqn,
            .state = static_cast<std::uint32_t>(SrqState::Ready),
            .pd = context.pd,
            .xrcd = context.xrcd,
            .taken = 0,
            .limit = 0,
            .generation = record.generation + 1};
  queues_[context.srqn - first_] =
      std::make_unique<SharedReceiveQueue>(context, memory_, tracer_, record, news_);
}

void SharedReceiveQueues::destroy(std::uint32_t srqn) {
  ASSERT(find(srqn) != nullptr);
  queues_[srqn - first_].reset();
  record(srqn) = {.generation = record(srqn).generation};
  numbers_.give_back(srqn);
  std::erase_if(news_, [&](const auto& one) { return one.srqn == srqn; });
}

void SharedReceiveQueues::fail_those_of_cq(std::uint32_t cqn, const trace::Reason& why) {
  for (const auto& queue : queues_)
    if (queue != nullptr && queue->context().cqn == cqn) queue->fail(why);
}

}  // namespace softhca::nic
