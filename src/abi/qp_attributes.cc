#include "abi/qp_attributes.h"

#include <algorithm>
#include <bit>

#include "abi/gid.h"

namespace softhca::abi {
namespace {

constexpr int kKnownBits = (IBV_QP_DEST_QPN << 1) - 1;
static_assert(kKnownBits == 0x1fffff);

template <class Verbs, class Ours>
constexpr bool same(Verbs verbs, Ours ours) {
  return static_cast<std::uint32_t>(verbs) == static_cast<std::uint32_t>(ours);
}
using transport::QpAttribute;
using transport::QpState;
static_assert(same(IBV_QP_STATE, QpAttribute::State) &&
              same(IBV_QP_AV, QpAttribute::AddressVector));
static_assert(same(IBV_QP_DEST_QPN, QpAttribute::DestQpn) &&
              same(IBV_QP_CAP, QpAttribute::Capacity));
static_assert(same(IBV_QP_MAX_QP_RD_ATOMIC, QpAttribute::MaxReads));
static_assert(same(IBV_QP_SQ_PSN, QpAttribute::SqPsn) && same(IBV_QP_RQ_PSN, QpAttribute::RqPsn));
static_assert(same(IBV_QPS_RESET, QpState::Reset) && same(IBV_QPS_RTS, QpState::Rts));
static_assert(same(IBV_QPS_ERR, QpState::Error) && same(IBV_QPT_UD, transport::QpType::Ud));

bool is_state(std::uint32_t state) { return state <= IBV_QPS_ERR; }

}  // namespace

std::uint32_t mtu_bytes(std::uint32_t mtu) {
  return mtu < IBV_MTU_256 || mtu > IBV_MTU_4096 ? 0 : 128u << mtu;
}

ibv_mtu mtu_number(std::uint32_t bytes) {
  const int code = static_cast<int>(std::bit_width(bytes)) - 8;  // 256 is 1
  return static_cast<ibv_mtu>(std::clamp<int>(code, 0, IBV_MTU_4096));
}

transport::AddressVector address_of(const ibv_ah_attr& verbs) {
  transport::AddressVector address;
  address.is_global = verbs.is_global != 0;
  address.destination = gid_of(verbs.grh.dgid);
  address.source_gid_index = verbs.grh.sgid_index;
  address.flow_label = verbs.grh.flow_label;
  address.hop_limit = verbs.grh.hop_limit;
  address.traffic_class = verbs.grh.traffic_class;
  address.service_level = verbs.sl;
  address.port = verbs.port_num;
  return address;
}

ibv_ah_attr as_verbs(const transport::AddressVector& address) {
  ibv_ah_attr verbs{};
  verbs.is_global = address.is_global ? 1 : 0;
  verbs.grh.dgid = as_verbs(address.destination);
  verbs.grh.sgid_index = address.source_gid_index;
  verbs.grh.flow_label = address.flow_label;
  verbs.grh.hop_limit = address.hop_limit;
  verbs.grh.traffic_class = address.traffic_class;
  verbs.sl = address.service_level;
  verbs.port_num = address.port;
  return verbs;
}

Outcome<transport::QpAttributes> attributes_of(const ibv_qp_attr& verbs, int mask) {
  if ((mask & ~(kKnownBits | IBV_QP_RATE_LIMIT)) != 0) return Errno{EINVAL};
  const std::uint32_t state = number_of(verbs.qp_state);
  const std::uint32_t mtu = mtu_bytes(number_of(verbs.path_mtu));
  if ((mask & IBV_QP_STATE) != 0 && !is_state(state)) return Errno{EINVAL};
  if ((mask & IBV_QP_CUR_STATE) != 0 && !is_state(number_of(verbs.cur_qp_state)))
    return Errno{EINVAL};
  if ((mask & IBV_QP_PATH_MTU) != 0 && mtu == 0) return Errno{EINVAL};

  transport::QpAttributes attributes;
  if ((mask & IBV_QP_STATE) != 0) attributes.state = static_cast<QpState>(state);
  if ((mask & IBV_QP_CUR_STATE) != 0)
    attributes.believed = static_cast<QpState>(number_of(verbs.cur_qp_state));
  attributes.notify_drained = verbs.en_sqd_async_notify != 0;
  attributes.access_flags = verbs.qp_access_flags;
  attributes.pkey_index = verbs.pkey_index;
  attributes.port = verbs.port_num;
  attributes.qkey = verbs.qkey;
  attributes.address = address_of(verbs.ah_attr);
  attributes.path_mtu_bytes = mtu;
  attributes.timeout = verbs.timeout;
  attributes.retry_count = verbs.retry_cnt;
  attributes.rnr_retry = verbs.rnr_retry;
  attributes.rq_psn = {verbs.rq_psn & wire::kMask24};
  attributes.sq_psn = {verbs.sq_psn & wire::kMask24};
  attributes.max_reads = verbs.max_rd_atomic;
  attributes.max_dest_reads = verbs.max_dest_rd_atomic;
  attributes.min_rnr_timer = verbs.min_rnr_timer;
  attributes.dest_qpn = {verbs.dest_qp_num & wire::kMask24};
  attributes.path_mig_state = static_cast<std::uint8_t>(number_of(verbs.path_mig_state));
  return attributes;
}

ibv_qp_attr as_verbs(const transport::QpAttributes& attributes) {
  ibv_qp_attr verbs{};
  verbs.qp_state = verbs.cur_qp_state = static_cast<ibv_qp_state>(attributes.state);
  verbs.sq_draining = attributes.draining ? 1 : 0;
  verbs.path_mtu = mtu_number(attributes.path_mtu_bytes);
  verbs.path_mig_state = static_cast<ibv_mig_state>(attributes.path_mig_state);
  verbs.qkey = attributes.qkey;
  verbs.rq_psn = attributes.rq_psn.value;
  verbs.sq_psn = attributes.sq_psn.value;
  verbs.dest_qp_num = attributes.dest_qpn.value;
  verbs.qp_access_flags = attributes.access_flags;
  verbs.ah_attr = as_verbs(attributes.address);
  verbs.pkey_index = attributes.pkey_index;
  verbs.max_rd_atomic = attributes.max_reads;
  verbs.max_dest_rd_atomic = attributes.max_dest_reads;
  verbs.min_rnr_timer = attributes.min_rnr_timer;
  verbs.port_num = attributes.port;
  verbs.timeout = attributes.timeout;
  verbs.retry_cnt = attributes.retry_count;
  verbs.rnr_retry = attributes.rnr_retry;
  return verbs;
}

}  // namespace softhca::abi
