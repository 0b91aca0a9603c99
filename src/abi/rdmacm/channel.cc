#include "abi/rdmacm/channel.h"

#include <cerrno>
#include <iterator>
#include <new>
#include <utility>

#include "abi/entry.h"
#include "abi/rdmacm/id.h"
#include "abi/rdmacm/tell.h"
#include "os/self.h"
#include "trace/words.h"

namespace softhca::abi {

Acknowledged::Acknowledged() {
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&changed, nullptr);
}

Acknowledged::~Acknowledged() {
  pthread_cond_destroy(&changed);
  pthread_mutex_destroy(&mutex);
}

void Acknowledged::wait(const char* call) {
  events.wait([&](std::uint32_t missing, std::uintptr_t place) {
    tell(call, {.id = trace::ReasonId::EventsUnacknowledged},
         " Waiting for " + trace::counted(missing, "unacknowledged event") + ", obtained at " +
             os::code_place(place) + ".");
  });
}

Acknowledged& Pending::acknowledged() const {
  if (membership != nullptr) return membership->acknowledged;
  return (listener != nullptr ? listener : about)->acknowledged;
}

TakenEvent::TakenEvent(Registry& where, Pending&& taken)
    : rdma_cm_event{}, registry(where), from(std::move(taken)) {
  id = from.about;
  listen_id = from.listener;
  event = from.news.type;
  status = from.news.status;
  const void* bytes = from.news.private_bytes.empty() ? nullptr : from.news.private_bytes.data();
  const auto length = static_cast<std::uint8_t>(from.news.private_bytes.size());
  if (from.about->qp_type == IBV_QPT_UD) {
    param.ud.private_data = bytes;
    param.ud.private_data_len = length;
    param.ud.qp_num = from.news.datagram_qpn;
    param.ud.qkey = from.news.datagram_qkey;
  } else {
    param.conn = from.news.connection;
    param.conn.private_data = bytes;
    param.conn.private_data_len = length;
  }
}

EventChannel::EventChannel(Registry& registry, os::EventCounter counter)
    : rdma_event_channel{counter.fd()}, registry_(registry), counter_(std::move(counter)) {
  registry.note(static_cast<rdma_event_channel*>(this));
}

EventChannel::~EventChannel() { registry_.forget(static_cast<rdma_event_channel*>(this)); }

Outcome<EventChannel*> EventChannel::open(Registry& registry) {
  auto counter = os::EventCounter::open();
  if (!counter) return Errno{counter.error().number};
  return new EventChannel(registry, std::move(*counter));
}

void EventChannel::post(Pending&& pending) noexcept {
  try {
    waiting_.push_back(std::move(pending));
  } catch (const std::bad_alloc&) {
    return;
  }
  counter_.give();
}

template <class Wanted>
std::deque<Pending> EventChannel::remove_if(Wanted&& wanted) {
  std::deque<Pending> kept, removed;
  for (Pending& one : waiting_) (wanted(one) ? removed : kept).push_back(std::move(one));
  waiting_ = std::move(kept);
  for (std::size_t i = 0; i < removed.size() && counter_.take_if_any(); ++i) continue;
  return removed;
}

std::deque<Pending> EventChannel::remove(const Id& id) {
  return remove_if([&](const Pending& one) { return one.about == &id || one.listener == &id; });
}

void EventChannel::forget(const Membership& membership) {
  remove_if([&](const Pending& one) { return one.membership == &membership; });
}

Outcome<TakenEvent*> EventChannel::take(std::uintptr_t place) {
  for (;;) {
    const auto counted = counter_.take();
    std::unique_ptr<TakenEvent> taken;
    {
      const std::scoped_lock held(registry_.lock);
      if (!counted) {
        // remove_if() may have made the descriptor non-blocking for a moment, under the lock.
        if (counted.error().number == EAGAIN && !counter_.is_non_blocking()) continue;
        return Errno{counted.error().number};
      }
      if (waiting_.empty()) continue;  // its id went in the meantime
      taken = std::make_unique<TakenEvent>(registry_, std::move(waiting_.front()));
      waiting_.pop_front();
      taken->from.acknowledged().events.delivered(place);
    }
    if (carry_out(*taken)) return taken.release();
    acknowledge(taken.release());
  }
}

void acknowledge(TakenEvent* event) {
  const std::unique_ptr<TakenEvent> given_back(event);
  event->from.acknowledged().events.acknowledge(1);
}

VERB("RDMACM_1.0", rdma_event_channel*, rdma_create_event_channel, ()) {
  return answer_pointer([]() -> Outcome<rdma_event_channel*> {
    const auto channel = EventChannel::open(Registry::only());
    if (!channel) return channel.error();
    return *channel;
  });
}

VERB("RDMACM_1.0", void, rdma_destroy_event_channel, (rdma_event_channel * channel)) {
  if (Registry::only().has(channel)) delete &EventChannel::of(channel);
}

BLOCKING_VERB("RDMACM_1.0", int, rdma_get_cm_event,
              (rdma_event_channel * channel, rdma_cm_event** event)) {
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    EventChannel& from = EventChannel::of(channel);
    if (from.registry().is_left_behind()) return from.registry().left_behind();
    const auto taken = from.take(place);
    if (!taken) return taken.error();
    *event = *taken;
    return 0;
  });
}

VERB("RDMACM_1.0", int, rdma_ack_cm_event, (rdma_cm_event * event)) {
  return answer_minus_one([&]() -> Outcome<int> {
    if (event == nullptr) return Errno{EINVAL};
    TakenEvent& taken = TakenEvent::of(event);
    if (!taken.registry.is_left_behind()) acknowledge(&taken);
    return 0;
  });
}

}  // namespace softhca::abi
