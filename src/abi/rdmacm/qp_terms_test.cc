#include "abi/rdmacm/qp_terms.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace softhca::abi {
namespace {

cm::Terms agreed() {
  cm::Terms terms;
  terms.path = {.local = wire::Gid::of_ipv4({192, 0, 2, 1}),
                .remote = wire::Gid::of_ipv4({192, 0, 2, 2}),
                .flow_label = 9,
                .traffic_class = 8,
                .hop_limit = 7,
                .service_level = 6,
                .mtu = IBV_MTU_2048,
                .ack_timeout = 18};
  terms.remote_qpn = {0x123};
  terms.local_psn = {0x111111};
  terms.remote_psn = {0x222222};
  terms.responder_resources = 3;
  terms.initiator_depth = 4;
  terms.retry_count = 5;
  terms.rnr_retry_count = 6;
  return terms;
}

ibv_qp_attr of_state(ibv_qp_state state) {
  ibv_qp_attr attributes{};
  attributes.qp_state = state;
  return attributes;
}

const QpSide kRc{.type = IBV_QPT_RC, .gid_index = 2};

TEST(QpTerms, GiveNoRightsBeforeThereIsAConversation) {
  ibv_qp_attr to = of_state(IBV_QPS_INIT);
  const auto mask = describe_state(to, kRc, nullptr);
  ASSERT_TRUE(mask);
  EXPECT_EQ(*mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  EXPECT_EQ(to.qp_access_flags, 0u);
  EXPECT_EQ(to.port_num, 1);
}

TEST(QpTerms, LetThePeerReadOnlyIfThisSideAnswersReads) {
  cm::Terms terms = agreed();
  ibv_qp_attr to = of_state(IBV_QPS_INIT);
  ASSERT_TRUE(describe_state(to, kRc, &terms));
  EXPECT_EQ(to.qp_access_flags,
            unsigned{IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC});
  terms.responder_resources = 0;
  ASSERT_TRUE(describe_state(to, kRc, &terms));
  EXPECT_EQ(to.qp_access_flags, unsigned{IBV_ACCESS_REMOTE_WRITE});
}

TEST(QpTerms, OfRtrAreThePeers) {
  const cm::Terms terms = agreed();
  ibv_qp_attr to = of_state(IBV_QPS_RTR);
  const auto mask = describe_state(to, kRc, &terms);
  ASSERT_TRUE(mask);
  EXPECT_EQ(*mask, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  EXPECT_EQ(to.dest_qp_num, 0x123u);
  EXPECT_EQ(to.rq_psn, 0x111111u);
  EXPECT_EQ(to.path_mtu, IBV_MTU_2048);
  EXPECT_EQ(to.max_dest_rd_atomic, 3);
  EXPECT_EQ(to.ah_attr.is_global, 1);
  EXPECT_EQ(to.ah_attr.grh.dgid.raw[15], 2);
  EXPECT_EQ(to.ah_attr.grh.sgid_index, 2);
  EXPECT_EQ(to.ah_attr.grh.hop_limit, 7);
  EXPECT_EQ(to.ah_attr.grh.traffic_class, 8);
  EXPECT_EQ(to.ah_attr.grh.flow_label, 9u);
  EXPECT_EQ(to.ah_attr.sl, 6);
}

TEST(QpTerms, OfRtsAreThisSides) {
  const cm::Terms terms = agreed();
  ibv_qp_attr to = of_state(IBV_QPS_RTS);
  const auto mask = describe_state(to, kRc, &terms);
  ASSERT_TRUE(mask);
  EXPECT_EQ(*mask, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  EXPECT_EQ(to.sq_psn, 0x222222u);
  EXPECT_EQ(to.timeout, 18);
  EXPECT_EQ(to.retry_cnt, 5);
  EXPECT_EQ(to.rnr_retry, 6);
  EXPECT_EQ(to.max_rd_atomic, 4);
}

TEST(QpTerms, TakeTheTimeoutThatTheProgramAsksFor) {
  const cm::Terms terms = agreed();
  QpSide side = kRc;
  side.ack_timeout = 12;
  ibv_qp_attr to = of_state(IBV_QPS_RTS);
  ASSERT_TRUE(describe_state(to, side, &terms));
  EXPECT_EQ(to.timeout, 12);
}

TEST(QpTerms, OfXrcAreDividedBetweenItsTwoEnds) {
  const cm::Terms terms = agreed();
  ibv_qp_attr to = of_state(IBV_QPS_RTR);
  EXPECT_EQ(*describe_state(to, {.type = IBV_QPT_XRC_SEND}, &terms) & IBV_QP_MIN_RNR_TIMER, 0);
  EXPECT_NE(*describe_state(to, {.type = IBV_QPT_XRC_RECV}, &terms) & IBV_QP_MIN_RNR_TIMER, 0);
  to = of_state(IBV_QPS_RTS);
  EXPECT_NE(*describe_state(to, {.type = IBV_QPT_XRC_SEND}, &terms) & IBV_QP_RETRY_CNT, 0);
  EXPECT_EQ(*describe_state(to, {.type = IBV_QPT_XRC_RECV}, &terms) & IBV_QP_RETRY_CNT, 0);
  EXPECT_NE(*describe_state(to, {.type = IBV_QPT_XRC_RECV}, &terms) & IBV_QP_TIMEOUT, 0);
}

TEST(QpTerms, OfDatagramsNeedNoConversation) {
  const QpSide side{.type = IBV_QPT_UD};
  ibv_qp_attr to = of_state(IBV_QPS_INIT);
  EXPECT_EQ(*describe_state(to, side, nullptr),
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  EXPECT_EQ(to.qkey, unsigned{RDMA_UDP_QKEY});
  to.qp_state = IBV_QPS_RTR;
  EXPECT_EQ(*describe_state(to, side, nullptr), IBV_QP_STATE);
  to.qp_state = IBV_QPS_RTS;
  EXPECT_EQ(*describe_state(to, side, nullptr), IBV_QP_STATE | IBV_QP_SQ_PSN);
}

TEST(QpTerms, AreMissingWithoutAConversation) {
  for (const ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR, IBV_QPS_RESET}) {
    ibv_qp_attr to = of_state(state);
    const auto mask = describe_state(to, kRc, nullptr);
    ASSERT_FALSE(mask);
    EXPECT_EQ(mask.error().code, EINVAL);
  }
}

}  // namespace
}  // namespace softhca::abi
