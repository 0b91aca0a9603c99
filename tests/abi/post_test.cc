// Posting: what is refused at the call, and what stays posted.
#include <array>
#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

template <class WorkRequest, std::size_t N>
void chain(std::array<WorkRequest, N>& list) {
  for (std::size_t i = 0; i < N; ++i) {
    list[i].wr_id = i;
    list[i].next = i + 1 < N ? &list[i + 1] : nullptr;
  }
}

TEST(Post, RefusesSendsBeforeRtsAndReceivesBeforeInit) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ibv_sge sge = end.sge(0, 8);
  ibv_send_wr send{};
  send.sg_list = &sge;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  ibv_send_wr* bad_send = nullptr;
  EXPECT_EQ(ibv_post_send(end.qp, &send, &bad_send), EINVAL);
  EXPECT_EQ(bad_send, &send);
  ibv_recv_wr receive{};
  receive.sg_list = &sge;
  receive.num_sge = 1;
  ibv_recv_wr* bad_receive = nullptr;
  EXPECT_EQ(ibv_post_recv(end.qp, &receive, &bad_receive), EINVAL);
  EXPECT_EQ(bad_receive, &receive);
  ASSERT_EQ(end.to_init(), 0);
  EXPECT_EQ(ibv_post_recv(end.qp, &receive, &bad_receive), 0);
}

TEST(Post, AcceptsAnEmptyList) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ibv_send_wr* bad_send = nullptr;
  ibv_recv_wr* bad_receive = nullptr;
  EXPECT_EQ(ibv_post_send(end.qp, nullptr, &bad_send), 0);
  EXPECT_EQ(ibv_post_recv(end.qp, nullptr, &bad_receive), 0);
}

TEST(Post, KeepsReceivesBeforeTheOneThatDoesNotFit) {
  Options options;
  options.requests = 4;
  Endpoint end(options);
  ASSERT_TRUE(end.is_ready());
  ASSERT_EQ(end.to_init(), 0);
  ibv_qp_attr attr{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(ibv_query_qp(end.qp, &attr, IBV_QP_CAP, &initial), 0);
  ASSERT_EQ(attr.cap.max_recv_wr, 4u);
  ibv_sge sge = end.sge(0, 8);
  std::array<ibv_recv_wr, 6> list{};
  for (ibv_recv_wr& one : list) {
    one.sg_list = &sge;
    one.num_sge = 1;
  }
  chain(list);
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_recv(end.qp, list.data(), &bad), ENOMEM);
  EXPECT_EQ(bad, &list[4]);
  // The four that fitted come back when the queue pair fails.
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE), 0);
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto wc = end.wait();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, i);
    EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
  }
}

TEST(Post, ExecutesSendsBeforeTheOneThatIsRefused) {
  Endpoint a;
  Endpoint b;
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  connect(a, b);
  if (HasFatalFailure()) return;
  ibv_sge sge = a.sge(0, 8);
  std::array<ibv_sge, 40> many;
  many.fill(sge);
  std::array<ibv_send_wr, 3> list{};
  for (ibv_send_wr& one : list) {
    one.sg_list = &sge;
    one.num_sge = 1;
    one.opcode = IBV_WR_RDMA_WRITE;
    one.send_flags = IBV_SEND_SIGNALED;
    one.wr.rdma.remote_addr = b.address(4096);
    one.wr.rdma.rkey = b.mr->rkey;
  }
  chain(list);
  list[1].sg_list = many.data();
  list[1].num_sge = many.size();
  std::memset(a.buffer.data(), 0x5a, 8);
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a.qp, list.data(), &bad), EINVAL);
  EXPECT_EQ(bad, &list[1]);
  const auto wc = a.wait();
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->wr_id, 0u);
  EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
  EXPECT_EQ(b.buffer[4096], 0x5a);
  ibv_wc none{};
  EXPECT_EQ(ibv_poll_cq(a.cq, 1, &none), 0);
}

TEST(Post, RefusesWhatTheQueuePairDoesNotOffer) {
  Endpoint a;
  Endpoint b;
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  connect(a, b);
  if (HasFatalFailure()) return;
  ibv_sge sge = a.sge(0, 65);
  ibv_send_wr send{};
  send.sg_list = &sge;
  send.num_sge = 1;
  send.opcode = IBV_WR_TSO;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a.qp, &send, &bad), EOPNOTSUPP);
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_INLINE;
  EXPECT_EQ(ibv_post_send(a.qp, &send, &bad), EINVAL);
  send.send_flags = 0;
  send.num_sge = -1;
  EXPECT_EQ(ibv_post_send(a.qp, &send, &bad), EINVAL);
}

}  // namespace
}  // namespace verbs_test
