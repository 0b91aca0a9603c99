// Between structures of the kernel's ABI and those of verbs; connection managers use them.
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include <cstring>

#include "abi/entry.h"

namespace softhca::abi {
namespace {

ibv_ah_attr from_kernel(const ib_uverbs_ah_attr& kernel) {
  ibv_ah_attr verbs{};
  std::memcpy(verbs.grh.dgid.raw, kernel.grh.dgid, sizeof verbs.grh.dgid.raw);
  verbs.grh.flow_label = kernel.grh.flow_label;
  verbs.grh.sgid_index = kernel.grh.sgid_index;
  verbs.grh.hop_limit = kernel.grh.hop_limit;
  verbs.grh.traffic_class = kernel.grh.traffic_class;
  verbs.dlid = kernel.dlid;
  verbs.sl = kernel.sl;
  verbs.src_path_bits = kernel.src_path_bits;
  verbs.static_rate = kernel.static_rate;
  verbs.is_global = kernel.is_global;
  verbs.port_num = kernel.port_num;
  return verbs;
}

// Members that have the same name and type on both sides.
template <class To, class From>
void copy_path(To& to, const From& from) {
  to.dlid = from.dlid;
  to.slid = from.slid;
  to.raw_traffic = static_cast<decltype(to.raw_traffic)>(from.raw_traffic);
  to.flow_label = from.flow_label;
  to.reversible = static_cast<decltype(to.reversible)>(from.reversible);
  to.mtu = static_cast<decltype(to.mtu)>(from.mtu);
  to.pkey = from.pkey;
  to.hop_limit = from.hop_limit;
  to.traffic_class = from.traffic_class;
  to.numb_path = from.numb_path;
  to.sl = from.sl;
  to.mtu_selector = from.mtu_selector;
  to.rate_selector = from.rate_selector;
  to.rate = from.rate;
  to.packet_life_time_selector = from.packet_life_time_selector;
  to.packet_life_time = from.packet_life_time;
  to.preference = from.preference;
}

}  // namespace

SOFTHCA_ENTRY("IBVERBS_1.1", void, ibv_copy_ah_attr_from_kern,
              (ibv_ah_attr * to, const ib_uverbs_ah_attr* from), noexcept) {
  *to = from_kernel(*from);
}

SOFTHCA_ENTRY("IBVERBS_1.0", void, ibv_copy_qp_attr_from_kern,
              (ibv_qp_attr * to, const ib_uverbs_qp_attr* from), noexcept) {
  *to = {};
  to->qp_state = static_cast<ibv_qp_state>(from->qp_state);
  to->cur_qp_state = static_cast<ibv_qp_state>(from->cur_qp_state);
  to->path_mtu = static_cast<ibv_mtu>(from->path_mtu);
  to->path_mig_state = static_cast<ibv_mig_state>(from->path_mig_state);
  to->qkey = from->qkey;
  to->rq_psn = from->rq_psn;
  to->sq_psn = from->sq_psn;
  to->dest_qp_num = from->dest_qp_num;
  to->qp_access_flags = from->qp_access_flags;
  to->cap.max_send_wr = from->max_send_wr;
  to->cap.max_recv_wr = from->max_recv_wr;
  to->cap.max_send_sge = from->max_send_sge;
  to->cap.max_recv_sge = from->max_recv_sge;
  to->cap.max_inline_data = from->max_inline_data;
  to->ah_attr = from_kernel(from->ah_attr);
  to->alt_ah_attr = from_kernel(from->alt_ah_attr);
  to->pkey_index = from->pkey_index;
  to->alt_pkey_index = from->alt_pkey_index;
  to->en_sqd_async_notify = from->en_sqd_async_notify;
  to->sq_draining = from->sq_draining;
  to->max_rd_atomic = from->max_rd_atomic;
  to->max_dest_rd_atomic = from->max_dest_rd_atomic;
  to->min_rnr_timer = from->min_rnr_timer;
  to->port_num = from->port_num;
  to->timeout = from->timeout;
  to->retry_cnt = from->retry_cnt;
  to->rnr_retry = from->rnr_retry;
  to->alt_port_num = from->alt_port_num;
  to->alt_timeout = from->alt_timeout;
}

SOFTHCA_ENTRY("IBVERBS_1.0", void, ibv_copy_path_rec_from_kern,
              (ibv_sa_path_rec * to, const ib_user_path_rec* from), noexcept) {
  std::memcpy(to->dgid.raw, from->dgid, sizeof to->dgid.raw);
  std::memcpy(to->sgid.raw, from->sgid, sizeof to->sgid.raw);
  copy_path(*to, *from);
}

SOFTHCA_ENTRY("IBVERBS_1.0", void, ibv_copy_path_rec_to_kern,
              (ib_user_path_rec * to, const ibv_sa_path_rec* from), noexcept) {
  std::memcpy(to->dgid, from->dgid.raw, sizeof to->dgid);
  std::memcpy(to->sgid, from->sgid.raw, sizeof to->sgid);
  copy_path(*to, *from);
}

}  // namespace softhca::abi
