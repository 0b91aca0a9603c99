// Wq, RwqIndTable: receive work queues of raw packets, and tables of them that frames are spread
// over by a hash (receive-side scaling).
//
// A work queue is to the device the receiving half of a raw packet queue pair.
//
// Threads  any
// Spec     man ibv_create_wq, ibv_modify_wq, ibv_create_rwq_ind_table, ibv_create_qp_ex
#pragma once
#include <atomic>
#include <vector>

#include "abi/ibverbs/cq.h"
#include "abi/ibverbs/memory.h"

namespace softhca::abi {

// Fields that a hash may be of.
inline constexpr std::uint64_t kHashFields = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 |
                                             IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 |
                                             IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP |
                                             IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP;

class Wq final : public ibv_wq, public EventSubject, private driver::EventSink {
 public:
  // FAILS WITH EINVAL, ENOMEM, EOPNOTSUPP
  static Outcome<Wq*> create(Context& owner, const ibv_wq_init_attr& wanted);
  static Wq& of(ibv_wq* verbs) { return static_cast<Wq&>(*verbs); }

  // FAILS WITH EINVAL (no such transition), EOPNOTSUPP (an attribute that is not offered)
  Outcome<void> modify(const ibv_wq_attr& attributes);
  // FAILS WITH EBUSY while a table has it.
  Outcome<void> destroy();
  void abandon(driver::Engine& engine, Time now) override;

  driver::QueuePair& pair() { return *pair_; }

  std::atomic<std::uint32_t> tables{0};  // that it is in

 private:
  Wq(Context& owner, const ibv_wq_init_attr& wanted);
  void completion_event(driver::CompletionQueue&) override {}
  void async_event(driver::AsyncEventType type, driver::QueuePair* qp, driver::CompletionQueue* cq,
                   const trace::Reason& reason) override;

  driver::QueuePair* pair_ = nullptr;
  PdUse domain_;
  LentMemory memory_;
};

class RwqIndTable final : public ibv_rwq_ind_table, public Owned {
 public:
  // FAILS WITH EINVAL
  static Outcome<RwqIndTable*> create(Context& owner, const ibv_rwq_ind_table_init_attr& wanted);
  ~RwqIndTable() override;
  static RwqIndTable& of(ibv_rwq_ind_table* verbs) { return static_cast<RwqIndTable&>(*verbs); }

  // FAILS WITH EBUSY while a queue pair uses it.
  Outcome<void> destroy();
  void abandon(driver::Engine&, Time) override {}

  Context& owner() { return Context::of(context); }
  const std::vector<Wq*>& queues() const { return queues_; }

  std::atomic<std::uint32_t> queue_pairs{0};  // that use it

 private:
  RwqIndTable(Context& owner, std::vector<Wq*> queues);

  std::vector<Wq*> queues_;
};

// What a queue pair that spreads its frames is made of: the table and the hash.
struct ReceiveSpread {
  RwqIndTable* table{};
  nic::Spreading spreading;
};
// FAILS WITH EINVAL, EOPNOTSUPP
Outcome<ReceiveSpread> receive_spread(const ibv_qp_init_attr_ex& wanted);

ibv_wq* create_wq(ibv_context* context, ibv_wq_init_attr* wanted) noexcept;
int modify_wq(ibv_wq* wq, ibv_wq_attr* attributes) noexcept;
int destroy_wq(ibv_wq* wq) noexcept;
ibv_rwq_ind_table* create_rwq_ind_table(ibv_context* context,
                                        ibv_rwq_ind_table_init_attr* wanted) noexcept;
int destroy_rwq_ind_table(ibv_rwq_ind_table* table) noexcept;

}  // namespace softhca::abi
