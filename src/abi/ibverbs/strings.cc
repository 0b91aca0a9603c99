// Names of enumerators and conversions of rates.
#include <algorithm>
#include <iterator>
#include <span>

#include "abi/entry.h"
#include "abi/qp_attributes.h"

namespace softhca::abi {
namespace {

struct Name {
  int number;
  const char* text;
};

const char* name_in(std::span<const Name> names, std::uint32_t number, const char* otherwise) {
  const auto row = std::ranges::find(names, static_cast<int>(number), &Name::number);
  return row == names.end() ? otherwise : row->text;
}

constexpr Name kStatuses[] = {
    {IBV_WC_SUCCESS, "success"},
    {IBV_WC_LOC_LEN_ERR, "local length error"},
    {IBV_WC_LOC_QP_OP_ERR, "local QP operation error"},
    {IBV_WC_LOC_EEC_OP_ERR, "local EE context operation error"},
    {IBV_WC_LOC_PROT_ERR, "local protection error"},
    {IBV_WC_WR_FLUSH_ERR, "Work Request Flushed Error"},
    {IBV_WC_MW_BIND_ERR, "memory management operation error"},
    {IBV_WC_BAD_RESP_ERR, "bad response error"},
    {IBV_WC_LOC_ACCESS_ERR, "local access error"},
    {IBV_WC_REM_INV_REQ_ERR, "remote invalid request error"},
    {IBV_WC_REM_ACCESS_ERR, "remote access error"},
    {IBV_WC_REM_OP_ERR, "remote operation error"},
    {IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded"},
    {IBV_WC_RNR_RETRY_EXC_ERR, "RNR retry counter exceeded"},
    {IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation error"},
    {IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request"},
    {IBV_WC_REM_ABORT_ERR, "aborted error"},
    {IBV_WC_INV_EECN_ERR, "invalid EE context number"},
    {IBV_WC_INV_EEC_STATE_ERR, "invalid EE context state"},
    {IBV_WC_FATAL_ERR, "fatal error"},
    {IBV_WC_RESP_TIMEOUT_ERR, "response timeout error"},
    {IBV_WC_GENERAL_ERR, "general error"},
    {IBV_WC_TM_ERR, "TM error"},
    {IBV_WC_TM_RNDV_INCOMPLETE, "TM software rendezvous"},
};

constexpr Name kNodeTypes[] = {
    {IBV_NODE_CA, "InfiniBand channel adapter"},
    {IBV_NODE_SWITCH, "InfiniBand switch"},
    {IBV_NODE_ROUTER, "InfiniBand router"},
    {IBV_NODE_RNIC, "iWARP NIC"},
    {IBV_NODE_USNIC, "usNIC"},
    {IBV_NODE_USNIC_UDP, "usNIC UDP"},
    {IBV_NODE_UNSPECIFIED, "unspecified"},
};

constexpr Name kPortStates[] = {
    {IBV_PORT_NOP, "no state change (NOP)"},
    {IBV_PORT_DOWN, "down"},
    {IBV_PORT_INIT, "init"},
    {IBV_PORT_ARMED, "armed"},
    {IBV_PORT_ACTIVE, "active"},
    {IBV_PORT_ACTIVE_DEFER, "active defer"},
};

constexpr Name kEvents[] = {
    {IBV_EVENT_CQ_ERR, "CQ error"},
    {IBV_EVENT_QP_FATAL, "local work queue catastrophic error"},
    {IBV_EVENT_QP_REQ_ERR, "invalid request local work queue error"},
    {IBV_EVENT_QP_ACCESS_ERR, "local access violation work queue error"},
    {IBV_EVENT_COMM_EST, "communication established"},
    {IBV_EVENT_SQ_DRAINED, "send queue drained"},
    {IBV_EVENT_PATH_MIG, "path migrated"},
    {IBV_EVENT_PATH_MIG_ERR, "path migration request error"},
    {IBV_EVENT_DEVICE_FATAL, "local catastrophic error"},
    {IBV_EVENT_PORT_ACTIVE, "port active"},
    {IBV_EVENT_PORT_ERR, "port error"},
    {IBV_EVENT_LID_CHANGE, "LID change"},
    {IBV_EVENT_PKEY_CHANGE, "P_Key change"},
    {IBV_EVENT_SM_CHANGE, "SM change"},
    {IBV_EVENT_SRQ_ERR, "SRQ catastrophic error"},
    {IBV_EVENT_SRQ_LIMIT_REACHED, "SRQ limit reached"},
    {IBV_EVENT_QP_LAST_WQE_REACHED, "last WQE reached"},
    {IBV_EVENT_CLIENT_REREGISTER, "client reregistration"},
    {IBV_EVENT_GID_CHANGE, "GID table change"},
    {IBV_EVENT_WQ_FATAL, "WQ fatal"},
};

constexpr Name kOpcodes[] = {
    {IBV_WR_RDMA_WRITE, "RDMA_WRITE"},
    {IBV_WR_RDMA_WRITE_WITH_IMM, "RDMA_WRITE_WITH_IMM"},
    {IBV_WR_SEND, "SEND"},
    {IBV_WR_SEND_WITH_IMM, "SEND_WITH_IMM"},
    {IBV_WR_RDMA_READ, "RDMA_READ"},
    {IBV_WR_ATOMIC_CMP_AND_SWP, "ATOMIC_CMP_AND_SWP"},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, "ATOMIC_FETCH_AND_ADD"},
    {IBV_WR_LOCAL_INV, "LOCAL_INV"},
    {IBV_WR_BIND_MW, "BIND_MW"},
    {IBV_WR_SEND_WITH_INV, "SEND_WITH_INV"},
    {IBV_WR_TSO, "TSO"},
};

// IBTA vol. 1, table 224 and later annexes. 64b/66b lanes carry more than their nominal rate.
struct Rate {
  ibv_rate number;
  int multiple;  // of 2.5 Gb/s; -1: none is defined
  int mbps;
};
constexpr Rate kRates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2'500},        {IBV_RATE_5_GBPS, 2, 5'000},
    {IBV_RATE_10_GBPS, 4, 10'000},        {IBV_RATE_20_GBPS, 8, 20'000},
    {IBV_RATE_30_GBPS, 12, 30'000},       {IBV_RATE_40_GBPS, 16, 40'000},
    {IBV_RATE_60_GBPS, 24, 60'000},       {IBV_RATE_80_GBPS, 32, 80'000},
    {IBV_RATE_120_GBPS, 48, 120'000},     {IBV_RATE_14_GBPS, -1, 14'062},
    {IBV_RATE_56_GBPS, -1, 56'250},       {IBV_RATE_112_GBPS, -1, 112'500},
    {IBV_RATE_168_GBPS, -1, 168'750},     {IBV_RATE_25_GBPS, -1, 25'781},
    {IBV_RATE_100_GBPS, -1, 103'125},     {IBV_RATE_200_GBPS, -1, 206'250},
    {IBV_RATE_300_GBPS, -1, 309'375},     {IBV_RATE_28_GBPS, 11, 28'125},
    {IBV_RATE_50_GBPS, 20, 53'125},       {IBV_RATE_400_GBPS, 160, 425'000},
    {IBV_RATE_600_GBPS, 240, 637'500},    {IBV_RATE_800_GBPS, 320, 850'000},
    {IBV_RATE_1200_GBPS, 480, 1'275'000},
};

template <class Member, class Value>
const Rate* rate_by(Member Rate::*member, Value value) {
  const auto* const row = std::ranges::find(kRates, static_cast<Member>(value), member);
  return row == std::end(kRates) ? nullptr : row;
}

}  // namespace

VERB("IBVERBS_1.1", const char*, ibv_wc_status_str, (ibv_wc_status status)) {
  return name_in(kStatuses, number_of(status), "unknown");
}

VERB("IBVERBS_1.1", const char*, ibv_node_type_str, (ibv_node_type type)) {
  return name_in(kNodeTypes, number_of(type), "unknown");
}

VERB("IBVERBS_1.1", const char*, ibv_port_state_str, (ibv_port_state state)) {
  return name_in(kPortStates, number_of(state), "invalid state");
}

VERB("IBVERBS_1.1", const char*, ibv_event_type_str, (ibv_event_type event)) {
  return name_in(kEvents, number_of(event), "unknown");
}

SOFTHCA_PRIVATE(const char*, ibv_wr_opcode_str, (ibv_wr_opcode opcode)) {
  return name_in(kOpcodes, number_of(opcode), "unknown");
}

VERB("IBVERBS_1.0", int, ibv_rate_to_mult, (ibv_rate rate)) {
  const Rate* const row = rate_by(&Rate::number, number_of(rate));
  return row == nullptr ? -1 : row->multiple;
}

VERB("IBVERBS_1.0", ibv_rate, mult_to_ibv_rate, (int multiple)) {
  const Rate* const row = multiple < 1 ? nullptr : rate_by(&Rate::multiple, multiple);
  return row == nullptr ? IBV_RATE_MAX : row->number;
}

VERB("IBVERBS_1.1", int, ibv_rate_to_mbps, (ibv_rate rate)) {
  const Rate* const row = rate_by(&Rate::number, number_of(rate));
  return row == nullptr ? -1 : row->mbps;
}

VERB("IBVERBS_1.1", ibv_rate, mbps_to_ibv_rate, (int mbps)) {
  const Rate* const row = rate_by(&Rate::mbps, mbps);
  return row == nullptr ? IBV_RATE_MAX : row->number;
}

}  // namespace softhca::abi
