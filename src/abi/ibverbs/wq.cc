#include "abi/ibverbs/wq.h"

#include <bit>

#include "abi/entry.h"
#include "abi/ibverbs/qp.h"

namespace softhca::abi {
namespace {

using transport::QpAttribute;
using transport::QpState;

constexpr std::size_t kHashKeyBytes = 40;

Outcome<void> check(Context& owner, const ibv_wq_init_attr& wanted) {
  if (wanted.pd == nullptr || wanted.cq == nullptr || wanted.wq_type != IBV_WQT_RQ)
    return Errno{EINVAL};
  if (wanted.pd->context != &owner.context() || wanted.cq->context != &owner.context())
    return Errno{EINVAL};
  if ((wanted.comp_mask & ~std::uint32_t{IBV_WQ_INIT_ATTR_FLAGS}) != 0) return Errno{EINVAL};
  if ((wanted.comp_mask & IBV_WQ_INIT_ATTR_FLAGS) != 0 && wanted.create_flags != 0)
    return Errno{EOPNOTSUPP};
  return {};
}

int post_to_wq(ibv_wq* verbs, ibv_recv_wr* list, ibv_recv_wr** bad) noexcept {
  Wq& wq = Wq::of(verbs);
  return post_receives(wq.owner(), wq.pair(), list, bad);
}

// The states that the queue pair goes through for a transition of its work queue.
std::vector<QpState> way(ibv_wq_state from, ibv_wq_state to) {
  if (from == IBV_WQS_RESET && to == IBV_WQS_RDY) return {QpState::Init, QpState::Rtr};
  if (from == IBV_WQS_RDY && to == IBV_WQS_RDY) return {};
  if (to == IBV_WQS_ERR) return {QpState::Error};
  if (to == IBV_WQS_RESET) return {QpState::Reset};
  return {QpState::Rts};  // which the state table refuses
}

}  // namespace

Wq::Wq(Context& owner, const ibv_wq_init_attr& wanted)
    : ibv_wq{}, EventSubject(owner, mutex, cond, events_completed), domain_(wanted.pd) {
  context = &owner.context();
  wq_context = wanted.wq_context;
  pd = wanted.pd;
  cq = wanted.cq;
  wq_type = wanted.wq_type;
  state = IBV_WQS_RESET;
  ibv_wq::post_recv = post_to_wq;
}

Outcome<Wq*> Wq::create(Context& owner, const ibv_wq_init_attr& wanted) {
  if (const auto possible = check(owner, wanted); !possible) return possible.error();
  std::unique_ptr<Wq> wq(new Wq(owner, wanted));
  driver::CompletionQueue* const queue = Cq::of(wanted.cq).queue();
  driver::Engine::QueuePairSpec spec{
      .pd = Pd::of(wanted.pd).number(),
      .type = transport::QpType::RawPacket,
      .send_cq = queue,
      .receive_cq = queue,
      .capacity = {.receive_requests = wanted.max_wr, .receive_sges = wanted.max_sge},
      .events = wq.get(),
      .is_work_queue = true};
  auto lent = LentMemory::from(&Pd::of(wanted.pd), driver::Engine::ring_bytes(spec).receive,
                               LentFor::ReceiveQueue);
  if (!lent) return lent.error();
  wq->memory_ = std::move(*lent);
  spec.lent.receive = wq->memory_.bytes();
  const auto pair =
      owner.command([&](driver::Engine& engine, Time now) { return engine.create_qp(spec, now); });
  if (!pair) return pair.error();
  wq->pair_ = *pair;
  wq->wq_num = wq->handle = wq->pair_->qpn().value;
  owner.adopt(*wq);
  return wq.release();
}

Outcome<void> Wq::modify(const ibv_wq_attr& attributes) {
  constexpr std::uint32_t kOffered = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE;
  const std::uint32_t mask = attributes.attr_mask;
  if ((mask & ~kOffered) != 0) return Errno{(mask & IBV_WQ_ATTR_FLAGS) != 0 ? EOPNOTSUPP : EINVAL};
  if ((mask & IBV_WQ_ATTR_STATE) == 0) return {};
  return owner().command([&](driver::Engine& engine, Time now) -> Outcome<void> {
    if ((mask & IBV_WQ_ATTR_CURR_STATE) != 0 && attributes.curr_wq_state != state)
      return Errno{EINVAL};
    for (const QpState to : way(state, attributes.wq_state)) {
      transport::QpAttributes next;
      next.state = to;
      transport::QpAttributeMask given = QpAttribute::State;
      if (to == QpState::Init) {
        next.port = 1;
        given |= QpAttribute::Port;
      }
      if (const auto done = outcome_of(engine.modify_qp(*pair_, next, given, now)); !done)
        return done;
    }
    state = attributes.wq_state;
    return {};
  });
}

Outcome<void> Wq::destroy() {
  if (const auto unused = owner().check_unused(tables.load(), "destroying a work queue"); !unused)
    return unused;
  const auto gone = owner().take_off(
      [&](driver::Engine& engine, Time now) { return engine.destroy_qp(*pair_, now); });
  if (gone) retire("wq", wq_num);
  return gone;
}

void Wq::abandon(driver::Engine& engine, Time now) {
  [[maybe_unused]] const auto gone = engine.destroy_qp(*pair_, now);
}

// Whatever failed the queue pair behind it, to the program its work queue has failed.
void Wq::async_event(driver::AsyncEventType, driver::QueuePair*, driver::CompletionQueue*,
                     const trace::Reason&) {
  state = IBV_WQS_ERR;
  raise(IBV_EVENT_WQ_FATAL, {.wq = this});
}

RwqIndTable::RwqIndTable(Context& owner, std::vector<Wq*> queues)
    : ibv_rwq_ind_table{}, queues_(std::move(queues)) {
  context = &owner.context();
  ind_tbl_num = ind_tbl_handle = static_cast<int>(queues_.front()->wq_num);
  for (Wq* wq : queues_) ++wq->tables;
}

RwqIndTable::~RwqIndTable() {
  for (Wq* wq : queues_) --wq->tables;
  --Device::of(context->device).spread_tables;
}

Outcome<RwqIndTable*> RwqIndTable::create(Context& owner,
                                          const ibv_rwq_ind_table_init_attr& wanted) {
  if (wanted.comp_mask != 0 || wanted.log_ind_tbl_size > std::bit_width(nic::kMaxSpread) - 1)
    return Errno{EINVAL};
  if (owner.is_left_behind()) return owner.left_behind();
  std::vector<Wq*> queues;
  for (std::size_t i = 0; i < std::size_t{1} << wanted.log_ind_tbl_size; ++i) {
    ibv_wq* const wq = wanted.ind_tbl[i];
    if (wq == nullptr || wq->context != &owner.context() || wq->pd != wanted.ind_tbl[0]->pd)
      return Errno{EINVAL};
    queues.push_back(&Wq::of(wq));
  }
  std::atomic<std::uint32_t>& existing = Device::of(owner.context().device).spread_tables;
  if (++existing > nic::kMaxSpreadTables) {
    --existing;
    return errno_of(trace::ReasonId::LimitExceeded);
  }
  std::unique_ptr<RwqIndTable> table(new RwqIndTable(owner, std::move(queues)));
  owner.adopt(*table);
  return table.release();
}

Outcome<void> RwqIndTable::destroy() {
  if (const auto unused =
          owner().check_unused(queue_pairs.load(), "destroying a table of work queues");
      !unused)
    return unused;
  owner().release(*this);
  return {};
}

Outcome<ReceiveSpread> receive_spread(const ibv_qp_init_attr_ex& wanted) {
  constexpr std::uint32_t kBoth = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
  if ((wanted.comp_mask & kBoth) != kBoth || wanted.rwq_ind_tbl == nullptr) return Errno{EINVAL};
  if (wanted.qp_type != IBV_QPT_RAW_PACKET || wanted.send_cq != nullptr ||
      wanted.recv_cq != nullptr || wanted.srq != nullptr || wanted.cap.max_send_wr != 0)
    return Errno{EINVAL};
  const ibv_rx_hash_conf& hash = wanted.rx_hash_conf;
  if (hash.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ ||
      (hash.rx_hash_fields_mask & ~kHashFields) != 0)
    return Errno{EOPNOTSUPP};
  if (hash.rx_hash_key_len != kHashKeyBytes || hash.rx_hash_key == nullptr) return Errno{EINVAL};
  return ReceiveSpread{
      .table = &RwqIndTable::of(wanted.rwq_ind_tbl),
      .spreading = {.key = {hash.rx_hash_key, hash.rx_hash_key + hash.rx_hash_key_len},
                    .fields = hash.rx_hash_fields_mask}};
}

ibv_wq* create_wq(ibv_context* context, ibv_wq_init_attr* wanted) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_wq*> {
    const auto wq = Wq::create(Context::of(context), *wanted);
    if (!wq) return wq.error();
    wanted->max_wr = (*wq)->pair().capacity().receive_requests;
    wanted->max_sge = (*wq)->pair().capacity().receive_sges;
    return *wq;
  });
}

int modify_wq(ibv_wq* wq, ibv_wq_attr* attributes) noexcept {
  return answer_errno([&] { return Wq::of(wq).modify(*attributes); });
}

int destroy_wq(ibv_wq* verbs) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    Wq& wq = Wq::of(verbs);
    const auto gone = wq.destroy();
    if (gone) delete &wq;
    return gone;
  });
}

ibv_rwq_ind_table* create_rwq_ind_table(ibv_context* context,
                                        ibv_rwq_ind_table_init_attr* wanted) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_rwq_ind_table*> {
    const auto table = RwqIndTable::create(Context::of(context), *wanted);
    if (!table) return table.error();
    return *table;
  });
}

int destroy_rwq_ind_table(ibv_rwq_ind_table* verbs) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    RwqIndTable& table = RwqIndTable::of(verbs);
    const auto gone = table.destroy();
    if (gone) delete &table;
    return gone;
  });
}

}  // namespace softhca::abi
