#include "abi/ibverbs/context.h"

#include <utility>

#include "abi/entry.h"
#include "abi/ibverbs/qp.h"

namespace softhca::abi {

Outcome<Context*> Context::open(Device& device) {
  auto events = EventQueue::open();
  if (!events) return events.error();
  auto command = os::SharedMemory::create("softhca-command", kPage4K);
  if (!command) return Errno{command.error()};
  auto live = outcome_of(driver::LiveDevice::open(device.description()));
  if (!live) return live.error();
  return new Context(device, std::move(*live), std::move(*events), std::move(*command));
}

Context::Context(Device& device, std::shared_ptr<driver::LiveDevice> live,
                 std::unique_ptr<EventQueue> events, os::SharedMemory command)
    : device_(std::move(live)), async_events_(std::move(events)), command_(std::move(command)) {
  known.sz = kVerbsContextBytes;
  known.context.device = &device.verbs;
  known.context.cmd_fd = command_.fd();
  known.context.async_fd = async_events_->fd();
  known.context.num_comp_vectors = nic::kCompletionVectors;
  known.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  pthread_mutex_init(&known.context.mutex, nullptr);
  fill_slots(*this);
  device_->run([&](driver::Engine& engine, Time) { engine.add_sink(*this); });
}

void Context::close() {
  static_cast<void>(take_off([&](driver::Engine& engine, Time now) -> Outcome<void> {
    engine.remove_sink(*this);
    for (Owned* object : objects_) object->abandon(engine, now);
    return {};
  }));
}

Context::~Context() {
  for (Owned* object : objects_) delete object;
  pthread_mutex_destroy(&known.context.mutex);
}

void Context::adopt(Owned& object) {
  const std::scoped_lock held(objects_lock());
  objects_.splice(objects_.begin(), object.node_);
}

void Context::release(Owned& object) {
  const std::scoped_lock held(objects_lock());
  object.node_.splice(object.node_.begin(), objects_, object.place_);
}

void Context::async_event(driver::AsyncEventType type, driver::QueuePair* qp,
                          driver::CompletionQueue* cq, const trace::Reason&) {
  if (qp != nullptr || cq != nullptr) return;  // those have sinks of their own
  ibv_async_event event{};
  event.event_type = static_cast<ibv_event_type>(type);
  event.element.port_num = 1;
  async_events_->post(event, nullptr);
}

VERB("IBVERBS_1.1", ibv_context*, ibv_open_device, (ibv_device * device)) {
  return answer_pointer([&]() -> Outcome<ibv_context*> {
    auto opened = Context::open(Device::of(device));
    if (!opened) return opened.error();
    return &(*opened)->context();
  });
}

VERB("IBVERBS_1.1", int, ibv_close_device, (ibv_context * context)) {
  return answer_errno([&]() -> Outcome<void> {
    Context& closed = Context::of(context);
    closed.close();
    delete &closed;
    return {};
  });
}

// A child's first write to a page gives a copy to one of the two processes. By address the device
// follows the parent wherever it goes; a pinned frame stays the parent's, since the kernel copies
// such pages for the child at once (Linux 5.12).
VERB("IBVERBS_1.1", int, ibv_fork_init, ()) { return 0; }

VERB("IBVERBS_1.13", ibv_fork_status, ibv_is_fork_initialized, ()) { return IBV_FORK_UNNEEDED; }

SOFTHCA_ENTRY("IBVERBS_1.1", int, ibv_dontfork_range, (void*, std::size_t), noexcept) { return 0; }
SOFTHCA_ENTRY("IBVERBS_1.1", int, ibv_dofork_range, (void*, std::size_t), noexcept) { return 0; }

BLOCKING_VERB("IBVERBS_1.1", int, ibv_get_async_event,
              (ibv_context * context, ibv_async_event* event)) {
  return answer_minus_one([&]() -> Outcome<int> {
    if (Context::of(context).is_left_behind()) return Context::of(context).left_behind();
    const auto next = Context::of(context).async_events().take();
    if (!next) return next.error();
    *event = *next;
    return 0;
  });
}

// In a forked child a thread of the parent may for ever be in the middle of a count; and nobody
// waits for it there.
void acknowledge(Context& owner, Acknowledgements& of, std::uint32_t events) {
  if (!owner.is_left_behind()) of.acknowledge(events);
}

VERB("IBVERBS_1.1", void, ibv_ack_async_event, (ibv_async_event * event)) {
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
      acknowledge(Cq::of(event->element.cq).owner(), Cq::of(event->element.cq).async_events(), 1);
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      acknowledge(Qp::of(event->element.qp).owner(), Qp::of(event->element.qp).async_events(), 1);
      break;
    case IBV_EVENT_WQ_FATAL:
      acknowledge(Wq::of(event->element.wq).owner(), Wq::of(event->element.wq).async_events(), 1);
      break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      acknowledge(Srq::of(event->element.srq).owner(), Srq::of(event->element.srq).async_events(),
                  1);
      break;
    default:
      break;  // about the device or the port, which do not go
  }
}

}  // namespace softhca::abi
