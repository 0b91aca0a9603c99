// Queue pairs and completion queues: creation, attributes, states.
#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

TEST(CompletionQueue, HasAtLeastTheEntriesAskedFor) {
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  ibv_cq* cq = ibv_create_cq(context, 100, context, nullptr, 0);
  ASSERT_NE(cq, nullptr);
  EXPECT_GE(cq->cqe, 100);
  EXPECT_EQ(cq->cq_context, context);
  ibv_wc wc{};
  EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST(CompletionQueue, ReachesItsMaximumAndNotOneMore) {
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  ibv_device_attr attr{};
  ASSERT_EQ(ibv_query_device(context, &attr), 0);
  ibv_cq* cq = ibv_create_cq(context, attr.max_cqe, nullptr, nullptr, 0);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  for (const int entries : {attr.max_cqe + 1, 0, -1}) {
    errno = 0;
    EXPECT_EQ(ibv_create_cq(context, entries, nullptr, nullptr, 0), nullptr);
    EXPECT_EQ(errno, EINVAL) << entries;
  }
  errno = 0;
  EXPECT_EQ(ibv_create_cq(context, 4, nullptr, nullptr, context->num_comp_vectors), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST(CompletionQueue, StaysWhileAQueuePairUsesIt) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  EXPECT_EQ(ibv_destroy_cq(end.cq), EBUSY);
}

TEST(QueuePair, HasAtLeastTheCapacityAskedFor) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ibv_qp_attr attr{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(ibv_query_qp(end.qp, &attr, IBV_QP_CAP | IBV_QP_STATE, &initial), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RESET);
  EXPECT_GE(attr.cap.max_send_wr, 16u);
  EXPECT_GE(attr.cap.max_recv_wr, 16u);
  EXPECT_GE(attr.cap.max_send_sge, 4u);
  EXPECT_GE(attr.cap.max_inline_data, 64u);
  EXPECT_EQ(initial.cap.max_send_wr, attr.cap.max_send_wr);
  EXPECT_EQ(initial.send_cq, end.cq);
  EXPECT_EQ(initial.qp_type, IBV_QPT_RC);
  EXPECT_GT(end.qp->qp_num, 1u);
}

// rdma_xclient asks for no room and sends 16 bytes inline.
TEST(QueuePair, TakesAsManyBytesInlineAsItsSegmentsNeed) {
  Endpoint end({.sges = 1, .inline_bytes = 0});
  ASSERT_TRUE(end.is_ready());
  ibv_qp_attr attr{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(ibv_query_qp(end.qp, &attr, IBV_QP_CAP, &initial), 0);
  EXPECT_EQ(attr.cap.max_send_sge, 1u);
  EXPECT_GE(attr.cap.max_inline_data, 16u);
}

TEST(QueuePair, IsNotCreatedBeyondAdvertisedLimits) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ibv_device_attr attr{};
  ASSERT_EQ(ibv_query_device(end.context, &attr), 0);
  ibv_qp_init_attr most{};
  most.send_cq = most.recv_cq = end.cq;
  most.qp_type = IBV_QPT_RC;
  most.cap = {static_cast<std::uint32_t>(attr.max_qp_wr), 1,
              static_cast<std::uint32_t>(attr.max_sge), 1, 0};
  ibv_qp_init_attr tried = most;
  ibv_qp* qp = ibv_create_qp(end.pd, &tried);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  tried = most;
  ++tried.cap.max_send_wr;
  EXPECT_EQ(ibv_create_qp(end.pd, &tried), nullptr);
  tried = most;
  ++tried.cap.max_send_sge;
  EXPECT_EQ(ibv_create_qp(end.pd, &tried), nullptr);
  tried = most;
  tried.cap.max_inline_data = 1 << 20;
  EXPECT_EQ(ibv_create_qp(end.pd, &tried), nullptr);
}

TEST(QueuePair, AnswersEopnotsuppForOtherServices) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  for (const ibv_qp_type type : {IBV_QPT_DRIVER}) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = end.cq;
    wanted.qp_type = type;
    wanted.cap = {1, 1, 1, 1, 0};
    errno = 0;
    EXPECT_EQ(ibv_create_qp(end.pd, &wanted), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP) << type;
  }
}

TEST(QueuePair, NeedsCompletionQueuesOfItsOwnContext) {
  Endpoint end;
  Endpoint other;
  ASSERT_TRUE(end.is_ready() && other.is_ready());
  ibv_qp_init_attr wanted{};
  wanted.qp_type = IBV_QPT_RC;
  wanted.send_cq = end.cq;
  wanted.cap = {1, 1, 1, 1, 0};
  errno = 0;
  EXPECT_EQ(ibv_create_qp(end.pd, &wanted), nullptr);
  EXPECT_EQ(errno, EINVAL);
  wanted.recv_cq = other.cq;
  EXPECT_EQ(ibv_create_qp(end.pd, &wanted), nullptr);
}

TEST(QueuePair, GivesAttributesBackAsTheyWereSet) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ASSERT_EQ(end.to_init(), 0);
  EXPECT_EQ(end.qp->state, IBV_QPS_INIT);
  const ibv_gid own = end.gid();
  ASSERT_EQ(end.to_rtr(own, end.qp->qp_num), 0);
  ASSERT_EQ(end.to_rts(), 0);
  ibv_qp_attr attr{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(ibv_query_qp(end.qp, &attr, IBV_QP_STATE, &initial), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.cur_qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(attr.dest_qp_num, end.qp->qp_num);
  EXPECT_EQ(attr.port_num, 1);
  EXPECT_EQ(attr.timeout, 14);
  EXPECT_EQ(attr.retry_cnt, 3);
  EXPECT_EQ(attr.rnr_retry, 7);
  EXPECT_EQ(attr.min_rnr_timer, 1);
  EXPECT_EQ(attr.max_rd_atomic, 4);
  EXPECT_EQ(attr.max_dest_rd_atomic, 4);
  EXPECT_EQ(attr.qp_access_flags, static_cast<unsigned>(kRemoteAccess));
  EXPECT_EQ(std::memcmp(&attr.ah_attr.grh.dgid, &own, sizeof own), 0);
  EXPECT_EQ(attr.ah_attr.grh.hop_limit, 64);
  EXPECT_EQ(attr.ah_attr.is_global, 1);
}

TEST(QueuePair, RefusesTransitionsAndAttributesThatMeanNothing) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  EXPECT_EQ(end.to_rts(), EINVAL);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  EXPECT_EQ(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE), EINVAL);
  EXPECT_EQ(ibv_modify_qp(end.qp, &attr, 1 << 30), EINVAL);
  const std::uint32_t nonsense = 77;
  std::memcpy(&attr.qp_state, &nonsense, sizeof nonsense);
  EXPECT_EQ(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE), EINVAL);
  EXPECT_EQ(end.qp->state, IBV_QPS_RESET);

  ASSERT_EQ(end.to_init(), 0);
  EXPECT_EQ(end.to_rtr(ibv_gid{}, 5), EINVAL);
  EXPECT_EQ(end.qp->state, IBV_QPS_INIT);
}

TEST(QueuePair, GoesToErrorFromAnyStateAndBackToReset) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ASSERT_EQ(end.to_init(), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE), 0);
  EXPECT_EQ(end.state(), IBV_QPS_ERR);
  attr.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE), 0);
  EXPECT_EQ(end.state(), IBV_QPS_RESET);
  EXPECT_EQ(end.to_init(), 0);
}

TEST(QueuePair, OffersTheExtendedInterfaceOnlyIfAskedTo) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  EXPECT_EQ(ibv_qp_to_qp_ex(end.qp), nullptr);
  auto wanted =
      extended_attributes(end.pd, end.cq, IBV_QPT_RC, {1, 1, 1, 1, 0}, IBV_QP_EX_WITH_TSO);
  errno = 0;
  EXPECT_EQ(ibv_create_qp_ex(end.context, &wanted), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  wanted.send_ops_flags = IBV_QP_EX_WITH_SEND;
  ibv_qp* qp = ibv_create_qp_ex(end.context, &wanted);
  ASSERT_NE(qp, nullptr);
  EXPECT_NE(ibv_qp_to_qp_ex(qp), nullptr);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

}  // namespace
}  // namespace verbs_test
