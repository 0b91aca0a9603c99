#include "abi/ibverbs/qp.h"

#include "abi/entry.h"
#include "abi/gid.h"
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

// Leaves only those completion queues that a queue pair of its type has.
Outcome<void> check(const Qp::Home& home, ibv_qp_init_attr& wanted) {
  const std::uint32_t type = number_of(wanted.qp_type);
  switch (type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_UD:
    case IBV_QPT_RAW_PACKET:
      break;  // the engine says which services it offers
    case IBV_QPT_XRC_SEND:
      wanted.recv_cq = nullptr;
      break;
    case IBV_QPT_XRC_RECV:
      wanted.send_cq = wanted.recv_cq = nullptr;
      break;
    default:
      return Errno{EOPNOTSUPP};
  }
  if (type == IBV_QPT_XRC_RECV ? home.xrcd == nullptr : home.domain == nullptr)
    return Errno{EINVAL};
  const auto fits = [&](const auto* object, bool needed) {
    return object == nullptr ? !needed : object->context == home.context;
  };
  const bool sends = type != IBV_QPT_XRC_RECV;
  if (!fits(wanted.send_cq, sends) || !fits(wanted.recv_cq, sends && type != IBV_QPT_XRC_SEND) ||
      !fits(wanted.srq, false))
    return Errno{EINVAL};
  return {};
}

driver::CompletionQueue* queue_of(ibv_cq* cq) {
  return cq == nullptr ? nullptr : Cq::of(cq).queue();
}

}  // namespace

Qp::Qp(const Home& home, const ibv_qp_init_attr& wanted, RwqIndTable* table)
    : EventSubject(Context::of(home.context), known.qp_base.mutex, known.qp_base.cond,
                   known.qp_base.events_completed),
      domain_(home.domain),
      xrcd_(home.xrcd),
      table_(table),
      signal_all_(wanted.sq_sig_all != 0) {
  ibv_qp& qp = known.qp_base;
  qp.context = home.context;
  qp.qp_context = wanted.qp_context;
  qp.pd = home.domain;
  qp.srq = wanted.srq;
  qp.send_cq = wanted.send_cq;
  qp.recv_cq = wanted.recv_cq;
  qp.qp_type = wanted.qp_type;
  qp.state = IBV_QPS_RESET;
  fill_builder_slots(*this);
  if (table_ != nullptr) ++table_->queue_pairs;
  if (xrcd_ != nullptr) ++xrcd_->dependants;
}

Qp::~Qp() {
  if (table_ != nullptr) --table_->queue_pairs;
  if (xrcd_ != nullptr) --xrcd_->dependants;
}

Outcome<Qp*> Qp::create(const Home& asked, ibv_qp_init_attr& wanted, const ReceiveSpread* spread) {
  ibv_qp_init_attr has = wanted;
  if (const auto possible = check(asked, has); !possible) return possible.error();
  Home home = asked;
  if (number_of(wanted.qp_type) == IBV_QPT_XRC_RECV)
    home.domain = nullptr;
  else
    home.xrcd = nullptr;
  std::unique_ptr<Qp> qp(new Qp(home, has, spread != nullptr ? spread->table : nullptr));
  driver::Engine::QueuePairSpec spec{.pd = home.domain ? home.domain->number() : 0,
                                     .type = static_cast<transport::QpType>(wanted.qp_type),
                                     .send_cq = queue_of(has.send_cq),
                                     .receive_cq = queue_of(has.recv_cq),
                                     .srq = has.srq ? &Srq::of(has.srq).queue() : nullptr,
                                     .xrcd = home.xrcd ? home.xrcd->number() : 0,
                                     .capacity = capacity_of(wanted.cap),
                                     .signal_all = wanted.sq_sig_all != 0,
                                     .events = qp.get()};
  if (spread != nullptr) {
    for (Wq* wq : spread->table->queues()) spec.spread_over.push_back(&wq->pair());
    spec.spreading = spread->spreading;
  }
  if (const auto lent = qp->borrow(spec); !lent) return lent.error();
  const auto pair = qp->owner().command(
      [&](driver::Engine& engine, Time now) { return engine.create_qp(spec, now); });
  if (!pair) return pair.error();
  wanted.cap = as_verbs((*pair)->capacity());
  return qp.release()->adopted(**pair);
}

// Memory for its queues, where its parent domain has any to give.
Outcome<void> Qp::borrow(driver::Engine::QueuePairSpec& spec) {
  Pd* const domain = verbs().pd == nullptr ? nullptr : &Pd::of(verbs().pd);
  const auto needed = driver::Engine::ring_bytes(spec);
  auto send = LentMemory::from(domain, needed.send, LentFor::SendQueue);
  if (!send) return send.error();
  auto receive = LentMemory::from(domain, needed.receive, LentFor::ReceiveQueue);
  if (!receive) return receive.error();
  send_memory_ = std::move(*send);
  receive_memory_ = std::move(*receive);
  spec.lent = {send_memory_.bytes(), receive_memory_.bytes()};
  return {};
}

Outcome<Qp*> Qp::adopted(driver::QueuePair& pair) {
  pair_ = &pair;
  verbs().qp_num = verbs().handle = pair.qpn().value;
  owner().adopt(*this);
  return this;
}

Outcome<Qp*> Qp::open(Xrcd& xrcd, std::uint32_t qpn, void* qp_context) {
  ibv_qp_init_attr as_it_is{};
  as_it_is.qp_context = qp_context;
  as_it_is.qp_type = IBV_QPT_XRC_RECV;
  std::unique_ptr<Qp> qp(
      new Qp({.context = xrcd.context, .domain = nullptr, .xrcd = &xrcd}, as_it_is, nullptr));
  const auto pair =
      qp->owner().command([&](driver::Engine& engine, Time) -> Outcome<driver::QueuePair*> {
        driver::QueuePair* const found = engine.open_qp(xrcd.number(), {qpn}, qp.get());
        if (found == nullptr) return Errno{EINVAL};
        return found;
      });
  if (!pair) return pair.error();
  qp->verbs().state = static_cast<ibv_qp_state>((*pair)->state());
  return qp.release()->adopted(**pair);
}

Outcome<void> Qp::offer_builder(std::uint64_t operations) {
  using transport::QpType;
  const QpType type = pair_->type();
  const std::uint64_t offered = type == QpType::XrcReceive  ? 0
                                : type == QpType::Ud        ? SendBuilder::kDatagramOperations
                                : type == QpType::Uc        ? SendBuilder::kUnreliableOperations
                                : type == QpType::RawPacket ? SendBuilder::kRawOperations
                                                            : SendBuilder::kOperations;
  if ((operations & ~offered) != 0) return Errno{EOPNOTSUPP};
  builder_ = std::make_unique<SendBuilder>(*pair_, owner());
  return {};
}

Outcome<void> Qp::destroy() {
  const auto gone = owner().take_off(
      [&](driver::Engine& engine, Time now) { return engine.close_qp(*pair_, this, now); });
  if (gone) retire("qp", verbs().qp_num);
  return gone;
}

void Qp::abandon(driver::Engine& engine, Time now) {
  engine.detach_all(*pair_);
  [[maybe_unused]] const auto gone = engine.close_qp(*pair_, this, now);
}

void Qp::async_event(driver::AsyncEventType type, driver::QueuePair*, driver::CompletionQueue*,
                     const trace::Reason&) {
  raise(static_cast<ibv_event_type>(type), {.qp = &verbs()});
}

void Qp::report(ibv_qp_init_attr& attributes) {
  const ibv_qp& qp = known.qp_base;
  attributes = {};
  attributes.qp_context = qp.qp_context;
  attributes.send_cq = qp.send_cq;
  attributes.recv_cq = qp.recv_cq;
  attributes.srq = qp.srq;
  attributes.cap = as_verbs(pair_->capacity());
  attributes.qp_type = qp.qp_type;
  attributes.sq_sig_all = signal_all_ ? 1 : 0;
}

VERB("IBVERBS_1.1", ibv_qp*, ibv_create_qp, (ibv_pd * pd, ibv_qp_init_attr* attributes)) {
  return answer_pointer([&]() -> Outcome<ibv_qp*> {
    const auto qp =
        Qp::create({.context = pd->context, .domain = &Pd::of(pd), .xrcd = nullptr}, *attributes);
    if (!qp) return qp.error();
    return &(*qp)->verbs();
  });
}

namespace {

Outcome<ibv_qp*> create_spreading_qp(const ibv_qp_init_attr_ex& wanted) {
  if (wanted.pd == nullptr) return Errno{EINVAL};
  const auto spread = receive_spread(wanted);
  if (!spread) return spread.error();
  ibv_cq* const cq = spread->table->queues().front()->cq;
  ibv_qp_init_attr attributes{};
  attributes.qp_context = wanted.qp_context;
  attributes.send_cq = attributes.recv_cq = cq;
  attributes.qp_type = wanted.qp_type;
  const auto qp =
      Qp::create({.context = wanted.pd->context, .domain = &Pd::of(wanted.pd), .xrcd = nullptr},
                 attributes, &*spread);
  if (!qp) return qp.error();
  return &(*qp)->verbs();
}

}  // namespace

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attributes) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_qp*> {
    constexpr std::uint32_t kOffered = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD |
                                       IBV_QP_INIT_ATTR_CREATE_FLAGS |
                                       IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    constexpr std::uint32_t kSpreads = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    const std::uint32_t mask = attributes->comp_mask;
    if ((mask & ~(kOffered | kSpreads)) != 0) return Errno{EOPNOTSUPP};
    ibv_pd* const pd = (mask & IBV_QP_INIT_ATTR_PD) != 0 ? attributes->pd : nullptr;
    ibv_xrcd* const xrcd = (mask & IBV_QP_INIT_ATTR_XRCD) != 0 ? attributes->xrcd : nullptr;
    if ((pd != nullptr && pd->context != context) || (xrcd != nullptr && xrcd->context != context))
      return Errno{EINVAL};
    if ((mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && attributes->create_flags != 0)
      return Errno{EOPNOTSUPP};
    if ((mask & kSpreads) != 0) {
      // It sends nothing and is of no XRC domain.
      if ((mask & (IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_XRCD)) != 0)
        return Errno{EINVAL};
      return create_spreading_qp(*attributes);
    }
    // ibv_qp_init_attr_ex begins with an ibv_qp_init_attr.
    const auto qp = Qp::create({.context = context,
                                .domain = pd != nullptr ? &Pd::of(pd) : nullptr,
                                .xrcd = xrcd != nullptr ? &Xrcd::of(xrcd) : nullptr},
                               *reinterpret_cast<ibv_qp_init_attr*>(attributes));
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

ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attributes) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_qp*> {
    constexpr std::uint32_t kNeeded =
        IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    const std::uint32_t mask = attributes->comp_mask;
    if ((mask & ~(kNeeded | IBV_QP_OPEN_ATTR_CONTEXT)) != 0) return Errno{EOPNOTSUPP};
    if ((mask & kNeeded) != kNeeded || number_of(attributes->qp_type) != IBV_QPT_XRC_RECV ||
        attributes->xrcd == nullptr || attributes->xrcd->context != context)
      return Errno{EINVAL};
    const auto qp =
        Qp::open(Xrcd::of(attributes->xrcd), attributes->qp_num,
                 (mask & IBV_QP_OPEN_ATTR_CONTEXT) != 0 ? attributes->qp_context : nullptr);
    if (!qp) return qp.error();
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

// Enhancements that both ends of a connection agree on: this device has none to offer, and answers
// as devices without them do.
VERB("IBVERBS_1.10", int, ibv_query_ece, (ibv_qp*, ibv_ece* ece)) {
  *ece = {};
  return answer_errno([]() -> Outcome<void> { return Errno{EOPNOTSUPP}; });
}

VERB("IBVERBS_1.10", int, ibv_set_ece, (ibv_qp*, ibv_ece*)) {
  return answer_errno([]() -> Outcome<void> { return Errno{EOPNOTSUPP}; });
}

// Nothing is promised about the order in which bytes of a message appear.
VERB("IBVERBS_1.14", int, ibv_query_qp_data_in_order, (ibv_qp*, ibv_wr_opcode, std::uint32_t)) {
  return 0;
}

// Multicast groups. The LID means nothing on RoCE, where the GID is the group's address.
VERB("IBVERBS_1.1", int, ibv_attach_mcast, (ibv_qp * verbs, const ibv_gid* gid, std::uint16_t)) {
  return answer_errno([&] {
    Qp& qp = Qp::of(verbs);
    return qp.owner().command([&](driver::Engine& engine, Time) {
      return engine.attach_multicast(qp.pair(), gid_of(*gid));
    });
  });
}

VERB("IBVERBS_1.1", int, ibv_detach_mcast, (ibv_qp * verbs, const ibv_gid* gid, std::uint16_t)) {
  return answer_errno([&] {
    Qp& qp = Qp::of(verbs);
    return qp.owner().take_off([&](driver::Engine& engine, Time) {
      return engine.detach_multicast(qp.pair(), gid_of(*gid));
    });
  });
}

}  // namespace softhca::abi
