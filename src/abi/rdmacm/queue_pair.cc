#include "abi/rdmacm/queue_pair.h"

#include <rdma/rdma_verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "abi/entry.h"
#include "abi/rdmacm/tell.h"

namespace softhca::abi {
namespace {

Outcome<void> modify(Id& id, ibv_qp_state state, const cm::Terms* terms) {
  ibv_qp_attr attributes{};
  attributes.qp_state = state;
  const auto mask = describe_state(attributes, id.qp_side(), terms);
  if (!mask) return mask.error();
  const int code = ibv_modify_qp(id.qp, &attributes, *mask);
  if (code != 0) return Errno{code};
  return {};
}

// One of datagrams is ready at once; one that will be connected takes receives.
Outcome<void> begin(Id& id) {
  if (const auto init = modify(id, IBV_QPS_INIT, nullptr); !init || !id.is_datagram()) return init;
  if (const auto rtr = modify(id, IBV_QPS_RTR, nullptr); !rtr) return rtr;
  return modify(id, IBV_QPS_RTS, nullptr);
}

Outcome<void> create_queue(Id& id, std::uint32_t entries, ibv_comp_channel*& channel, ibv_cq*& cq) {
  channel = ibv_create_comp_channel(id.verbs);
  if (channel == nullptr) return Errno{errno};
  cq = ibv_create_cq(id.verbs, static_cast<int>(std::max(entries, 1u)),
                     static_cast<rdma_cm_id*>(&id), channel, 0);
  if (cq == nullptr) return Errno{errno};
  return {};
}

void destroy_queue(ibv_comp_channel*& channel, ibv_cq*& cq) {
  if (cq != nullptr) ibv_destroy_cq(cq);
  if (channel != nullptr) ibv_destroy_comp_channel(channel);
  cq = nullptr;
  channel = nullptr;
}

}  // namespace

Outcome<void> make_ready(Id& id, const cm::Terms& terms) {
  if (id.qp == nullptr) return {};
  // Once more to INIT: only now it is known what the peer may do.
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS})
    if (const auto moved = modify(id, state, &terms); !moved) return moved;
  return {};
}

Outcome<void> stop(Id& id) {
  if (id.qp == nullptr) return {};
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  const int code = ibv_modify_qp(id.qp, &attributes, IBV_QP_STATE);
  if (code != 0) return Errno{code};
  return {};
}

namespace {

// Those of the queue pair.
void destroy_queues(Id& id) {
  destroy_queue(id.send_cq_channel, id.send_cq);
  if (!id.srq_has_queue) destroy_queue(id.recv_cq_channel, id.recv_cq);
}

// Fills in what the program left to the id.
Outcome<void> complete_wish(Id& id, ibv_qp_init_attr_ex& wanted) {
  const bool is_target = wanted.qp_type == IBV_QPT_XRC_RECV;
  if ((wanted.comp_mask & IBV_QP_INIT_ATTR_PD) == 0 && !is_target) {
    wanted.pd = id.pd;
    wanted.comp_mask |= IBV_QP_INIT_ATTR_PD;
  }
  if (is_target && (wanted.comp_mask & IBV_QP_INIT_ATTR_XRCD) == 0) {
    wanted.xrcd = id.device->xrc_domain();
    if (wanted.xrcd == nullptr) return Errno{errno};
    wanted.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
  }
  if (is_target) return {};
  if (wanted.pd == nullptr || wanted.pd->context != id.verbs)
    return refuse("rdma_create_qp", {.id = trace::ReasonId::DeviceDiffers});
  const bool receives = wanted.qp_type != IBV_QPT_XRC_SEND;
  if (wanted.srq == nullptr && receives) wanted.srq = id.srq;
  if (wanted.send_cq == nullptr) {
    const auto made = create_queue(id, wanted.cap.max_send_wr, id.send_cq_channel, id.send_cq);
    if (!made) return made;
    wanted.send_cq = id.send_cq;
  }
  if (wanted.recv_cq == nullptr && receives) {
    const auto made = create_queue(id, wanted.cap.max_recv_wr, id.recv_cq_channel, id.recv_cq);
    if (!made) return made;
    wanted.recv_cq = id.recv_cq;
  }
  return {};
}

Outcome<void> create(Id& id, ibv_qp_init_attr_ex& wanted) {
  if (const auto whole = complete_wish(id, wanted); !whole) return whole;
  id.qp = ibv_create_qp_ex(id.verbs, &wanted);
  if (id.qp == nullptr) return Errno{errno};
  if (wanted.qp_type != IBV_QPT_XRC_RECV) id.pd = wanted.pd;
  const auto begun = begin(id);
  if (begun) return {};
  ibv_destroy_qp(id.qp);
  id.qp = nullptr;
  return begun;
}

}  // namespace

Outcome<void> create_qp(Id& id, ibv_qp_init_attr_ex& wanted) {
  if (id.qp != nullptr || id.device == nullptr)
    return wrong_turn("rdma_create_qp", id.qp != nullptr ? " The id has a queue pair."
                                                         : " The id is bound to no device yet.");
  const ibv_qp_init_attr_ex asked = wanted;
  const auto created = create(id, wanted);
  if (created) return created;
  destroy_queues(id);
  wanted = asked;  // the program may try again
  return created;
}

Outcome<void> create_qp(Id& id, ibv_pd* domain, ibv_qp_init_attr& wanted) {
  ibv_qp_init_attr_ex extended{};
  // The extended structure goes on where the other one ends, in its padding.
  constexpr std::size_t kShared = offsetof(ibv_qp_init_attr_ex, comp_mask);
  std::memcpy(&extended, &wanted, kShared);
  if (domain != nullptr) {
    extended.pd = domain;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  }
  const auto created = create_qp(id, extended);
  std::memcpy(&wanted, &extended, kShared);
  return created;
}

VERB("RDMACM_1.0", int, rdma_create_qp,
     (rdma_cm_id * verbs, ibv_pd* pd, ibv_qp_init_attr* wanted)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    const auto created = create_qp(**id, pd, *wanted);
    if (!created) return created.error();
    return 0;
  });
}

VERB("RDMACM_1.0", int, rdma_create_qp_ex, (rdma_cm_id * verbs, ibv_qp_init_attr_ex* wanted)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    const auto created = create_qp(**id, *wanted);
    if (!created) return created.error();
    return 0;
  });
}

void destroy_qp(Id& id) {
  if (id.qp == nullptr) return;
  for (Membership& one : id.memberships) one.attached = nullptr;
  ibv_destroy_qp(id.qp);
  id.qp = nullptr;
  destroy_queues(id);
  id.pd = id.device->domain();  // the program's may go
}

VERB("RDMACM_1.0", void, rdma_destroy_qp, (rdma_cm_id * id)) {
  if (Id* const known = live(id)) destroy_qp(*known);
}

VERB("RDMACM_1.2", int, rdma_init_qp_attr,
     (rdma_cm_id * verbs, ibv_qp_attr* attributes, int* mask)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto known = usable(verbs);
    if (!known) return known.error();
    Id& id = **known;
    if (attributes == nullptr || mask == nullptr) return Errno{EINVAL};
    if (id.device == nullptr)
      return wrong_turn("rdma_init_qp_attr", " The id is bound to no device yet.");
    const auto terms = id.terms_now();
    const auto described = describe_state(*attributes, id.qp_side(), terms ? &*terms : nullptr);
    if (!described) return wrong_turn("rdma_init_qp_attr");
    *mask = *described;
    return 0;
  });
}

// Shared receive queues.

namespace {

void give_back_queue_of_srq(Id& id) {
  if (id.srq_has_queue) destroy_queue(id.recv_cq_channel, id.recv_cq);
  id.srq_has_queue = false;
}

Outcome<void> complete_wish(Id& id, ibv_srq_init_attr_ex& wanted) {
  if ((wanted.comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0) {
    wanted.pd = id.pd;
    wanted.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
  }
  const bool is_xrc =
      (wanted.comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 && wanted.srq_type == IBV_SRQT_XRC;
  if (is_xrc && (wanted.comp_mask & IBV_SRQ_INIT_ATTR_XRCD) == 0) {
    wanted.xrcd = id.device->xrc_domain();
    if (wanted.xrcd == nullptr) return Errno{errno};
    wanted.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
  }
  if (is_xrc && (wanted.comp_mask & IBV_SRQ_INIT_ATTR_CQ) == 0) {
    id.srq_has_queue = true;
    const auto made = create_queue(id, wanted.attr.max_wr, id.recv_cq_channel, id.recv_cq);
    if (!made) return made;
    wanted.cq = id.recv_cq;
    wanted.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
  }
  return {};
}

Outcome<void> create_srq(Id& id, ibv_srq_init_attr_ex& wanted) {
  if (id.srq != nullptr || id.device == nullptr) return wrong_turn("rdma_create_srq");
  const ibv_srq_init_attr_ex asked = wanted;
  auto outcome = complete_wish(id, wanted);
  if (outcome) id.srq = ibv_create_srq_ex(id.verbs, &wanted);
  if (outcome && id.srq == nullptr) outcome = Errno{errno};
  if (outcome) {
    id.pd = wanted.pd;
  } else {
    give_back_queue_of_srq(id);
    wanted = asked;
  }
  return outcome;
}

}  // namespace

VERB("RDMACM_1.0", int, rdma_create_srq_ex, (rdma_cm_id * verbs, ibv_srq_init_attr_ex* wanted)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    const auto created = create_srq(**id, *wanted);
    if (!created) return created.error();
    return 0;
  });
}

VERB("RDMACM_1.0", int, rdma_create_srq,
     (rdma_cm_id * verbs, ibv_pd* pd, ibv_srq_init_attr* wanted)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    ibv_srq_init_attr_ex extended{};
    constexpr std::size_t kShared = offsetof(ibv_srq_init_attr_ex, comp_mask);
    std::memcpy(&extended, wanted, kShared);
    extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
    extended.srq_type = (*id)->qp_type == IBV_QPT_XRC_RECV ? IBV_SRQT_XRC : IBV_SRQT_BASIC;
    if (pd != nullptr) {
      extended.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
      extended.pd = pd;
    }
    const auto created = create_srq(**id, extended);
    if (!created) return created.error();
    std::memcpy(wanted, &extended, kShared);
    return 0;
  });
}

void destroy_srq(Id& id) {
  if (id.srq == nullptr) return;
  ibv_destroy_srq(id.srq);
  id.srq = nullptr;
  give_back_queue_of_srq(id);
}

VERB("RDMACM_1.0", void, rdma_destroy_srq, (rdma_cm_id * id)) {
  if (Id* const known = live(id)) destroy_srq(*known);
}

}  // namespace softhca::abi
