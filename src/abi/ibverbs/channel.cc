#include "abi/ibverbs/channel.h"

#include <utility>

#include "abi/entry.h"
#include "abi/ibverbs/cq.h"

namespace softhca::abi {

Channel::Channel(Context& owner, std::unique_ptr<EventQueue> events)
    : ibv_comp_channel{&owner.context(), events->fd(), 0}, events_(std::move(events)) {
  owner.adopt(*this);
}

VERB("IBVERBS_1.0", ibv_comp_channel*, ibv_create_comp_channel, (ibv_context * context)) {
  return answer_pointer([&]() -> Outcome<ibv_comp_channel*> {
    if (Context::of(context).is_left_behind()) return Context::of(context).left_behind();
    auto events = EventQueue::open();
    if (!events) return events.error();
    return new Channel(Context::of(context), std::move(*events));
  });
}

VERB("IBVERBS_1.0", int, ibv_destroy_comp_channel, (ibv_comp_channel * verbs)) {
  return answer_errno([&]() -> Outcome<void> {
    Channel& channel = Channel::of(verbs);
    if (channel.in_use()) return Errno{EBUSY};
    channel.owner().release(channel);
    delete &channel;
    return {};
  });
}

BLOCKING_VERB("IBVERBS_1.1", int, ibv_get_cq_event,
              (ibv_comp_channel * channel, ibv_cq** cq, void** cq_context)) {
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    Context& owner = Channel::of(channel).owner();
    if (owner.is_left_behind()) return owner.left_behind();
    const auto event = Channel::of(channel).events().take(place);
    if (!event) return event.error();
    *cq = event->element.cq;
    *cq_context = event->element.cq->cq_context;
    return 0;
  });
}

VERB("IBVERBS_1.1", void, ibv_ack_cq_events, (ibv_cq * cq, unsigned nevents)) {
  acknowledge(Cq::of(cq).owner(), Cq::of(cq).completion_events(), nevents);
}

}  // namespace softhca::abi
