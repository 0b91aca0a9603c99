#include "abi/rdmacm/qp_terms.h"

#include <cerrno>

#include "abi/gid.h"

namespace softhca::abi {
namespace {

bool asks(ibv_qp_type type) { return type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND; }
bool answers(ibv_qp_type type) { return type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV; }

int describe_init(ibv_qp_attr& to, const QpSide& side, const cm::Terms* terms) {
  to.pkey_index = 0;
  to.port_num = side.port;
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (side.type == IBV_QPT_UD) {
    to.qkey = RDMA_UDP_QKEY;
    return mask | IBV_QP_QKEY;
  }
  to.qp_access_flags = 0;
  if (terms != nullptr) {
    to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (terms->responder_resources != 0)
      to.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  }
  return mask | IBV_QP_ACCESS_FLAGS;
}

int describe_rtr(ibv_qp_attr& to, const QpSide& side, const cm::Terms& terms) {
  to.ah_attr = address_of_path(terms.path, side);
  to.path_mtu = static_cast<ibv_mtu>(terms.path.mtu);
  to.dest_qp_num = terms.remote_qpn.value;
  to.rq_psn = terms.local_psn.value;  // what this side has told the peer to begin with
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (answers(side.type)) {
    to.max_dest_rd_atomic = terms.responder_resources;
    to.min_rnr_timer = 0;
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  return mask;
}

int describe_rts(ibv_qp_attr& to, const QpSide& side, const cm::Terms& terms) {
  to.sq_psn = terms.remote_psn.value;
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (asks(side.type)) {
    to.retry_cnt = terms.retry_count;
    to.rnr_retry = terms.rnr_retry_count;
    to.max_rd_atomic = terms.initiator_depth;
    mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  if (asks(side.type) || answers(side.type)) {
    to.timeout = side.ack_timeout.value_or(terms.path.ack_timeout);
    mask |= IBV_QP_TIMEOUT;
  }
  return mask;
}

}  // namespace

ibv_ah_attr address_of_path(const cm::Path& path, const QpSide& side) {
  ibv_ah_attr to{};
  to.is_global = 1;
  to.grh.dgid = as_verbs(path.remote);
  to.grh.sgid_index = side.gid_index;
  to.grh.flow_label = path.flow_label;
  to.grh.hop_limit = path.hop_limit;
  to.grh.traffic_class = path.traffic_class;
  to.sl = path.service_level;
  to.port_num = side.port;
  return to;
}

Outcome<int> describe_state(ibv_qp_attr& attributes, const QpSide& side, const cm::Terms* terms) {
  const bool is_datagram = side.type == IBV_QPT_UD;
  switch (attributes.qp_state) {
    case IBV_QPS_INIT:
      return describe_init(attributes, side, terms);
    case IBV_QPS_RTR:
      if (is_datagram) return int{IBV_QP_STATE};
      if (terms == nullptr) return Errno{EINVAL};
      return describe_rtr(attributes, side, *terms);
    case IBV_QPS_RTS:
      attributes.sq_psn = 0;
      if (is_datagram) return IBV_QP_STATE | IBV_QP_SQ_PSN;
      if (terms == nullptr) return Errno{EINVAL};
      return describe_rts(attributes, side, *terms);
    default:
      return Errno{EINVAL};
  }
}

}  // namespace softhca::abi
