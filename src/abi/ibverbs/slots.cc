// Every function pointer that a program may call through a context.
#include "abi/entry.h"
#include "abi/ibverbs/device_memory.h"
#include "abi/ibverbs/flow.h"
#include "abi/ibverbs/qp.h"
#include "abi/ibverbs/queries.h"
#include "abi/ibverbs/window.h"
#include "abi/ibverbs/wq.h"

namespace softhca::abi {
namespace {

// A function of the slot's type that answers EOPNOTSUPP, as its kind of result does.
template <class Slot>
struct Refusal;
template <class Answer, class... Arguments>
struct Refusal<Answer (*)(Arguments...)> {
  static Answer call(Arguments...) noexcept {
    errno = EOPNOTSUPP;
    if constexpr (std::is_pointer_v<Answer>)
      return nullptr;
    else if constexpr (!std::is_void_v<Answer>)
      return EOPNOTSUPP;
  }
};

template <class... Slots>
void refuse(Slots&... slots) {
  ((slots = Refusal<Slots>::call), ...);
}

void fill(ibv_context_ops& ops) {
  ops._compat_query_device = entry_ibv_query_device;
  ops._compat_query_port = entry_ibv_query_port;
  ops.poll_cq = poll_cq;
  ops.req_notify_cq = req_notify_cq;
  ops.post_send = post_send;
  ops.post_recv = post_recv;
  ops.post_srq_recv = post_srq_recv;
  ops.alloc_mw = alloc_mw;
  ops.bind_mw = bind_mw;
  ops.dealloc_mw = dealloc_mw;
  // What became a symbol before 2007; programs built since do not look here.
  refuse(ops._compat_alloc_pd, ops._compat_dealloc_pd, ops._compat_reg_mr, ops._compat_rereg_mr,
         ops._compat_dereg_mr, ops._compat_create_cq, ops._compat_cq_event, ops._compat_resize_cq,
         ops._compat_destroy_cq, ops._compat_create_srq, ops._compat_modify_srq,
         ops._compat_query_srq, ops._compat_destroy_srq, ops._compat_create_qp,
         ops._compat_query_qp, ops._compat_modify_qp, ops._compat_destroy_qp, ops._compat_create_ah,
         ops._compat_destroy_ah, ops._compat_attach_mcast, ops._compat_detach_mcast,
         ops._compat_async_event);
}

void fill(verbs_context& slots) {
  slots.query_port = query_port;
  slots.query_device_ex = query_device_ex;
  slots.create_cq_ex = create_cq_ex;
  slots.modify_cq = modify_cq;
  slots.advise_mr = advise_mr;
  slots.alloc_parent_domain = alloc_parent_domain;
  slots.alloc_td = alloc_td;
  slots.dealloc_td = dealloc_td;
  slots.alloc_dm = alloc_dm;
  slots.free_dm = free_dm;
  slots.reg_dm_mr = reg_dm_mr;
  slots.query_rt_values = query_rt_values;
  slots.create_qp_ex = create_qp_ex;
  slots.open_qp = open_qp;
  slots.create_srq_ex = create_srq_ex;
  slots.get_srq_num = get_srq_num;
  slots.alloc_null_mr = alloc_null_mr;
  slots.post_srq_ops = post_srq_ops;
  slots.open_xrcd = open_xrcd;
  slots.close_xrcd = close_xrcd;
  slots.ibv_create_flow = create_flow;
  slots.ibv_destroy_flow = destroy_flow;
  slots.create_wq = create_wq;
  slots.modify_wq = modify_wq;
  slots.destroy_wq = destroy_wq;
  slots.create_rwq_ind_table = create_rwq_ind_table;
  slots.destroy_rwq_ind_table = destroy_rwq_ind_table;
  refuse(slots.read_counters);
  refuse(slots.attach_counters_point_flow);
  refuse(slots.create_counters);
  refuse(slots.destroy_counters);
  refuse(slots.modify_flow_action_esp);
  refuse(slots.destroy_flow_action);
  refuse(slots.create_flow_action_esp);
  refuse(slots.modify_qp_rate_limit);
  refuse(slots.ABI_placeholder1);
  refuse(slots.ABI_placeholder2);
}

}  // namespace

void fill_slots(ContextLayout& context) {
  fill(context.known.context.ops);
  fill(context.known);
}

}  // namespace softhca::abi
