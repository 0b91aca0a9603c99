// The states of a queue pair: every transition with every attribute, and what a query gives back.
#include <array>
#include <map>

#include "pair.h"

namespace conformance {
namespace {

constexpr std::array kStates = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
                                IBV_QPS_SQD,   IBV_QPS_SQE,  IBV_QPS_ERR};

struct Masks {
  int required = 0;
  int optional = 0;
};

// man ibv_modify_qp, the tables for RC and UD.
std::map<std::pair<ibv_qp_state, ibv_qp_state>, Masks> table_of(ibv_qp_type type) {
  constexpr int kLater = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
                         IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
  std::map<std::pair<ibv_qp_state, ibv_qp_state>, Masks> table;
  for (const ibv_qp_state from : kStates)
    table[{from, IBV_QPS_RESET}] = table[{from, IBV_QPS_ERR}] = {};
  if (type == IBV_QPT_UD) {
    constexpr int kUdLater = IBV_QP_CUR_STATE | IBV_QP_QKEY;
    table[{IBV_QPS_RESET, IBV_QPS_INIT}] = {IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0};
    table[{IBV_QPS_INIT, IBV_QPS_INIT}] = {0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY};
    table[{IBV_QPS_INIT, IBV_QPS_RTR}] = {0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY};
    table[{IBV_QPS_RTR, IBV_QPS_RTS}] = {IBV_QP_SQ_PSN, kUdLater};
    table[{IBV_QPS_RTS, IBV_QPS_RTS}] = {0, kUdLater};
    table[{IBV_QPS_RTS, IBV_QPS_SQD}] = {0, IBV_QP_EN_SQD_ASYNC_NOTIFY};
    table[{IBV_QPS_SQD, IBV_QPS_RTS}] = {0, kUdLater};
    table[{IBV_QPS_SQD, IBV_QPS_SQD}] = {0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY};
    return table;
  }
  table[{IBV_QPS_RESET, IBV_QPS_INIT}] = {IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0};
  table[{IBV_QPS_INIT, IBV_QPS_INIT}] = {0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS};
  table[{IBV_QPS_INIT, IBV_QPS_RTR}] = {IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                            IBV_QP_MIN_RNR_TIMER,
                                        IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX};
  table[{IBV_QPS_RTR, IBV_QPS_RTS}] = {IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                           IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
                                       kLater};
  table[{IBV_QPS_RTS, IBV_QPS_RTS}] = {0, kLater};
  table[{IBV_QPS_RTS, IBV_QPS_SQD}] = {0, IBV_QP_EN_SQD_ASYNC_NOTIFY};
  table[{IBV_QPS_SQD, IBV_QPS_RTS}] = {0, kLater};
  table[{IBV_QPS_SQD, IBV_QPS_SQD}] = {0, IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                              IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
                                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH |
                                              IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX |
                                              IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE};
  return table;
}

// An endpoint, a queue pair of a type, and a way to any state.
class Walker {
 public:
  explicit Walker(ibv_qp_type type) : type_(type), table_(table_of(type)) {}
  ~Walker() { EXPECT_TRUE(qp_ == nullptr || ibv_destroy_qp(qp_) == 0); }
  Walker(const Walker&) = delete;
  Walker& operator=(const Walker&) = delete;

  bool begin() {
    if (!end_.is_ready()) return false;
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = end_.cq;
    wanted.qp_type = type_;
    wanted.cap = {4, 4, 1, 1, 0};
    qp_ = ibv_create_qp(end_.pd, &wanted);
    return qp_ != nullptr;
  }

  int modify(ibv_qp_state to, int mask) {
    ibv_qp_attr attr{};
    attr.qp_state = to;
    attr.cur_qp_state = current();
    attr.port_num = 1;
    attr.qkey = 5;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = qp_->qp_num;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1;
    attr.timeout = 14;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = end_.gid();
    attr.ah_attr.grh.hop_limit = 64;
    attr.alt_ah_attr = attr.ah_attr;
    attr.alt_port_num = 1;
    attr.path_mig_state = IBV_MIG_MIGRATED;
    return ibv_modify_qp(qp_, &attr, mask | IBV_QP_STATE);
  }

  ibv_qp_state current() {
    ibv_qp_attr attr{};
    ibv_qp_init_attr initial{};
    EXPECT_EQ(ibv_query_qp(qp_, &attr, IBV_QP_STATE, &initial), 0);
    return attr.qp_state;
  }

  // SQE cannot be asked for; everything else can be reached.
  bool go_to(ibv_qp_state wanted) {
    if (modify(IBV_QPS_RESET, 0) != 0) return false;
    if (wanted == IBV_QPS_RESET) return true;
    if (wanted == IBV_QPS_ERR) return modify(IBV_QPS_ERR, 0) == 0;
    ibv_qp_state at = IBV_QPS_RESET;
    for (const ibv_qp_state next : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD}) {
      const auto required = table_.at({at, next}).required;
      if (modify(next, required) != 0) return false;
      at = next;
      if (at == wanted) return true;
    }
    return false;
  }

  const auto& table() const { return table_; }

 private:
  ibv_qp_type type_;
  std::map<std::pair<ibv_qp_state, ibv_qp_state>, Masks> table_;
  Endpoint end_;
  ibv_qp* qp_ = nullptr;
};

class StateTable : public ::testing::TestWithParam<ibv_qp_type> {};

// All pairs of states, each with exactly what is required, with one thing missing, and with one
// that does not belong there (CASES C25). What was refused changes nothing.
TEST_P(StateTable, IsThatOfTheManPage) {
  Walker walker(GetParam());
  ASSERT_TRUE(walker.begin());
  constexpr int kAll = IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY |
                       IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                       IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
                       IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                       IBV_QP_DEST_QPN | IBV_QP_EN_SQD_ASYNC_NOTIFY;
  for (const ibv_qp_state from : kStates) {
    if (from == IBV_QPS_SQE) continue;  // only a failure leads there
    for (const ibv_qp_state to : kStates) {
      SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
      ASSERT_TRUE(walker.go_to(from));
      const auto row = walker.table().find({from, to});
      if (row == walker.table().end()) {
        EXPECT_EQ(walker.modify(to, 0), EINVAL);
        EXPECT_EQ(walker.current(), from);
        continue;
      }
      const auto [required, optional] = row->second;
      for (int bit = 1; bit <= kAll; bit <<= 1) {
        if ((required & bit) != 0) {
          EXPECT_EQ(walker.modify(to, required & ~bit), EINVAL) << "without " << bit;
        } else if ((kAll & bit & ~optional) != 0 && to != IBV_QPS_RESET && to != IBV_QPS_ERR) {
          EXPECT_EQ(walker.modify(to, required | bit), EINVAL) << "with " << bit;
        }
        EXPECT_EQ(walker.current(), from);
      }
      EXPECT_EQ(walker.modify(to, required), 0);
      EXPECT_EQ(walker.current(), to);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Services, StateTable, ::testing::Values(IBV_QPT_RC, IBV_QPT_UD),
                         [](const auto& info) { return info.param == IBV_QPT_RC ? "Rc" : "Ud"; });

// CASES C69: what was set comes back, each attribute a number of its own.
TEST(StateQuery, GivesBackWhatWasSet) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ASSERT_EQ(end.to_init(IBV_ACCESS_REMOTE_READ), 0);
  ibv_qp_attr set{};
  set.qp_state = IBV_QPS_RTR;
  set.path_mtu = IBV_MTU_512;
  set.dest_qp_num = 0x123456;
  set.rq_psn = 0xabcdef;
  set.max_dest_rd_atomic = 3;
  set.min_rnr_timer = 17;
  set.ah_attr.is_global = 1;
  set.ah_attr.port_num = 1;
  set.ah_attr.grh.dgid = end.gid();
  set.ah_attr.grh.hop_limit = 33;
  set.ah_attr.grh.traffic_class = 0x68;
  ASSERT_EQ(ibv_modify_qp(end.qp, &set,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
  set.qp_state = IBV_QPS_RTS;
  set.timeout = 9;
  set.retry_cnt = 5;
  set.rnr_retry = 6;
  set.sq_psn = 0x13579b;
  set.max_rd_atomic = 2;
  ASSERT_EQ(ibv_modify_qp(end.qp, &set,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
            0);
  const auto check = [&](ibv_qp_state state) {
    ibv_qp_attr got{};
    ibv_qp_init_attr initial{};
    ASSERT_EQ(ibv_query_qp(end.qp, &got, ~0, &initial), 0);
    EXPECT_EQ(got.qp_state, state);
    EXPECT_EQ(got.cur_qp_state, state);
    EXPECT_EQ(got.qp_access_flags, unsigned{IBV_ACCESS_REMOTE_READ});
    EXPECT_EQ(got.path_mtu, IBV_MTU_512);
    EXPECT_EQ(got.dest_qp_num, 0x123456u);
    EXPECT_EQ(got.rq_psn, 0xabcdefu);
    EXPECT_EQ(got.sq_psn, 0x13579bu);
    EXPECT_EQ(got.max_dest_rd_atomic, 3);
    EXPECT_EQ(got.max_rd_atomic, 2);
    EXPECT_EQ(got.min_rnr_timer, 17);
    EXPECT_EQ(got.timeout, 9);
    EXPECT_EQ(got.retry_cnt, 5);
    EXPECT_EQ(got.rnr_retry, 6);
    EXPECT_EQ(got.port_num, 1);
    EXPECT_EQ(got.pkey_index, 0);
    EXPECT_EQ(got.path_mig_state, IBV_MIG_MIGRATED);
    EXPECT_EQ(got.ah_attr.grh.hop_limit, 33);
    EXPECT_EQ(got.ah_attr.grh.traffic_class, 0x68);
    EXPECT_EQ(std::memcmp(&got.ah_attr.grh.dgid, &set.ah_attr.grh.dgid, sizeof(ibv_gid)), 0);
    EXPECT_EQ(initial.qp_type, IBV_QPT_RC);
    EXPECT_EQ(initial.send_cq, end.cq);
    EXPECT_EQ(initial.recv_cq, end.cq);
  };
  check(IBV_QPS_RTS);
  ASSERT_EQ(post(end, {}), 0);  // to a queue pair that is not there: it retries
  check(IBV_QPS_RTS);
  ASSERT_EQ(move(end, IBV_QPS_ERR), 0);
  check(IBV_QPS_ERR);
  EXPECT_FALSE(drain(end).empty());
}

// IBV_QP_CUR_STATE is what the program believes; where it is wrong nothing happens.
TEST(StateQuery, AWrongBeliefAboutTheStateIsRefused) {
  Endpoint a, b;
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  verbs_test::connect(a, b);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.cur_qp_state = IBV_QPS_SQD;
  EXPECT_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
  attr.cur_qp_state = IBV_QPS_RTS;
  EXPECT_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), 0);
}

// IBTA 10.3.1.5: in SQD nothing new is started; what is posted waits for RTS.
TEST(StateSqd, HoldsBackWhatIsPosted) {
  Endpoint a, b;
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  verbs_test::connect(a, b);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  auto event = next_event(a.context);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_SQ_DRAINED);
  EXPECT_EQ(event->element.qp, a.qp);
  ibv_ack_async_event(&*event);
  ibv_qp_init_attr initial{};
  ASSERT_EQ(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &initial), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_SQD);
  EXPECT_EQ(attr.sq_draining, 0);
  ASSERT_EQ(post(a, write_to(b, 1)), 0);
  ASSERT_EQ(post_receive(a, 2), 0);
  ASSERT_EQ(post(b, {.id = 3}), 0);  // its receiving half goes on
  const auto received = a.wait();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->wr_id, 2u);
  EXPECT_TRUE(drain(a).empty());
  ASSERT_EQ(move(a, IBV_QPS_RTS), 0);
  const auto written = a.wait();
  ASSERT_TRUE(written);
  EXPECT_EQ(written->wr_id, 1u);
  EXPECT_EQ(written->status, IBV_WC_SUCCESS);
}

// CASES C75: programs written for InfiniBand leave these unset.
TEST(StateAddress, OneThatLeadsNowhereIsRefused) {
  struct Case {
    const char* what;
    void (*break_it)(ibv_ah_attr& address);
  };
  constexpr Case kCases[] = {
      {"no global route", [](ibv_ah_attr& address) { address.is_global = 0; }},
      {"a source that is not there", [](ibv_ah_attr& address) { address.grh.sgid_index = 255; }},
      {"no destination", [](ibv_ah_attr& address) { address.grh.dgid = {}; }},
      {"another port", [](ibv_ah_attr& address) { address.port_num = 9; }},
  };
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ASSERT_EQ(end.to_init(), 0);
  constexpr int kMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  ibv_qp_attr good{};
  good.qp_state = IBV_QPS_RTR;
  good.path_mtu = IBV_MTU_1024;
  good.dest_qp_num = end.qp->qp_num;
  good.ah_attr.is_global = 1;
  good.ah_attr.port_num = 1;
  good.ah_attr.grh.dgid = end.gid();
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.what);
    ibv_qp_attr attr = good;
    one.break_it(attr.ah_attr);
    EXPECT_EQ(ibv_modify_qp(end.qp, &attr, kMask), EINVAL);
    EXPECT_EQ(end.state(), IBV_QPS_INIT);
  }
  EXPECT_EQ(ibv_modify_qp(end.qp, &good, kMask), 0);
}

}  // namespace
}  // namespace conformance
