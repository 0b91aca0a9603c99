#include "abi/ibverbs/srq.h"

#include "abi/entry.h"
#include "abi/qp_attributes.h"

namespace softhca::abi {

Srq::Srq(Pd& domain, const Request& request)
    : ibv_srq{}, xrcd_(request.xrcd), async_events_(mutex, cond, events_completed) {
  context = domain.context;
  srq_context = request.srq_context;
  pd = &domain;
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&cond, nullptr);
  if (xrcd_ != nullptr) ++xrcd_->dependants;
}

Srq::~Srq() {
  owner().async_events().forget(async_events_);
  if (xrcd_ != nullptr) --xrcd_->dependants;
  if (owner().is_left_behind()) return;  // threads of the parent may seem to wait on these
  pthread_cond_destroy(&cond);
  pthread_mutex_destroy(&mutex);
}

Outcome<Srq*> Srq::create(Pd& domain, const Request& request, ibv_srq_attr& size) {
  if (request.xrcd != nullptr && request.xrcd->context != domain.context) return Errno{EINVAL};
  if (request.cq != nullptr && request.cq->context != domain.context) return Errno{EINVAL};
  std::unique_ptr<Srq> srq(new Srq(domain, request));
  const driver::Engine::SrqSpec spec{.pd = domain.number(),
                                     .xrcd = request.xrcd != nullptr ? request.xrcd->number() : 0,
                                     .cq = request.cq != nullptr ? request.cq->queue() : nullptr,
                                     .capacity = {.requests = size.max_wr, .sges = size.max_sge},
                                     .events = srq.get()};
  const auto queue = domain.owner().command(
      [&](driver::Engine& engine, Time now) { return engine.create_srq(spec, now); });
  if (!queue) return queue.error();
  srq->queue_ = *queue;
  srq->handle = srq->queue_->srqn();
  srq->owner().adopt(*srq);
  size.max_wr = srq->queue_->capacity().requests;
  size.max_sge = srq->queue_->capacity().sges;
  return srq.release();
}

Outcome<void> Srq::destroy() {
  const auto gone = owner().take_off(
      [&](driver::Engine& engine, Time now) { return engine.destroy_srq(*queue_, now); });
  if (!gone) return gone;
  owner().async_events().forget(async_events_);
  if (!owner().is_left_behind()) async_events_.wait();
  owner().release(*this);
  return {};
}

void Srq::abandon(driver::Engine& engine, Time now) {
  [[maybe_unused]] const auto gone = engine.destroy_srq(*queue_, now);
}

Outcome<void> Srq::modify(ibv_srq_attr& attributes, int mask) {
  if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0) return Errno{EINVAL};
  return owner().command([&](driver::Engine& engine, Time now) -> Outcome<void> {
    if ((mask & IBV_SRQ_MAX_WR) != 0) {
      const auto resized = outcome_of(engine.resize_srq(*queue_, attributes.max_wr, now));
      if (!resized) return resized;
      attributes.max_wr = queue_->capacity().requests;
    }
    if ((mask & IBV_SRQ_LIMIT) == 0) return {};
    return outcome_of(engine.arm_srq(*queue_, attributes.srq_limit, now));
  });
}

void Srq::srq_event(driver::AsyncEventType type, driver::SharedReceiveQueue&,
                    const trace::Reason&) {
  ibv_async_event event{};
  event.event_type = static_cast<ibv_event_type>(type);
  event.element.srq = this;
  owner().async_events().post(event, &async_events_);
}

VERB("IBVERBS_1.1", ibv_srq*, ibv_create_srq, (ibv_pd * pd, ibv_srq_init_attr* attributes)) {
  return answer_pointer([&]() -> Outcome<ibv_srq*> {
    const auto srq =
        Srq::create(Pd::of(pd), {.srq_context = attributes->srq_context}, attributes->attr);
    if (!srq) return srq.error();
    return *srq;
  });
}

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attributes) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_srq*> {
    constexpr std::uint32_t kXrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    const std::uint32_t mask = attributes->comp_mask;
    if ((mask & ~(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | kXrc)) != 0)
      return Errno{EOPNOTSUPP};
    std::uint32_t type = IBV_SRQT_BASIC;
    if ((mask & IBV_SRQ_INIT_ATTR_TYPE) != 0) type = number_of(attributes->srq_type);
    if (type != IBV_SRQT_BASIC && type != IBV_SRQT_XRC) return Errno{EOPNOTSUPP};
    const bool is_xrc = type == IBV_SRQT_XRC;
    if ((mask & kXrc) != (is_xrc ? kXrc : 0)) return Errno{EINVAL};
    if ((mask & IBV_SRQ_INIT_ATTR_PD) == 0 || attributes->pd == nullptr ||
        attributes->pd->context != context)
      return Errno{EINVAL};
    if (is_xrc && (attributes->xrcd == nullptr || attributes->cq == nullptr)) return Errno{EINVAL};
    const auto srq = Srq::create(Pd::of(attributes->pd),
                                 {.srq_context = attributes->srq_context,
                                  .xrcd = is_xrc ? &Xrcd::of(attributes->xrcd) : nullptr,
                                  .cq = is_xrc ? &Cq::of(attributes->cq) : nullptr},
                                 attributes->attr);
    if (!srq) return srq.error();
    return *srq;
  });
}

VERB("IBVERBS_1.1", int, ibv_modify_srq, (ibv_srq * srq, ibv_srq_attr* attributes, int mask)) {
  return answer_errno([&] { return Srq::of(srq).modify(*attributes, mask); });
}

VERB("IBVERBS_1.1", int, ibv_query_srq, (ibv_srq * verbs, ibv_srq_attr* attributes)) {
  return answer_errno([&]() -> Outcome<void> {
    Srq& srq = Srq::of(verbs);
    *attributes = srq.owner().device().look([&](const driver::Engine&) {
      const auto capacity = srq.queue().capacity();
      return ibv_srq_attr{capacity.requests, capacity.sges, srq.queue().limit()};
    });
    return {};
  });
}

VERB("IBVERBS_1.1", int, ibv_destroy_srq, (ibv_srq * verbs)) {
  return answer_errno([&]() -> Outcome<void> {
    Srq& srq = Srq::of(verbs);
    const auto gone = srq.destroy();
    if (gone) delete &srq;
    return gone;
  });
}

int get_srq_num(ibv_srq* srq, std::uint32_t* number) noexcept {
  *number = Srq::of(srq).queue().srqn();
  return 0;
}

}  // namespace softhca::abi
