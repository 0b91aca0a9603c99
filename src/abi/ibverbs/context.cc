#include "abi/ibverbs/context.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "abi/entry.h"
#include "abi/ibverbs/qp.h"
#include "os/environment.h"
#include "os/owned_fd.h"
#include "os/self.h"
#include "trace/words.h"

namespace softhca::abi {

namespace {

// Every context that the program has open, in the order in which it opened them; under
// objects_lock(). Never destroyed.
constinit std::vector<Context*>* g_open = nullptr;

std::vector<Context*>& open_contexts() {
  if (g_open == nullptr) g_open = new std::vector<Context*>;
  return *g_open;
}

// There is no device that could say so.
Errno refuse_import(trace::ReasonId id) {
  if (!os::env_flag("SOFTHCA_QUIET").value_or(false))
    std::fprintf(stderr, "softhca: import: %s\n", trace::reason_text({.id = id}).c_str());
  return errno_of(id);
}

}  // namespace

std::uint64_t Context::next_order() {
  static constinit std::atomic<std::uint64_t> next{0};
  return next.fetch_add(1);
}

Outcome<Context*> Context::open(Device& device) {
  auto events = EventQueue::open();
  if (!events) return events.error();
  auto command = os::SharedMemory::create("softhca-command", kPage4K);
  if (!command) return Errno{command.error()};
  auto live = outcome_of(driver::LiveDevice::open(device.description()));
  if (!live) return live.error();
  std::unique_ptr<Context> context(
      new Context(device, std::move(*live), std::move(*events), command->fd()));
  context->command_ = std::move(*command);
  context->family_ = std::make_shared<Family>();
  const std::scoped_lock held(objects_lock());
  context->family_->open.push_back(context.get());
  open_contexts().push_back(context.get());
  return context.release();
}

// The device is entered without the lock: whoever forks takes it first and the lock then.
Outcome<Context*> Context::import(int cmd_fd) {
  const auto wanted = os::identity_of(cmd_fd);
  if (!wanted) return Errno{wanted.error().number};
  auto events = EventQueue::open();
  if (!events) return events.error();
  ibv_device* device = nullptr;
  std::shared_ptr<driver::LiveDevice> live;
  std::shared_ptr<Family> family;
  {
    const std::scoped_lock held(objects_lock());
    const auto same = std::ranges::find_if(open_contexts(), [&](const Context* one) {
      const auto identity = os::identity_of(one->known.context.cmd_fd);
      return identity && identity->device == wanted->device && identity->inode == wanted->inode;
    });
    if (same == open_contexts().end()) return refuse_import(trace::ReasonId::ImportFromElsewhere);
    if ((*same)->is_left_behind()) return (*same)->left_behind();
    // The new context would close what is another's.
    if (std::ranges::any_of(open_contexts(), [&](const Context* one) {
          return one->known.context.cmd_fd == cmd_fd;
        }))
      return Errno{EINVAL};
    device = (*same)->known.context.device;
    live = (*same)->device_;
    family = (*same)->family_;
  }
  std::unique_ptr<Context> context(
      new Context(Device::of(device), std::move(live), std::move(*events), cmd_fd));
  context->family_ = std::move(family);
  context->imported_fd_ = os::OwnedFd(cmd_fd);
  const std::scoped_lock held(objects_lock());
  context->family_->open.push_back(context.get());
  open_contexts().push_back(context.get());
  return context.release();
}

Context::Context(Device& device, std::shared_ptr<driver::LiveDevice> live,
                 std::unique_ptr<EventQueue> events, int cmd_fd)
    : device_(std::move(live)), async_events_(std::move(events)) {
  known.sz = kVerbsContextBytes;
  known.context.device = &device.verbs;
  known.context.cmd_fd = cmd_fd;
  known.context.async_fd = async_events_->fd();
  known.context.num_comp_vectors = nic::kCompletionVectors;
  known.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  pthread_mutex_init(&known.context.mutex, nullptr);
  fill_slots(*this);
  device_->run([&](driver::Engine& engine, Time) { engine.add_sink(*this); });
}

// What was imported later may depend on what was opened before.
void Context::close(Context& context) {
  std::vector<Context*> ending;
  {
    const std::scoped_lock held(objects_lock());
    Family& family = *context.family_;
    std::erase(open_contexts(), &context);
    std::erase(family.open, &context);
    family.closed.push_back(&context);
    if (!family.open.empty()) return;
    ending.swap(family.closed);
  }
  std::ranges::sort(ending, std::greater<>(), [](const Context* one) { return one->order_; });
  for (const bool holders : {false, true})
    for (Context* one : ending) one->take_off_objects(holders);
  for (Context* one : ending) delete one;
}

// First what is made in domains and the like, then those (`holders`).
void Context::take_off_objects(bool holders) {
  static_cast<void>(take_off([&](driver::Engine& engine, Time now) -> Outcome<void> {
    if (!holders) engine.remove_sink(*this);
    for (Owned* object : objects_)
      if (object->holds_others() == holders) object->abandon(engine, now);
    return {};
  }));
}

Context::~Context() {
  for (Owned* object : objects_) delete object;
  pthread_mutex_destroy(&known.context.mutex);
}

Outcome<void> Context::check_unused(std::uint32_t users, std::string_view call) {
  if (users == 0 || is_left_behind()) return {};
  const trace::Reason busy{.id = trace::ReasonId::ObjectBusy, .length = users};
  device_->run([&](driver::Engine& engine, Time) { engine.tell_refused(call, busy); });
  return errno_of(busy.id);
}

void Context::adopt(Owned& object) {
  const std::scoped_lock held(objects_lock());
  objects_.splice(objects_.begin(), object.node_);
}

void Context::release(Owned& object) {
  const std::scoped_lock held(objects_lock());
  object.node_.splice(object.node_.begin(), objects_, object.place_);
}

EventSubject::EventSubject(Context& owner, pthread_mutex_t& mutex, pthread_cond_t& changed,
                           std::uint32_t& acknowledged)
    : owner_(owner), mutex_(mutex), changed_(changed), async_events_(mutex, changed, acknowledged) {
  pthread_mutex_init(&mutex_, nullptr);
  pthread_cond_init(&changed_, nullptr);
}

EventSubject::~EventSubject() {
  owner_.async_events().forget(async_events_);
  if (owner_.is_left_behind()) return;  // threads of the parent may seem to wait on these
  pthread_cond_destroy(&changed_);
  pthread_mutex_destroy(&mutex_);
}

void EventSubject::raise(ibv_event_type type, const Element& about) {
  owner_.async_events().post({.element = about, .event_type = type}, &async_events_);
}

void EventSubject::wait_for(Acknowledgements& events, std::string_view kind, std::uint32_t number) {
  if (owner_.is_left_behind()) return;
  events.wait([&](std::uint32_t missing, std::uintptr_t place) {
    const std::string call = "ibv_destroy_" + std::string(kind) + "(" + std::string(kind) + " " +
                             std::to_string(number) + ")";
    const std::string waiting = " Waiting for " + trace::counted(missing, "unacknowledged event") +
                                ", obtained at " + os::code_place(place) + ".";
    owner_.device().look([&](const driver::Engine& engine) {
      engine.warn(call, {.id = trace::ReasonId::EventsUnacknowledged}, waiting);
    });
  });
}

void EventSubject::retire(std::string_view kind, std::uint32_t number) {
  owner_.async_events().forget(async_events_);
  wait_for(async_events_, kind, number);
  owner_.release(*this);
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
    Context::close(Context::of(context));
    return {};
  });
}

VERB("IBVERBS_1.10", ibv_context*, ibv_import_device, (int cmd_fd)) {
  return answer_pointer([&]() -> Outcome<ibv_context*> {
    auto imported = Context::import(cmd_fd);
    if (!imported) return imported.error();
    return &(*imported)->context();
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
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    if (Context::of(context).is_left_behind()) return Context::of(context).left_behind();
    Context::of(context).device().expect_events();
    const auto next = Context::of(context).async_events().take(place);
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

namespace {

// Null for what is about the device or the port, which do not go.
EventSubject* subject_of(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return &Cq::of(event.element.cq);
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return &Qp::of(event.element.qp);
    case IBV_EVENT_WQ_FATAL:
      return &Wq::of(event.element.wq);
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return &Srq::of(event.element.srq);
    default:
      return nullptr;
  }
}

}  // namespace

VERB("IBVERBS_1.1", void, ibv_ack_async_event, (ibv_async_event * event)) {
  EventSubject* const about = subject_of(*event);
  if (about != nullptr) acknowledge(about->owner(), about->async_events(), 1);
}

}  // namespace softhca::abi
