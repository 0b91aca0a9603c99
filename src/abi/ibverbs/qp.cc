#include "abi/ibverbs/qp.h"

#include "abi/entry.h"
#include "abi/qp_attributes.h"

namespace softhca::abi {
namespace {

driver::QueueCapacity capacity_of(const ibv_qp_cap& cap) {
  return {.send_requests = cap.max_send_wr,
          .receive_requests = cap.max_recv_wr,
          .send_sges = cap.max_send_sge,
          .receive_sges = cap.max_recv_sge,
          .inline_bytes = cap.max_inline_data};
}

ibv_qp_cap as_verbs(const driver::QueueCapacity& capacity) {
  ibv_qp_cap cap{};
  cap.max_send_wr = capacity.send_requests;
  cap.max_recv_wr = capacity.receive_requests;
  cap.max_send_sge = capacity.send_sges;
  cap.max_recv_sge = capacity.receive_sges;
  cap.max_inline_data = capacity.inline_bytes;
  return cap;
}

Outcome<void> check(const Pd& domain, const ibv_qp_init_attr& wanted) {
  if (wanted.send_cq == nullptr || wanted.recv_cq == nullptr) return Errno{EINVAL};
  if (wanted.send_cq->context != domain.context || wanted.recv_cq->context != domain.context)
    return Errno{EINVAL};
  if (wanted.srq != nullptr) return Errno{EOPNOTSUPP};
  switch (number_of(wanted.qp_type)) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_UD:
    case IBV_QPT_RAW_PACKET:
      return {};  // the engine says which services it offers
    default:
      return Errno{EOPNOTSUPP};
  }
}

}  // namespace

Qp::Qp(Pd& domain, const ibv_qp_init_attr& wanted, RwqIndTable* table)
    : signal_all_(wanted.sq_sig_all != 0),
      table_(table),
      async_events_(known.qp_base.mutex, known.qp_base.cond, known.qp_base.events_completed) {
  ibv_qp& qp = known.qp_base;
  qp.context = domain.context;
  qp.qp_context = wanted.qp_context;
  qp.pd = &domain;
  qp.send_cq = wanted.send_cq;
  qp.recv_cq = wanted.recv_cq;
  qp.qp_type = wanted.qp_type;
  qp.state = IBV_QPS_RESET;
  pthread_mutex_init(&qp.mutex, nullptr);
  pthread_cond_init(&qp.cond, nullptr);
  fill_builder_slots(*this);
  if (table_ != nullptr) ++table_->queue_pairs;
}

Qp::~Qp() {
  if (table_ != nullptr) --table_->queue_pairs;
  owner().async_events().forget(async_events_);
  if (owner().is_left_behind()) return;  // threads of the parent may seem to wait on these
  pthread_cond_destroy(&known.qp_base.cond);
  pthread_mutex_destroy(&known.qp_base.mutex);
}

Outcome<Qp*> Qp::create(Pd& domain, ibv_qp_init_attr& wanted, const ReceiveSpread* spread) {
  if (const auto possible = check(domain, wanted); !possible) return possible.error();
  std::unique_ptr<Qp> qp(new Qp(domain, wanted, spread != nullptr ? spread->table : nullptr));
  driver::Engine::QueuePairSpec spec{.pd = domain.number(),
                                     .type = static_cast<transport::QpType>(wanted.qp_type),
                                     .send_cq = Cq::of(wanted.send_cq).queue(),
                                     .receive_cq = Cq::of(wanted.recv_cq).queue(),
                                     .capacity = capacity_of(wanted.cap),
                                     .signal_all = wanted.sq_sig_all != 0,
                                     .events = qp.get()};
  if (spread != nullptr) {
    for (Wq* wq : spread->table->queues()) spec.spread_over.push_back(&wq->pair());
    spec.spreading = spread->spreading;
  }
  const auto pair = qp->owner().command(
      [&](driver::Engine& engine, Time now) { return engine.create_qp(spec, now); });
  if (!pair) return pair.error();
  qp->pair_ = *pair;
  qp->verbs().qp_num = qp->verbs().handle = qp->pair_->qpn().value;
  qp->owner().adopt(*qp);
  wanted.cap = as_verbs(qp->pair_->capacity());
  return qp.release();
}

Outcome<void> Qp::offer_builder(std::uint64_t operations) {
  using transport::QpType;
  const QpType type = pair_->type();
  const std::uint64_t offered = type == QpType::Ud          ? SendBuilder::kDatagramOperations
                                : type == QpType::Uc        ? SendBuilder::kUnreliableOperations
                                : type == QpType::RawPacket ? SendBuilder::kRawOperations
                                                            : SendBuilder::kOperations;
  if ((operations & ~offered) != 0) return Errno{EOPNOTSUPP};
  builder_ = std::make_unique<SendBuilder>(*pair_, owner());
  return {};
}

Outcome<void> Qp::destroy() {
  const auto gone = owner().take_off(
      [&](driver::Engine& engine, Time now) { return engine.destroy_qp(*pair_, now); });
  if (!gone) return gone;
  owner().async_events().forget(async_events_);
  if (!owner().is_left_behind()) async_events_.wait();
  owner().release(*this);
  return {};
}

void Qp::abandon(driver::Engine& engine, Time now) {
  [[maybe_unused]] const auto gone = engine.destroy_qp(*pair_, now);
}

void Qp::async_event(driver::AsyncEventType type, driver::QueuePair*, driver::CompletionQueue*,
                     const trace::Reason&) {
  ibv_async_event event{};
  event.event_type = static_cast<ibv_event_type>(type);
  event.element.qp = &verbs();
  owner().async_events().post(event, &async_events_);
}

void Qp::report(ibv_qp_init_attr& attributes) {
  const ibv_qp& qp = known.qp_base;
  attributes = {};
  attributes.qp_context = qp.qp_context;
  attributes.send_cq = qp.send_cq;
  attributes.recv_cq = qp.recv_cq;
  attributes.cap = as_verbs(pair_->capacity());
  attributes.qp_type = qp.qp_type;
  attributes.sq_sig_all = signal_all_ ? 1 : 0;
}

VERB("IBVERBS_1.1", ibv_qp*, ibv_create_qp, (ibv_pd * pd, ibv_qp_init_attr* attributes)) {
  return answer_pointer([&]() -> Outcome<ibv_qp*> {
    const auto qp = Qp::create(Pd::of(pd), *attributes);
    if (!qp) return qp.error();
    return &(*qp)->verbs();
  });
}

namespace {

Outcome<ibv_qp*> create_spreading_qp(const ibv_qp_init_attr_ex& wanted) {
  const auto spread = receive_spread(wanted);
  if (!spread) return spread.error();
  ibv_cq* const cq = spread->table->queues().front()->cq;
  ibv_qp_init_attr attributes{};
  attributes.qp_context = wanted.qp_context;
  attributes.send_cq = attributes.recv_cq = cq;
  attributes.qp_type = wanted.qp_type;
  const auto qp = Qp::create(Pd::of(wanted.pd), attributes, &*spread);
  if (!qp) return qp.error();
  return &(*qp)->verbs();
}

}  // namespace

ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* attributes) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_qp*> {
    constexpr std::uint32_t kOffered =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    constexpr std::uint32_t kSpreads = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    const std::uint32_t mask = attributes->comp_mask;
    if ((mask & ~(kOffered | kSpreads)) != 0) return Errno{EOPNOTSUPP};
    if ((mask & IBV_QP_INIT_ATTR_PD) == 0 || attributes->pd == nullptr) return Errno{EINVAL};
    if ((mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && attributes->create_flags != 0)
      return Errno{EOPNOTSUPP};
    if ((mask & kSpreads) != 0) return create_spreading_qp(*attributes);
    // ibv_qp_init_attr_ex begins with an ibv_qp_init_attr.
    const auto qp =
        Qp::create(Pd::of(attributes->pd), *reinterpret_cast<ibv_qp_init_attr*>(attributes));
    if (!qp) return qp.error();
    if ((mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0) {
      if (const auto offered = (*qp)->offer_builder(attributes->send_ops_flags); !offered) {
        if ((*qp)->destroy()) delete *qp;
        return offered.error();
      }
    }
    return &(*qp)->verbs();
  });
}

VERB("IBVERBS_1.6", ibv_qp_ex*, ibv_qp_to_qp_ex, (ibv_qp * qp)) {
  return Qp::of(qp).builder() != nullptr ? &Qp::of(qp).known : nullptr;
}

VERB("IBVERBS_1.1", int, ibv_modify_qp, (ibv_qp * verbs, ibv_qp_attr* attributes, int mask)) {
  return answer_errno([&]() -> Outcome<void> {
    Qp& qp = Qp::of(verbs);
    const auto wanted = attributes_of(*attributes, mask);
    if (!wanted) return wanted.error();
    const auto selected = transport::QpAttributeMask::of_bits(static_cast<std::uint32_t>(mask));
    const auto changed = qp.owner().command([&](driver::Engine& engine, Time now) {
      return engine.modify_qp(qp.pair(), *wanted, selected, now);
    });
    if (changed && (mask & IBV_QP_STATE) != 0) verbs->state = attributes->qp_state;
    return changed;
  });
}

VERB("IBVERBS_1.1", int, ibv_query_qp,
     (ibv_qp * verbs, ibv_qp_attr* attributes, int, ibv_qp_init_attr* initial)) {
  return answer_errno([&]() -> Outcome<void> {
    Qp& qp = Qp::of(verbs);
    const auto now_has = qp.owner().device().look(
        [&](const driver::Engine& engine) { return engine.query_qp(qp.pair()); });
    *attributes = as_verbs(now_has);
    attributes->cap = as_verbs(qp.pair().capacity());
    if (initial != nullptr) qp.report(*initial);
    verbs->state = attributes->qp_state;
    return {};
  });
}

VERB("IBVERBS_1.1", int, ibv_destroy_qp, (ibv_qp * verbs)) {
  return answer_errno([&]() -> Outcome<void> {
    Qp& qp = Qp::of(verbs);
    const auto gone = qp.destroy();
    if (gone) delete &qp;
    return gone;
  });
}

// Nothing is promised about the order in which bytes of a message appear.
VERB("IBVERBS_1.14", int, ibv_query_qp_data_in_order, (ibv_qp*, ibv_wr_opcode, std::uint32_t)) {
  return 0;
}

}  // namespace softhca::abi
