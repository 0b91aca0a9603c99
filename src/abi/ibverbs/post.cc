// Posting: the way of a work request from a program's list into a ring.
#include <algorithm>
#include <array>
#include <span>
#include <type_traits>

#include "abi/entry.h"
#include "abi/ibverbs/ah.h"
#include "abi/ibverbs/qp.h"
#include "abi/ibverbs/window.h"
#include "abi/qp_attributes.h"
#include "abi/sge_copy.h"
#include "base/bytes.h"

namespace softhca::abi {
namespace {

using transport::WorkOpcode;
static_assert(IBV_WR_RDMA_WRITE == static_cast<int>(WorkOpcode::Write));
static_assert(IBV_WR_RDMA_WRITE_WITH_IMM == static_cast<int>(WorkOpcode::WriteImm));
static_assert(IBV_WR_SEND == static_cast<int>(WorkOpcode::Send));
static_assert(IBV_WR_SEND_WITH_IMM == static_cast<int>(WorkOpcode::SendImm));
static_assert(IBV_WR_RDMA_READ == static_cast<int>(WorkOpcode::Read));
static_assert(IBV_WR_ATOMIC_CMP_AND_SWP == static_cast<int>(WorkOpcode::CompareSwap));
static_assert(IBV_WR_ATOMIC_FETCH_AND_ADD == static_cast<int>(WorkOpcode::FetchAdd));
static_assert(IBV_WR_LOCAL_INV == static_cast<int>(WorkOpcode::LocalInvalidate));
static_assert(IBV_WR_BIND_MW == static_cast<int>(WorkOpcode::BindWindow));
static_assert(IBV_WR_SEND_WITH_INV == static_cast<int>(WorkOpcode::SendInvalidate));
static_assert(IBV_WR_ATOMIC_WRITE == static_cast<int>(WorkOpcode::AtomicWrite));
static_assert(IBV_SEND_INLINE == static_cast<int>(driver::SendFlag::Inline));

constexpr unsigned kKnownFlags =
    IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

bool carries_immediate(WorkOpcode opcode) {
  return opcode == WorkOpcode::SendImm || opcode == WorkOpcode::WriteImm;
}

// The operands are numbers of this host: what it adds, it finds added in memory.
void take_atomic(const ibv_send_wr& wr, driver::SendRequest& request) {
  const auto& atomic = wr.wr.atomic;
  request.remote_address = atomic.remote_addr;
  request.rkey = {atomic.rkey};
  const bool is_swap = request.opcode == WorkOpcode::CompareSwap;
  request.swap_or_add = is_swap ? atomic.swap : atomic.compare_add;
  if (is_swap) request.compare = atomic.compare_add;
}

// Work on keys names no memory of its own: whatever stands in the list is not looked at.
Outcome<void> take_local(const ibv_send_wr& wr, driver::SendRequest& request) {
  request.sges = {};
  if (request.opcode == WorkOpcode::LocalInvalidate) {
    request.rkey = {wr.invalidate_rkey};
    return {};
  }
  // Windows of type 1 are bound by ibv_bind_mw, which knows their keys.
  const ibv_mw* const mw = wr.bind_mw.mw;
  if (mw == nullptr || mw->type != IBV_MW_TYPE_2) return Errno{EINVAL};
  request.bind = bind_of(*mw, wr.bind_mw.rkey, wr.bind_mw.bind_info);
  return {};
}

// Fills in place: a request that is copied right after it was written waits for those writes.
Outcome<void> take(const ibv_send_wr& wr, transport::QpType type, SgeCopy& sges,
                   driver::SendRequest& request) {
  const std::uint32_t opcode = number_of(wr.opcode);
  if (wr.num_sge < 0) return Errno{EINVAL};
  if (opcode > IBV_WR_ATOMIC_WRITE || !transport::is_offered(type, static_cast<WorkOpcode>(opcode)))
    return Errno{EOPNOTSUPP};
  request.wr_id = wr.wr_id;
  request.opcode = static_cast<WorkOpcode>(opcode);
  request.flags =
      driver::SendFlags::of_bits(static_cast<std::uint8_t>(wr.send_flags & kKnownFlags));
  request.sges = sges.of(wr.sg_list, wr.num_sge);
  if (carries_immediate(request.opcode)) request.immediate = byte_swapped(wr.imm_data);
  if (type == transport::QpType::Ud) {
    if (wr.wr.ud.ah == nullptr) return Errno{EINVAL};
    request.target = Ah::of(wr.wr.ud.ah).target(wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey);
    return {};
  }
  if (type == transport::QpType::XrcSend) request.xrc_srqn = wr.qp_type.xrc.remote_srqn;
  if (transport::is_local(request.opcode)) return take_local(wr, request);
  if (transport::is_atomic(request.opcode)) {
    take_atomic(wr, request);
  } else if (request.opcode == WorkOpcode::SendInvalidate) {
    request.rkey = {wr.invalidate_rkey};
  } else {
    request.remote_address = wr.wr.rdma.remote_addr;
    request.rkey = {wr.wr.rdma.rkey};
  }
  return {};
}

template <class Target>
Outcome<void> take(const ibv_send_wr& wr, const Target& pair, SgeCopy& sges,
                   driver::SendRequest& request) {
  return take(wr, pair.type(), sges, request);
}
template <class Target>
Outcome<void> take(const ibv_recv_wr& wr, const Target&, SgeCopy& sges,
                   driver::ReceiveRequest& request) {
  if (wr.num_sge < 0) return Errno{EINVAL};
  request = {.wr_id = wr.wr_id, .sges = sges.of(wr.sg_list, wr.num_sge)};
  return {};
}

auto post(driver::Engine& engine, driver::QueuePair& pair, const driver::SendRequest& request,
          bool more, Time now) {
  return engine.post_send(pair, request, more, now);
}
template <class Target>
auto post(driver::Engine& engine, Target& queue, const driver::ReceiveRequest& request, bool more,
          Time now) {
  return engine.post_receive(queue, request, more, now);
}
void ring(driver::Engine& engine, driver::QueuePair& pair, const ibv_send_wr*, Time now) {
  engine.ring_send_doorbell(pair, now);
}
template <class Target>
void ring(driver::Engine& engine, Target& queue, const ibv_recv_wr*, Time now) {
  engine.ring_receive_doorbell(queue, now);
}

// Posts from `next` on, which is left at the first one that was refused.
template <class Target, class WorkRequest>
Outcome<void> post_list(driver::Engine& engine, Target& pair, WorkRequest*& next, Time now) {
  using Request = std::conditional_t<std::is_same_v<WorkRequest, ibv_send_wr>, driver::SendRequest,
                                     driver::ReceiveRequest>;
  SgeCopy sges;
  for (const WorkRequest* const first = next; next != nullptr; next = next->next) {
    Request request;
    Outcome<void> posted = take(*next, pair, sges, request);
    if (posted) posted = outcome_of(post(engine, pair, request, next->next != nullptr, now));
    if (posted) continue;
    if (next != first) ring(engine, pair, next, now);  // those before it stay posted
    return posted;
  }
  return {};
}

template <class Target, class WorkRequest>
int post_to(Context& owner, Target& target, WorkRequest* next, WorkRequest** bad) {
  const int code = answer_errno([&] {
    const auto call = [&](driver::Engine& engine, Time now) {
      return post_list(engine, target, next, now);
    };
    return std::is_same_v<WorkRequest, ibv_send_wr> ? owner.post(call) : owner.command(call);
  });
  if (code != 0 && bad != nullptr) *bad = next;
  return code;
}

}  // namespace

int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) noexcept {
  return post_to(Qp::of(qp).owner(), Qp::of(qp).pair(), list, bad);
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) noexcept {
  return post_to(Srq::of(srq).owner(), Srq::of(srq).queue(), list, bad);
}

int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) noexcept {
  return post_to(Qp::of(qp).owner(), Qp::of(qp).pair(), list, bad);
}

int post_receives(Context& owner, driver::QueuePair& pair, ibv_recv_wr* list,
                  ibv_recv_wr** bad) noexcept {
  return post_to(owner, pair, list, bad);
}

}  // namespace softhca::abi
