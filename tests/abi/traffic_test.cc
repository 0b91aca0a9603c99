// Two contexts of one process, connected: bytes arrive, completions say so.
#include <algorithm>
#include <numeric>

#include "endpoint.h"

namespace verbs_test {
namespace {

class Traffic : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    connect(a, b);
    std::iota(a.buffer.begin(), a.buffer.end(), static_cast<unsigned char>(1));
  }
  void receive(Endpoint& end, std::uint64_t id, std::size_t offset, std::uint32_t length) {
    ibv_sge sge = end.sge(offset, length);
    ibv_recv_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(end.qp, &wr, &bad), 0);
  }
  void send(ibv_wr_opcode opcode, std::uint64_t id, std::size_t from, std::uint32_t length,
            std::size_t to = 0, unsigned flags = IBV_SEND_SIGNALED) {
    ibv_sge sge = a.sge(from, length);
    ibv_send_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.imm_data = 0x04030201;
    wr.wr.rdma.remote_addr = b.address(to);
    wr.wr.rdma.rkey = b.mr->rkey;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  }
  void expect_bytes(std::size_t from, std::size_t to, std::size_t length) {
    EXPECT_EQ(std::memcmp(a.buffer.data() + from, b.buffer.data() + to, length), 0);
  }
  Endpoint a;
  Endpoint b;
};

TEST_F(Traffic, CarriesASendIntoAPostedReceive) {
  receive(b, 7, 100, 5000);
  send(IBV_WR_SEND, 9, 3, 4000);
  const auto sent = a.wait();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->wr_id, 9u);
  EXPECT_EQ(sent->status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent->opcode, IBV_WC_SEND);
  const auto received = b.wait();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->wr_id, 7u);
  EXPECT_EQ(received->opcode, IBV_WC_RECV);
  EXPECT_EQ(received->byte_len, 4000u);
  EXPECT_EQ(received->qp_num, b.qp->qp_num);
  EXPECT_EQ(received->wc_flags & IBV_WC_WITH_IMM, 0u);
  expect_bytes(3, 100, 4000);
}

TEST_F(Traffic, CarriesImmediatesAsTheyLieInMemory) {
  receive(b, 1, 0, 64);
  receive(b, 2, 0, 64);
  send(IBV_WR_SEND_WITH_IMM, 3, 0, 8);
  send(IBV_WR_RDMA_WRITE_WITH_IMM, 4, 0, 8, 512);
  for (const ibv_wc_opcode opcode : {IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM}) {
    const auto received = b.wait();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->opcode, opcode);
    EXPECT_EQ(received->wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
    EXPECT_EQ(received->imm_data, 0x04030201u);
    EXPECT_EQ(received->byte_len, 8u);
  }
  expect_bytes(0, 512, 8);
}

TEST_F(Traffic, WritesAndReadsTheOtherSidesMemory) {
  send(IBV_WR_RDMA_WRITE, 1, 10, 20'000, 777);
  auto done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->opcode, IBV_WC_RDMA_WRITE);
  expect_bytes(10, 777, 20'000);
  send(IBV_WR_RDMA_READ, 2, 40'000, 20'000, 777);
  done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  EXPECT_EQ(done->opcode, IBV_WC_RDMA_READ);
  expect_bytes(40'000, 777, 20'000);
}

TEST_F(Traffic, CompletesOnlyWhatWasAskedTo) {
  send(IBV_WR_RDMA_WRITE, 1, 0, 8, 0, 0);
  send(IBV_WR_RDMA_WRITE, 2, 0, 8, 0);
  const auto done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->wr_id, 2u);
}

TEST_F(Traffic, ReusesInlineBuffersAtOnce) {
  receive(b, 1, 0, 64);
  send(IBV_WR_SEND, 1, 0, 32, 0, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
  const std::vector<unsigned char> sent(a.buffer.begin(), a.buffer.begin() + 32);
  std::fill_n(a.buffer.begin(), 32, static_cast<unsigned char>(0));
  ASSERT_TRUE(a.wait());
  ASSERT_TRUE(b.wait());
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), b.buffer.begin()));
}

TEST_F(Traffic, ReportsAKeyThatDoesNotExistAndFlushesTheRest) {
  const std::uint32_t good = b.mr->rkey;
  b.mr->rkey ^= 0x100;
  send(IBV_WR_RDMA_WRITE, 1, 0, 8);
  b.mr->rkey = good;
  const auto failed = a.wait();
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->wr_id, 1u);
  EXPECT_EQ(failed->status, IBV_WC_REM_ACCESS_ERR);
  send(IBV_WR_RDMA_WRITE, 2, 0, 8);
  const auto flushed = a.wait();
  ASSERT_TRUE(flushed);
  EXPECT_EQ(flushed->wr_id, 2u);
  EXPECT_EQ(flushed->status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(a.state(), IBV_QPS_ERR);
}

TEST_F(Traffic, ServesAnExtendedQueueBothWays) {
  ibv_cq_init_attr_ex wanted{};
  wanted.cqe = 16;
  wanted.wc_flags = IBV_WC_STANDARD_FLAGS;
  ibv_cq_ex* const extended = ibv_create_cq_ex(a.context, &wanted);
  ASSERT_NE(extended, nullptr);
  ASSERT_EQ(ibv_destroy_qp(a.qp), 0);
  ASSERT_EQ(ibv_destroy_cq(a.cq), 0);
  a.cq = ibv_cq_ex_to_cq(extended);
  ibv_qp_init_attr initial{};
  initial.send_cq = initial.recv_cq = a.cq;
  initial.qp_type = IBV_QPT_RC;
  initial.cap = {16, 16, 1, 1, 0};
  a.qp = ibv_create_qp(a.pd, &initial);
  ASSERT_NE(a.qp, nullptr);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE), 0);
  connect(a, b);
  if (HasFatalFailure()) return;
  ibv_poll_cq_attr poll{};
  EXPECT_EQ(ibv_start_poll(extended, &poll), ENOENT);
  send(IBV_WR_RDMA_WRITE, 11, 0, 8);
  int found = ENOENT;
  for (int tries = 0; found == ENOENT && tries < 1'000'000; ++tries)
    found = ibv_start_poll(extended, &poll);
  ASSERT_EQ(found, 0);
  EXPECT_EQ(extended->wr_id, 11u);
  EXPECT_EQ(extended->status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_wc_read_opcode(extended), IBV_WC_RDMA_WRITE);
  EXPECT_EQ(ibv_wc_read_qp_num(extended), a.qp->qp_num);
  EXPECT_EQ(ibv_next_poll(extended), ENOENT);
  ibv_end_poll(extended);
  send(IBV_WR_RDMA_WRITE, 12, 0, 8);
  const auto plain = a.wait();
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->wr_id, 12u);
}

TEST_F(Traffic, PostsWhatWasBuiltCallByCall) {
  connect_extended(a, b, IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE);
  if (HasFatalFailure()) return;
  receive(b, 5, 0, 64);
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(a.qp);
  ASSERT_NE(qp, nullptr);

  ibv_wr_start(qp);
  qp->wr_id = 1;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(qp, b.mr->rkey, b.address(1000));
  const ibv_sge pieces[] = {a.sge(0, 10), a.sge(20, 6)};
  ibv_wr_set_sge_list(qp, 2, pieces);
  qp->wr_id = 2;
  ibv_wr_send_imm(qp, 0x04030201);
  ibv_wr_set_inline_data(qp, a.buffer.data() + 50, 12);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  for (std::uint64_t id = 1; id <= 2; ++id) {
    const auto done = a.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->wr_id, id);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  }
  const auto received = b.wait();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->byte_len, 12u);
  EXPECT_EQ(received->imm_data, 0x04030201u);
  expect_bytes(0, 1000, 10);
  expect_bytes(20, 1010, 6);
  expect_bytes(50, 0, 12);

  ibv_wr_start(qp);
  ibv_wr_send_tso(qp, nullptr, 0, 0);
  EXPECT_EQ(ibv_wr_complete(qp), EOPNOTSUPP);
  ibv_wr_start(qp);
  ibv_wr_rdma_write(qp, b.mr->rkey, b.address(0));
  ibv_wr_abort(qp);
  ibv_wc none{};
  EXPECT_EQ(ibv_poll_cq(a.cq, 1, &none), 0);
}

}  // namespace
}  // namespace verbs_test
