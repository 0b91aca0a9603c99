// Srq: a shared receive queue, as a program holds it.
//
// Threads  any
#pragma once
#include "abi/ibverbs/cq.h"
#include "abi/ibverbs/lent_memory.h"
#include "abi/ibverbs/memory.h"
#include "abi/ibverbs/xrcd.h"

namespace softhca::abi {

class Srq final : public ibv_srq, public EventSubject, private driver::EventSink {
 public:
  struct Request {
    void* srq_context{};
    Xrcd* xrcd{};  // XRC
    Cq* cq{};      // XRC, and queues that match tags
    std::uint32_t tags{};
  };
  // Writes back into `size` what the queue really has. FAILS WITH EINVAL, ENOMEM
  static Outcome<Srq*> create(Pd& domain, const Request& request, ibv_srq_attr& size);
  ~Srq() override;
  static Srq& of(ibv_srq* verbs) { return static_cast<Srq&>(*verbs); }

  // FAILS WITH EBUSY. Waits until the program has acknowledged the events that it took.
  Outcome<void> destroy();
  void abandon(driver::Engine& engine, Time now) override;

  // FAILS WITH EINVAL. What was set, as it is now, goes back into `attributes`.
  Outcome<void> modify(ibv_srq_attr& attributes, int mask);

  driver::SharedReceiveQueue& queue() { return *queue_; }

 private:
  Srq(Pd& domain, const Request& request);
  void completion_event(driver::CompletionQueue&) override {}
  void async_event(driver::AsyncEventType, driver::QueuePair*, driver::CompletionQueue*,
                   const trace::Reason&) override {}
  void srq_event(driver::AsyncEventType type, driver::SharedReceiveQueue& queue,
                 const trace::Reason& reason) override;

  driver::SharedReceiveQueue* queue_ = nullptr;
  PdUse domain_;
  LentMemory memory_;
  Xrcd* xrcd_;
};

// Operations that programs reach through the context.
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attributes) noexcept;
int get_srq_num(ibv_srq* srq, std::uint32_t* number) noexcept;
int post_srq_ops(ibv_srq* srq, ibv_ops_wr* list, ibv_ops_wr** bad) noexcept;
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) noexcept;

}  // namespace softhca::abi
