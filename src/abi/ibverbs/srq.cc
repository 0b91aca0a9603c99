#include "abi/ibverbs/srq.h"

#include "abi/entry.h"
#include "abi/qp_attributes.h"
#include "abi/sge_copy.h"

namespace softhca::abi {

Srq::Srq(Pd& domain, const Request& request)
    : ibv_srq{},
      EventSubject(domain.owner(), mutex, cond, events_completed),
      domain_(&domain),
      xrcd_(request.xrcd) {
  context = domain.context;
  srq_context = request.srq_context;
  pd = &domain;
  if (xrcd_ != nullptr) ++xrcd_->dependants;
}

Srq::~Srq() {
  if (xrcd_ != nullptr) --xrcd_->dependants;
}

Outcome<Srq*> Srq::create(Pd& domain, const Request& request, ibv_srq_attr& size) {
  if (request.xrcd != nullptr && request.xrcd->context != domain.context) return Errno{EINVAL};
  if (request.cq != nullptr && request.cq->context != domain.context) return Errno{EINVAL};
  std::unique_ptr<Srq> srq(new Srq(domain, request));
  driver::Engine::SrqSpec spec{
      .pd = domain.number(),
      .xrcd = request.xrcd != nullptr ? request.xrcd->number() : 0,
      .cq = request.cq != nullptr ? request.cq->queue() : nullptr,
      .capacity = {.requests = size.max_wr, .sges = size.max_sge, .tags = request.tags},
      .events = srq.get()};
  auto lent =
      LentMemory::from(&domain, driver::Engine::ring_bytes(spec), LentFor::SharedReceiveQueue);
  if (!lent) return lent.error();
  srq->memory_ = std::move(*lent);
  spec.lent = srq->memory_.bytes();
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
  if (gone) retire("srq", handle);
  return gone;
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
  raise(static_cast<ibv_event_type>(type), {.srq = this});
}

VERB("IBVERBS_1.1", ibv_srq*, ibv_create_srq, (ibv_pd * pd, ibv_srq_init_attr* attributes)) {
  return answer_pointer([&]() -> Outcome<ibv_srq*> {
    const auto srq =
        Srq::create(Pd::of(pd), {.srq_context = attributes->srq_context}, attributes->attr);
    if (!srq) return srq.error();
    return *srq;
  });
}

namespace {

// Which members of the attributes each kind of queue has, besides its type.
Outcome<std::uint32_t> members_of(std::uint32_t type) {
  constexpr std::uint32_t kBasic = IBV_SRQ_INIT_ATTR_PD;
  switch (type) {
    case IBV_SRQT_BASIC:
      return kBasic;
    case IBV_SRQT_XRC:
      return kBasic | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    case IBV_SRQT_TM:
      return kBasic | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
    default:
      return Errno{EOPNOTSUPP};
  }
}

}  // namespace

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attributes) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_srq*> {
    ibv_srq_init_attr_ex& wanted = *attributes;
    if (wanted.comp_mask >= IBV_SRQ_INIT_ATTR_RESERVED) return Errno{EOPNOTSUPP};
    std::uint32_t type = IBV_SRQT_BASIC;
    if ((wanted.comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0) type = number_of(wanted.srq_type);
    const auto members = members_of(type);
    if (!members) return members.error();
    const std::uint32_t given = wanted.comp_mask & ~std::uint32_t{IBV_SRQ_INIT_ATTR_TYPE};
    if (given != *members || wanted.pd == nullptr || wanted.pd->context != context)
      return Errno{EINVAL};
    Srq::Request request{.srq_context = wanted.srq_context};
    if ((given & IBV_SRQ_INIT_ATTR_CQ) != 0) {
      if (wanted.cq == nullptr) return Errno{EINVAL};
      request.cq = &Cq::of(wanted.cq);
    }
    if (type == IBV_SRQT_XRC) {
      if (wanted.xrcd == nullptr) return Errno{EINVAL};
      request.xrcd = &Xrcd::of(wanted.xrcd);
    }
    if (type == IBV_SRQT_TM) {
      const ibv_tm_cap& cap = wanted.tm_cap;
      if (cap.max_num_tags == 0 || cap.max_ops == 0 || cap.max_ops > nic::kMaxTagOperations)
        return Errno{EINVAL};
      request.tags = cap.max_num_tags;
    }
    const auto srq = Srq::create(Pd::of(wanted.pd), request, wanted.attr);
    if (!srq) return srq.error();
    return *srq;
  });
}

namespace {

Outcome<driver::TagRequest> tag_request(const ibv_ops_wr& wr, SgeCopy& sges) {
  constexpr int kFlags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC;
  if ((wr.flags & ~kFlags) != 0) return Errno{EINVAL};
  driver::TagRequest request{.wr_id = wr.wr_id,
                             .signaled = (wr.flags & IBV_OPS_SIGNALED) != 0,
                             .synchronizes = (wr.flags & IBV_OPS_TM_SYNC) != 0,
                             .unexpected_seen = wr.tm.unexpected_cnt,
                             .handle = wr.tm.handle};
  switch (number_of(wr.opcode)) {
    case IBV_WR_TAG_ADD:
      if (wr.tm.add.num_sge < 0) return Errno{EINVAL};
      request.operation = driver::CompletionOpcode::TagAdded;
      request.receive_wr_id = wr.tm.add.recv_wr_id;
      request.tag = wr.tm.add.tag;
      request.mask = wr.tm.add.mask;
      request.sges = sges.of(wr.tm.add.sg_list, wr.tm.add.num_sge);
      return request;
    case IBV_WR_TAG_DEL:
      request.operation = driver::CompletionOpcode::TagRemoved;
      return request;
    case IBV_WR_TAG_SYNC:
      request.operation = driver::CompletionOpcode::TagsSynchronized;
      request.synchronizes = true;
      return request;
    default:
      return Errno{EOPNOTSUPP};
  }
}

}  // namespace

int post_srq_ops(ibv_srq* srq, ibv_ops_wr* next, ibv_ops_wr** bad) noexcept {
  const int code = answer_errno([&] {
    return Srq::of(srq).owner().command([&](driver::Engine& engine, Time now) -> Outcome<void> {
      SgeCopy sges;
      for (; next != nullptr; next = next->next) {
        const auto request = tag_request(*next, sges);
        if (!request) return request.error();
        const auto handle = outcome_of(engine.post_tags(Srq::of(srq).queue(), *request, now));
        if (!handle) return handle.error();
        if (request->operation == driver::CompletionOpcode::TagAdded) next->tm.handle = *handle;
      }
      return {};
    });
  });
  if (code != 0 && bad != nullptr) *bad = next;
  return code;
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
