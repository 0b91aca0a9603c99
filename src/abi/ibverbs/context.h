// Context: an opened device, as a program holds it. Several contexts of a process share a device.
//
// Threads  any
// See also abi/layout.h (why ibv_context lies at the end), abi/ibverbs/slots.cc
#pragma once
#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "abi/event_queue.h"
#include "abi/ibverbs/connections.h"
#include "abi/ibverbs/device.h"
#include "abi/layout.h"
#include "driver/live/live_device.h"
#include "os/owned_fd.h"
#include "os/shared_memory.h"

namespace softhca::abi {

// What a context takes with it when the program closes it with objects still in place. A kernel
// destroys what a process leaves behind; so does a context, in reverse order of creation, so that
// nothing goes before what depends on it.
class Owned {
 public:
  Owned() : node_(1, this), place_(node_.begin()) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  virtual ~Owned() = default;

  // Takes the object off the device; it is deleted afterwards.
  virtual void abandon(driver::Engine& engine, Time now) = 0;
  // Others are made in it, perhaps older ones or another context's: it goes when they have gone.
  virtual bool holds_others() const { return false; }

 private:
  friend class Context;
  // Its node of the context's list, made here so that being adopted cannot fail.
  std::list<Owned*> node_;
  std::list<Owned*>::iterator place_;
};

class Context;

// Contexts that share a command descriptor: the one that was opened, and those that were imported
// from it. Each may use the others' objects by their handles. A kernel keeps the objects until the
// last descriptor is closed; so a context that is closed before the others waits here.
struct Family {
  std::vector<Context*> open;    // under objects_lock()
  std::vector<Context*> closed;  // likewise
};

class Context final : public ContextLayout, private driver::EventSink {
 public:
  // FAILS WITH the errno of NoInterface, EMFILE, ENOMEM
  static Outcome<Context*> open(Device& device);
  // One more handle on what an open context of this process has open, by its command descriptor or
  // a duplicate, which belongs to the new context from then on.
  // FAILS WITH EBADF, EMFILE, ENOMEM; EINVAL for an open context's own; EOPNOTSUPP for a descriptor
  // that is no open device's here
  static Outcome<Context*> import(int cmd_fd);
  ~Context() override;

  static Context& of(ibv_context* context) {
    return static_cast<Context&>(ContextLayout::of(*context));
  }

  // The program closes it. With the last one of a family everything that is left goes off the
  // device, and the contexts are deleted.
  static void close(Context& context);

  // Whether an object of the family is the one: takes(const Object&) says so, and takes of it what
  // is wanted, since another thread may destroy it afterwards.
  template <class Object, class Takes>
  bool take_from_family(Takes&& takes) {
    const std::scoped_lock held(objects_lock());
    for (const std::vector<Context*>* some : {&family_->open, &family_->closed})
      for (const Context* context : *some)
        for (const Owned* owned : context->objects_)
          if (auto* object = dynamic_cast<const Object*>(owned);
              object != nullptr && takes(*object))
            return true;
    return false;
  }

  driver::LiveDevice& device() { return *device_; }
  Connections& connections() { return connections_; }

  // This process was forked from the one that opened it: it can be asked and taken down, no more.
  bool is_left_behind() const { return device_->is_left_behind(); }
  // EPERM; the first time also a line on stderr.
  Errno left_behind() { return errno_of(device_->left_behind().id); }

  // What call(Engine&, Time) gives, which owns the device. FAILS WITH EPERM where it was left
  // behind
  template <class Call>
  auto command(Call&& call)
      -> decltype(outcome_of(call(std::declval<driver::Engine&>(), std::declval<Time>()))) {
    if (is_left_behind()) return left_behind();
    return outcome_of(device_->run(std::forward<Call>(call)));
  }
  // The same for a call that posts sends.
  template <class Call>
  auto post(Call&& call)
      -> decltype(outcome_of(call(std::declval<driver::Engine&>(), std::declval<Time>()))) {
    if (is_left_behind()) return left_behind();
    return outcome_of(device_->post(std::forward<Call>(call)));
  }
  // The same for a call that takes something off the device. Where it was left behind there is
  // nothing to take off.
  template <class Call>
  Outcome<void> take_off(Call&& call) {
    if (is_left_behind()) return {};
    return outcome_of(device_->run(std::forward<Call>(call)));
  }

  // EBUSY, with a line on stderr, while `users` depend on what `call` would destroy. In a forked
  // child nobody does: a thread of the parent may have been in the middle of a count.
  Outcome<void> check_unused(std::uint32_t users, std::string_view call);

  EventQueue& async_events() { return *async_events_; }

  // Keeps track of an object until it goes or the context is closed.
  void adopt(Owned& object);
  void release(Owned& object);

 private:
  Context(Device& device, std::shared_ptr<driver::LiveDevice> live,
          std::unique_ptr<EventQueue> events, int cmd_fd);
  void take_off_objects(bool holders);
  static std::uint64_t next_order();
  void completion_event(driver::CompletionQueue&) override {}
  void async_event(driver::AsyncEventType type, driver::QueuePair* qp, driver::CompletionQueue* cq,
                   const trace::Reason& reason) override;

  std::shared_ptr<driver::LiveDevice> device_;
  ContextConnections connections_{*device_};
  std::unique_ptr<EventQueue> async_events_;
  // cmd_fd: a descriptor with an inode of its own, which can be dup()ed; or what was imported.
  std::optional<os::SharedMemory> command_;
  os::OwnedFd imported_fd_;
  std::shared_ptr<Family> family_;
  std::uint64_t order_ = next_order();  // later ones have larger numbers
  std::list<Owned*> objects_;           // newest first; under objects_lock()
};

// The device's clock, as programs see it: it ticks kClockKhz thousand times a second, and is read
// with all of its bits.
inline constexpr std::uint64_t kClockKhz = 1'000'000;
constexpr std::uint64_t device_ticks(Time at) {
  return static_cast<std::uint64_t>(at.ps) / (1'000'000'000 / kClockKhz);
}

// An object that asynchronous events are about: it goes when the program has acknowledged those
// that it took. Its verbs structure holds the mutex, the condition and the count for that.
class EventSubject : public Owned {
 public:
  using Element = decltype(ibv_async_event::element);

  ~EventSubject() override;

  Context& owner() { return owner_; }
  Acknowledgements& async_events() { return async_events_; }

 protected:
  // Makes `mutex` and `changed`, which outlive this object.
  EventSubject(Context& owner, pthread_mutex_t& mutex, pthread_cond_t& changed,
               std::uint32_t& acknowledged);

  void raise(ibv_event_type type, const Element& about);
  // It is off the device: waits for what has to be acknowledged, and leaves the context. A program
  // that keeps it waiting is told so, by `kind` ("cq") and number.
  void retire(std::string_view kind, std::uint32_t number);
  void wait_for(Acknowledgements& events, std::string_view kind, std::uint32_t number);

 private:
  Context& owner_;
  pthread_mutex_t& mutex_;
  pthread_cond_t& changed_;
  Acknowledgements async_events_;
};

// Counts events that the program has acknowledged.
void acknowledge(Context& owner, Acknowledgements& of, std::uint32_t events);

// Fills every function pointer that programs may call through a context.
void fill_slots(ContextLayout& context);

}  // namespace softhca::abi
