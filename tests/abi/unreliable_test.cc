// Unreliable connections, as a verbs program uses them.
#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

Options unreliable() {
  Options options;
  options.type = IBV_QPT_UC;
  return options;
}

TEST(UnreliableVerbs, SendAndWrite) {
  Endpoint a(unreliable());
  Endpoint b(unreliable());
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  connect(a, b);
  std::memset(a.buffer.data(), 0x6b, 5000);
  ibv_sge into = b.sge(8192, 5000);
  ibv_recv_wr receive{};
  receive.sg_list = &into;
  receive.num_sge = 1;
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(ibv_post_recv(b.qp, &receive, &bad_receive), 0);
  ASSERT_EQ(ibv_post_recv(b.qp, &receive, &bad_receive), 0);
  ibv_sge from = a.sge(0, 5000);
  ibv_send_wr send{};
  send.sg_list = &from;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  send.imm_data = 0x04030201;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &send, &bad), 0);
  send.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  send.wr.rdma = {b.address(0), b.mr->rkey};
  ASSERT_EQ(ibv_post_send(a.qp, &send, &bad), 0);
  for (const ibv_wc_opcode opcode : {IBV_WC_SEND, IBV_WC_RDMA_WRITE}) {
    const auto done = a.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    EXPECT_EQ(done->opcode, opcode);
  }
  for (const ibv_wc_opcode opcode : {IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM}) {
    const auto done = b.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    EXPECT_EQ(done->opcode, opcode);
    EXPECT_EQ(done->byte_len, 5000u);
  }
  EXPECT_EQ(std::memcmp(b.buffer.data(), a.buffer.data(), 5000), 0);
  EXPECT_EQ(std::memcmp(b.buffer.data() + 8192, a.buffer.data(), 5000), 0);
}

TEST(UnreliableVerbs, RefuseWhatTheServiceDoesNotHave) {
  Endpoint a(unreliable());
  Endpoint b(unreliable());
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  connect(a, b);
  attr.timeout = 14;
  EXPECT_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT), EINVAL);
  ibv_sge sge = a.sge(0, 8);
  ibv_send_wr send{};
  send.sg_list = &sge;
  send.num_sge = 1;
  ibv_send_wr* bad = nullptr;
  for (const ibv_wr_opcode opcode :
       {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_INV, IBV_WR_ATOMIC_WRITE}) {
    send.opcode = opcode;
    EXPECT_EQ(ibv_post_send(a.qp, &send, &bad), EOPNOTSUPP);
  }
  auto wanted =
      extended_attributes(a.pd, a.cq, IBV_QPT_UC, {1, 1, 1, 1, 0}, IBV_QP_EX_WITH_RDMA_READ);
  errno = 0;
  EXPECT_EQ(ibv_create_qp_ex(a.context, &wanted), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
}  // namespace verbs_test
