// Shared receive queues, as a program uses them.
#include <fcntl.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <set>

#include "endpoint.h"

namespace verbs_test {
namespace {

ibv_srq* create_srq(Endpoint& of, std::uint32_t requests, std::uint32_t sges = 1) {
  ibv_srq_init_attr wanted{};
  wanted.srq_context = &of;
  wanted.attr = {requests, sges, 0};
  return ibv_create_srq(of.pd, &wanted);
}

// Gives `end` a queue pair that takes from `srq` instead of its own.
void use_shared(Endpoint& end, ibv_srq* srq) {
  ASSERT_EQ(ibv_destroy_qp(end.qp), 0);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = end.cq;
  wanted.srq = srq;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {16, 16, 1, 1, 0};
  end.qp = ibv_create_qp(end.pd, &wanted);
  ASSERT_NE(end.qp, nullptr);
  EXPECT_EQ(wanted.cap.max_recv_wr, 0u);
  EXPECT_EQ(end.qp->srq, srq);
}

int post(ibv_srq* srq, Endpoint& end, std::uint64_t wr_id, std::uint32_t bytes = 64) {
  ibv_sge sge = end.sge(0, bytes);
  ibv_recv_wr receive{};
  receive.wr_id = wr_id;
  receive.sg_list = &sge;
  receive.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_srq_recv(srq, &receive, &bad);
}

int send(Endpoint& from, std::uint32_t bytes = 8) {
  ibv_sge sge = from.sge(0, bytes);
  ibv_send_wr send{};
  send.sg_list = &sge;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(from.qp, &send, &bad);
}

int to_error(ibv_qp* qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

// The next asynchronous event; it has to be acknowledged.
ibv_async_event next_event(ibv_context* context) {
  ibv_async_event event{};
  pollfd watched{context->async_fd, POLLIN, 0};
  EXPECT_EQ(::poll(&watched, 1, 10'000), 1);
  EXPECT_EQ(ibv_get_async_event(context, &event), 0);
  return event;
}
bool has_event(ibv_context* context) {
  pollfd watched{context->async_fd, POLLIN, 0};
  return ::poll(&watched, 1, 0) == 1;
}

class SharedQueue : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    srq = create_srq(b, 8);
    ASSERT_NE(srq, nullptr);
    use_shared(b, srq);
    connect(a, b);
  }
  void TearDown() override {
    EXPECT_TRUE(b.qp == nullptr || ibv_destroy_qp(b.qp) == 0);
    b.qp = nullptr;
    EXPECT_TRUE(srq == nullptr || ibv_destroy_srq(srq) == 0);
  }
  Endpoint a;
  Endpoint b;
  ibv_srq* srq = nullptr;
};

TEST_F(SharedQueue, ReceivesForItsQueuePair) {
  EXPECT_EQ(srq->srq_context, &b);
  EXPECT_EQ(srq->pd, b.pd);
  ASSERT_EQ(post(srq, b, 77), 0);
  ASSERT_EQ(send(a, 33), 0);
  const auto wc = b.wait();
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc->wr_id, 77u);
  EXPECT_EQ(wc->byte_len, 33u);
  EXPECT_EQ(wc->qp_num, b.qp->qp_num);
}

TEST_F(SharedQueue, AQueuePairThatUsesItHasNoReceivesOfItsOwn) {
  ibv_sge sge = b.sge(0, 8);
  ibv_recv_wr receive{};
  receive.sg_list = &sge;
  receive.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_recv(b.qp, &receive, &bad), EINVAL);
  EXPECT_EQ(bad, &receive);
  ibv_qp_attr attr{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(ibv_query_qp(b.qp, &attr, IBV_QP_CAP, &initial), 0);
  EXPECT_EQ(initial.srq, srq);
  EXPECT_EQ(attr.cap.max_recv_wr, 0u);
}

// CASES C70
TEST_F(SharedQueue, StaysWhileAQueuePairUsesIt) {
  EXPECT_EQ(ibv_destroy_srq(srq), EBUSY);
  EXPECT_EQ(post(srq, b, 1), 0);
}

// CASES C38
TEST_F(SharedQueue, KeepsReceivesBeforeTheOneThatIsWrong) {
  ibv_sge sges[2] = {b.sge(0, 8), b.sge(0, 8)};
  std::array<ibv_recv_wr, 5> list{};
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i].wr_id = i;
    list[i].sg_list = sges;
    list[i].num_sge = i == 2 ? 2 : 1;
    list[i].next = i + 1 < list.size() ? &list[i + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_srq_recv(srq, list.data(), &bad), EINVAL);
  EXPECT_EQ(bad, &list[2]);
  for (std::uint64_t i = 0; i < 2; ++i) {
    ASSERT_EQ(send(a), 0);
    const auto wc = b.wait();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, i);
  }
}

TEST_F(SharedQueue, IsFullOnceItsRequestsAreWaiting) {
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(post(srq, b, i), 0);
  EXPECT_EQ(post(srq, b, 9), ENOMEM);
  ASSERT_EQ(send(a), 0);
  ASSERT_TRUE(b.wait());
  EXPECT_EQ(post(srq, b, 9), 0);
}

TEST_F(SharedQueue, TellsOnceThatItsLimitWasReached) {
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(post(srq, b, i), 0);
  ibv_srq_attr attr{};
  attr.srq_limit = 3;
  ASSERT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(ibv_query_srq(srq, &attr), 0);
  EXPECT_EQ(attr.srq_limit, 3u);
  EXPECT_EQ(attr.max_wr, 8u);
  EXPECT_EQ(attr.max_sge, 1u);
  EXPECT_FALSE(has_event(b.context));
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(send(a), 0);
    ASSERT_TRUE(b.wait());
  }
  ibv_async_event event = next_event(b.context);
  EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(event.element.srq, srq);
  ibv_ack_async_event(&event);
  EXPECT_FALSE(has_event(b.context));
  ASSERT_EQ(ibv_query_srq(srq, &attr), 0);
  EXPECT_EQ(attr.srq_limit, 0u);
}

TEST_F(SharedQueue, ResizesToNoLessThanWhatIsWaiting) {
  ibv_srq_attr attr{};
  attr.max_wr = 32;
  ASSERT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
  EXPECT_GE(attr.max_wr, 32u);
  for (std::uint64_t i = 0; i < 20; ++i) ASSERT_EQ(post(srq, b, i), 0);
  attr.max_wr = 4;
  EXPECT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
  for (std::uint64_t i = 0; i < 18; ++i) {
    ASSERT_EQ(send(a), 0);
    const auto wc = b.wait();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, i);
    ASSERT_TRUE(a.wait());
  }
  attr.max_wr = 4;
  ASSERT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
  ASSERT_EQ(send(a), 0);
  const auto wc = b.wait();
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->wr_id, 18u);
  for (const std::uint32_t bad : {0u, ~0u}) {
    attr.max_wr = bad;
    EXPECT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
  }
  attr.srq_limit = 100;
  EXPECT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
  EXPECT_EQ(ibv_modify_srq(srq, &attr, 4), EINVAL);
}

// CASES C71
TEST_F(SharedQueue, TellsOfTheLastReceiveOfAQueuePairInErr) {
  ASSERT_EQ(post(srq, b, 1), 0);
  ASSERT_EQ(to_error(b.qp), 0);
  ASSERT_EQ(to_error(b.qp), 0);
  ibv_async_event event = next_event(b.context);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_EQ(event.element.qp, b.qp);
  ibv_ack_async_event(&event);
  EXPECT_FALSE(has_event(b.context));
  ibv_wc wc{};
  EXPECT_EQ(ibv_poll_cq(b.cq, 1, &wc), 0);  // what is posted stays for others
}

// What is left in it goes with it, and numbers are not confused with those of others.
TEST_F(SharedQueue, GoesWithWhatIsPosted) {
  ASSERT_EQ(post(srq, b, 1), 0);
  std::uint32_t number = 0;
  ASSERT_EQ(ibv_get_srq_num(srq, &number), 0);
  ASSERT_EQ(ibv_destroy_qp(b.qp), 0);
  b.qp = nullptr;
  ASSERT_EQ(ibv_destroy_srq(srq), 0);
  srq = create_srq(b, 8);
  ASSERT_NE(srq, nullptr);
  std::uint32_t other = number;
  ASSERT_EQ(ibv_get_srq_num(srq, &other), 0);
  EXPECT_NE(other, number);
}

TEST(SharedQueueLimits, AreReachedAndNotPassed) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ibv_device_attr device{};
  ASSERT_EQ(ibv_query_device(end.context, &device), 0);
  const auto most = static_cast<std::uint32_t>(device.max_srq_wr);
  const auto sges = static_cast<std::uint32_t>(device.max_srq_sge);
  ibv_srq* largest = create_srq(end, most, sges);
  ASSERT_NE(largest, nullptr);
  EXPECT_EQ(ibv_destroy_srq(largest), 0);
  for (const auto& [requests, per_request] :
       {std::pair{most + 1, 1u}, {1u, sges + 1}, {0u, 1u}, {~0u, 1u}, {1u, ~0u}}) {
    errno = 0;
    EXPECT_EQ(create_srq(end, requests, per_request), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  std::vector<ibv_srq*> all;
  for (int i = 0; i < device.max_srq; ++i) {
    all.push_back(create_srq(end, 1));
    ASSERT_NE(all.back(), nullptr) << i;
  }
  errno = 0;
  EXPECT_EQ(create_srq(end, 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  for (ibv_srq* srq : all) ASSERT_EQ(ibv_destroy_srq(srq), 0);
}

TEST(SharedQueueLimits, ItsDomainIsTheQueuePairs) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ibv_srq* srq = create_srq(end, 4);
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(end.pd), EBUSY);
  ibv_pd* other = ibv_alloc_pd(end.context);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = end.cq;
  wanted.srq = srq;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {1, 0, 1, 0, 0};
  errno = 0;
  EXPECT_EQ(ibv_create_qp(other, &wanted), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST(SharedQueueLimits, ExtendedCreationTakesBasicOnesToo) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ibv_srq_init_attr_ex wanted{};
  wanted.attr = {4, 1, 0};
  wanted.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  wanted.srq_type = IBV_SRQT_BASIC;
  wanted.pd = end.pd;
  ibv_srq* srq = ibv_create_srq_ex(end.context, &wanted);
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  wanted.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
  wanted.cq = end.cq;
  errno = 0;
  EXPECT_EQ(ibv_create_srq_ex(end.context, &wanted), nullptr);
  EXPECT_EQ(errno, EINVAL);
  wanted.comp_mask = IBV_SRQ_INIT_ATTR_RESERVED;
  errno = 0;
  EXPECT_EQ(ibv_create_srq_ex(end.context, &wanted), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
}  // namespace verbs_test
