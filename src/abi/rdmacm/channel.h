// EventChannel: where a program hears of its ids, and the events on their way there.
//
// The descriptor is readable exactly while an event waits, blocks by default and honours
// O_NONBLOCK. What an event asks for (a queue pair to RTS, a group to be attached to) is done when
// the program takes it, in the program's thread.
//
// Threads  any; what waits is under the registry's lock
#pragma once
#include <deque>
#include <list>
#include <memory>

#include "abi/event_queue.h"
#include "abi/rdmacm/news.h"
#include "abi/rdmacm/registry.h"
#include "os/event_counter.h"

namespace softhca::abi {

struct Id;
struct Membership;

// Something that events are about: it goes when the program has acknowledged those that it took.
struct Acknowledged {
  Acknowledged();
  ~Acknowledged();
  Acknowledged(const Acknowledged&) = delete;
  Acknowledged& operator=(const Acknowledged&) = delete;

  // A program that keeps `call` waiting is told so.
  void wait(const char* call);

  pthread_mutex_t mutex;
  pthread_cond_t changed;
  std::uint32_t completed = 0;
  Acknowledgements events{mutex, changed, completed};
};

struct Pending {
  Id* about{};
  Id* listener{};            // of a CONNECT_REQUEST, whose acknowledgement is the listener's
  Membership* membership{};  // of a MULTICAST_JOIN, likewise
  News news{};

  Acknowledged& acknowledged() const;
};

// As the program has it in its hands.
struct TakenEvent final : rdma_cm_event {
  TakenEvent(Registry& where, Pending&& taken);
  static TakenEvent& of(rdma_cm_event* event) { return static_cast<TakenEvent&>(*event); }

  Registry& registry;
  Pending from;
};

class EventChannel final : public rdma_event_channel {
 public:
  static Outcome<EventChannel*> open(Registry& registry);
  ~EventChannel();
  static EventChannel& of(rdma_event_channel* channel) {
    return static_cast<EventChannel&>(*channel);
  }

  Registry& registry() { return registry_; }

  // An event for which there is no memory is lost. REQUIRES: the registry's lock
  void post(Pending&& pending) noexcept;
  // Takes away what waits and is about the id, or came to it as a listener, in its order.
  // REQUIRES: the registry's lock
  std::deque<Pending> remove(const Id& id);
  void forget(const Membership& membership);  // likewise

  // Waits for the next event, as the program is to see it.
  // FAILS WITH EAGAIN, EINTR; see os/event_counter.h. A cancellation point.
  Outcome<TakenEvent*> take(std::uintptr_t place);

 private:
  EventChannel(Registry& registry, os::EventCounter counter);
  template <class Wanted>
  std::deque<Pending> remove_if(Wanted&& wanted);

  Registry& registry_;
  os::EventCounter counter_;
  std::deque<Pending> waiting_;
};

// The program gives it back.
void acknowledge(TakenEvent* event);

}  // namespace softhca::abi
