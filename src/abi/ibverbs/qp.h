// Qp: a queue pair, as a program holds it.
//
// Threads  any; the device's owner puts work requests of one call behind each other
// See also abi/ibverbs/post.cc, abi/ibverbs/send_builder.h
#pragma once
#include <memory>

#include "abi/ibverbs/cq.h"
#include "abi/ibverbs/lent_memory.h"
#include "abi/ibverbs/memory.h"
#include "abi/ibverbs/send_builder.h"
#include "abi/ibverbs/srq.h"
#include "abi/ibverbs/wq.h"

namespace softhca::abi {

class Qp final : public QpLayout, public EventSubject, private driver::EventSink {
 public:
  // What a queue pair belongs to: a protection domain, or for XRC targets an XRC domain.
  struct Home {
    ibv_context* context{};
    Pd* domain{};
    Xrcd* xrcd{};
  };
  // Writes back into `wanted` what the queue pair really has. FAILS WITH EINVAL, ENOMEM, EOPNOTSUPP
  // `spread`: one that spreads its frames; its completion queues are then those of the work queues.
  static Outcome<Qp*> create(const Home& home, ibv_qp_init_attr& wanted,
                             const ReceiveSpread* spread = nullptr);
  // One more handle on an XRC target. FAILS WITH EINVAL
  static Outcome<Qp*> open(Xrcd& xrcd, std::uint32_t qpn, void* qp_context);
  ~Qp() override;

  static Qp& of(ibv_qp* verbs) { return static_cast<Qp&>(*reinterpret_cast<QpLayout*>(verbs)); }
  ibv_qp& verbs() { return known.qp_base; }

  // Offers the functions of ibv_qp_ex. FAILS WITH EOPNOTSUPP for an operation that is not offered
  Outcome<void> offer_builder(std::uint64_t operations);
  SendBuilder* builder() { return builder_.get(); }  // null: not asked for

  // FAILS WITH EBUSY. Waits until the program has acknowledged the events that it took.
  Outcome<void> destroy();
  void abandon(driver::Engine& engine, Time now) override;

  driver::QueuePair& pair() { return *pair_; }
  void report(ibv_qp_init_attr& attributes);

 private:
  Qp(const Home& home, const ibv_qp_init_attr& wanted, RwqIndTable* table);
  Outcome<Qp*> adopted(driver::QueuePair& pair);
  Outcome<void> borrow(driver::Engine::QueuePairSpec& spec);
  void completion_event(driver::CompletionQueue&) override {}
  void async_event(driver::AsyncEventType type, driver::QueuePair* qp, driver::CompletionQueue* cq,
                   const trace::Reason& reason) override;

  driver::QueuePair* pair_ = nullptr;
  PdUse domain_;
  LentMemory send_memory_;
  LentMemory receive_memory_;
  Xrcd* xrcd_;          // XRC targets
  RwqIndTable* table_;  // null: it does not spread its frames
  bool signal_all_;
  std::unique_ptr<SendBuilder> builder_;
};

// Operations that programs reach through the context.
int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) noexcept;
int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) noexcept;
int post_receives(Context& owner, driver::QueuePair& pair, ibv_recv_wr* list,
                  ibv_recv_wr** bad) noexcept;
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attributes) noexcept;
ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attributes) noexcept;

}  // namespace softhca::abi
