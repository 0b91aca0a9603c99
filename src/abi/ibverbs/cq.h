// Cq: a completion queue, as a program holds it; served through ibv_poll_cq and, where it was
// created with ibv_create_cq_ex, also through the functions of ibv_cq_ex.
//
// Threads  any. Between start_poll and end_poll a thread owns the extended interface
#pragma once
#include <mutex>
#include <span>

#include "abi/ibverbs/channel.h"
#include "abi/ibverbs/lent_memory.h"
#include "driver/completion_queue.h"

namespace softhca::abi {

class Cq final : public ibv_cq_ex, public EventSubject, private driver::EventSink {
 public:
  struct Request {
    std::uint32_t entries{};
    void* cq_context{};
    ibv_comp_channel* channel{};
    std::uint32_t vector{};
    bool single_threaded{};
    bool ignores_overrun{};
    bool tells_time_of_day{};
    Pd* domain{};  // a parent domain, or null
  };
  // FAILS WITH EINVAL, ENOMEM
  static Outcome<Cq*> create(Context& owner, const Request& request);
  ~Cq() override;

  static Cq& of(ibv_cq_ex* verbs) { return static_cast<Cq&>(*verbs); }
  static Cq& of(ibv_cq* verbs) { return of(reinterpret_cast<ibv_cq_ex*>(verbs)); }
  ibv_cq* verbs() { return ibv_cq_ex_to_cq(this); }

  // FAILS WITH EBUSY. Waits until the program has acknowledged the events that it took.
  Outcome<void> destroy();
  void abandon(driver::Engine& engine, Time now) override;

  // FAILS WITH EINVAL, ENOMEM
  Outcome<void> resize(int entries);

  // Whether there is something to poll; if not at once, once the device has been driven.
  // FAILS WITH EPERM in a forked child
  Outcome<bool> has_any();

  driver::CompletionQueue* queue() { return queue_; }
  Acknowledgements& completion_events() { return completion_events_; }

  // The extended interface: takes the next completion, or gives ENOENT. begin() and end() enclose
  // the time during which a thread owns it; a begin() that fails needs no end().
  int begin();
  int take_next();
  void end();
  const driver::Completion& current() const { return current_; }
  // When the current completion was made, in nanoseconds since 1970.
  std::uint64_t current_time_of_day() const { return current_time_of_day_; }

 private:
  Cq(Context& owner, const Request& request);
  void completion_event(driver::CompletionQueue& cq) override;
  void async_event(driver::AsyncEventType type, driver::QueuePair* qp, driver::CompletionQueue* cq,
                   const trace::Reason& reason) override;

  driver::CompletionQueue* queue_ = nullptr;
  PdUse domain_;
  LentMemory memory_;
  bool single_threaded_;
  bool tells_time_of_day_;
  Acknowledgements completion_events_;
  std::mutex polling_;
  driver::Completion current_;
  std::uint64_t current_time_of_day_ = 0;
};

// Fills the function pointers of ibv_cq_ex.
void fill_slots(ibv_cq_ex& cq);

// Operations that programs reach through the context.
int poll_cq(ibv_cq* cq, int num_entries, ibv_wc* wc) noexcept;
int req_notify_cq(ibv_cq* cq, int solicited_only) noexcept;
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attributes) noexcept;
int query_rt_values(ibv_context* context, ibv_values_ex* values) noexcept;
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attributes) noexcept;

}  // namespace softhca::abi
