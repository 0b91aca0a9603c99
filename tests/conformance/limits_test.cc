// CASES C74: every maximum that the device tells can be reached, and one more fails.
#include <functional>

#include "pair.h"

namespace conformance {
namespace {

class Limits : public ::testing::Test {
 protected:
  void SetUp() override {
    context = verbs_test::open_first();
    ASSERT_NE(context, nullptr);
    ASSERT_EQ(ibv_query_device(context, &attr), 0);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 16, nullptr, nullptr, 0);
    ASSERT_TRUE(pd != nullptr && cq != nullptr);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
  }

  // Makes objects until one fails; how many there were, and that there is room again afterwards.
  template <class Object>
  int most(const std::function<Object*()>& create, int (*destroy)(Object*)) {
    std::vector<Object*> all;
    for (Object* one = create(); one != nullptr; one = create()) all.push_back(one);
    const int count = static_cast<int>(all.size());
    EXPECT_NE(errno, 0);
    for (Object* one : all) EXPECT_EQ(destroy(one), 0);
    Object* const again = create();
    EXPECT_NE(again, nullptr);
    if (again != nullptr) {
      EXPECT_EQ(destroy(again), 0);
    }
    return count;
  }

  ibv_qp* create_qp(const ibv_qp_cap& cap) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = cap;
    return ibv_create_qp(pd, &wanted);
  }
  bool has_qp(const ibv_qp_cap& cap) {
    ibv_qp* const qp = create_qp(cap);
    if (qp != nullptr) {
      EXPECT_EQ(ibv_destroy_qp(qp), 0);
    }
    return qp != nullptr;
  }

  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_device_attr attr{};
};

TEST_F(Limits, ProtectionDomains) {
  EXPECT_EQ(most<ibv_pd>([&] { return ibv_alloc_pd(context); }, ibv_dealloc_pd), attr.max_pd - 1);
}

TEST_F(Limits, CompletionQueues) {
  EXPECT_EQ(
      most<ibv_cq>([&] { return ibv_create_cq(context, 1, nullptr, nullptr, 0); }, ibv_destroy_cq),
      attr.max_cq - 1);
}

TEST_F(Limits, MemoryRegions) {
  std::vector<unsigned char> byte(1);
  EXPECT_EQ(most<ibv_mr>([&] { return ibv_reg_mr(pd, byte.data(), 1, 0); }, ibv_dereg_mr),
            attr.max_mr);
}

TEST_F(Limits, QueuePairs) {
  EXPECT_EQ(most<ibv_qp>([&] { return create_qp({1, 1, 1, 1, 0}); }, ibv_destroy_qp), attr.max_qp);
}

TEST_F(Limits, SharedReceiveQueues) {
  if (attr.max_srq == 0) GTEST_SKIP() << "the device has none";
  ibv_srq_init_attr wanted{};
  wanted.attr = {.max_wr = 1, .max_sge = 1, .srq_limit = 0};
  EXPECT_EQ(most<ibv_srq>([&] { return ibv_create_srq(pd, &wanted); }, ibv_destroy_srq),
            attr.max_srq);
  wanted.attr.max_wr = static_cast<std::uint32_t>(attr.max_srq_wr);
  wanted.attr.max_sge = static_cast<std::uint32_t>(attr.max_srq_sge);
  ibv_srq* const largest = ibv_create_srq(pd, &wanted);
  ASSERT_NE(largest, nullptr);
  EXPECT_EQ(ibv_destroy_srq(largest), 0);
  ++wanted.attr.max_sge;
  EXPECT_EQ(ibv_create_srq(pd, &wanted), nullptr);
}

TEST_F(Limits, EntriesOfAQueuePair) {
  const auto wr = static_cast<std::uint32_t>(attr.max_qp_wr);
  const auto sge = static_cast<std::uint32_t>(attr.max_sge);
  EXPECT_TRUE(has_qp({wr, wr, 1, 1, 0}));
  EXPECT_FALSE(has_qp({wr + 1, 1, 1, 1, 0}));
  EXPECT_FALSE(has_qp({1, wr + 1, 1, 1, 0}));
  EXPECT_TRUE(has_qp({1, 1, sge, sge, 0}));
  EXPECT_FALSE(has_qp({1, 1, sge + 1, 1, 0}));
  EXPECT_FALSE(has_qp({1, 1, 1, sge + 1, 0}));
}

TEST_F(Limits, EntriesOfACompletionQueue) {
  ibv_cq* const largest = ibv_create_cq(context, attr.max_cqe, nullptr, nullptr, 0);
  ASSERT_NE(largest, nullptr);
  EXPECT_GE(largest->cqe, attr.max_cqe);
  EXPECT_EQ(ibv_destroy_cq(largest), 0);
  EXPECT_EQ(ibv_create_cq(context, attr.max_cqe + 1, nullptr, nullptr, 0), nullptr);
}

TEST_F(Limits, ReadsOutstanding) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ASSERT_EQ(end.to_init(), 0);
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = IBV_MTU_1024;
  to.ah_attr.is_global = 1;
  to.ah_attr.port_num = 1;
  to.ah_attr.grh.dgid = end.gid();
  to.dest_qp_num = end.qp->qp_num;
  constexpr int kMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  to.max_dest_rd_atomic = static_cast<std::uint8_t>(attr.max_qp_rd_atom + 1);
  EXPECT_EQ(ibv_modify_qp(end.qp, &to, kMask), EINVAL);
  to.max_dest_rd_atomic = static_cast<std::uint8_t>(attr.max_qp_rd_atom);
  EXPECT_EQ(ibv_modify_qp(end.qp, &to, kMask), 0);
}

// A message of more than the port carries is refused when it is posted.
TEST_F(Limits, BytesOfAMessage) {
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  Endpoint a, b;
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  verbs_test::connect(a, b);
  ibv_sge pieces[2] = {{a.address(0), port.max_msg_sz, a.mr->lkey}, a.sge(0, 1)};
  ibv_send_wr wr{};
  wr.sg_list = pieces;
  wr.num_sge = 2;
  wr.opcode = IBV_WR_SEND;
  ibv_send_wr* bad = nullptr;
  EXPECT_GT(ibv_post_send(a.qp, &wr, &bad), 0);
}

TEST_F(Limits, GidsAndKeysOfThePort) {
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  ibv_gid gid{};
  EXPECT_EQ(ibv_query_gid(context, 1, port.gid_tbl_len - 1, &gid), 0);
  EXPECT_NE(ibv_query_gid(context, 1, port.gid_tbl_len, &gid), 0);
  __be16 pkey = 0;
  EXPECT_EQ(ibv_query_pkey(context, 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, 0xffff);
  EXPECT_NE(ibv_query_pkey(context, 1, port.pkey_tbl_len, &pkey), 0);
  EXPECT_NE(ibv_query_port(context, 2, &port), 0);
}

}  // namespace
}  // namespace conformance
