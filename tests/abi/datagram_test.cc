// Unreliable datagrams and address handles, as a verbs program uses them.
#include <algorithm>
#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

constexpr std::uint32_t kQkey = 0x11111111;
constexpr std::size_t kReceiveAt = 8192;

// An endpoint whose queue pair is one of datagrams, in RTS, with the builder's calls.
struct DatagramEnd : Endpoint {
  DatagramEnd() {
    if (!is_ready()) return;
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    ibv_qp_init_attr_ex wanted{};
    wanted.send_cq = wanted.recv_cq = cq;
    wanted.qp_type = IBV_QPT_UD;
    wanted.cap = {16, 16, 2, 2, 64};
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    wanted.pd = pd;
    wanted.send_ops_flags = IBV_QP_EX_WITH_SEND;
    qp = ibv_create_qp_ex(context, &wanted);
    if (qp == nullptr) return;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = kQkey;
    EXPECT_EQ(
        ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    attr.qp_state = IBV_QPS_RTR;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
  }

  ibv_ah* address_of(int gid_index) {
    ibv_ah_attr attributes{};
    attributes.is_global = 1;
    attributes.port_num = 1;
    attributes.grh.sgid_index = static_cast<std::uint8_t>(gid_index);
    if (ibv_query_gid(context, 1, gid_index, &attributes.grh.dgid) != 0) return nullptr;
    return ibv_create_ah(pd, &attributes);
  }
  int send(ibv_ah* ah, std::uint32_t qpn, std::uint32_t length,
           ibv_wr_opcode opcode = IBV_WR_SEND_WITH_IMM) {
    ibv_sge piece = sge(0, length);
    ibv_send_wr wr{};
    wr.wr_id = 3;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = 0x04030201;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = kQkey;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
  }
  void receive(std::uint64_t id) {
    ibv_sge piece = sge(kReceiveAt, 4096);
    ibv_recv_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
  }
  // The next completion of a receive, whatever was sent meanwhile.
  std::optional<ibv_wc> wait_for_receive() {
    for (;;) {
      const auto done = wait();
      if (!done || done->opcode == IBV_WC_RECV || done->status != IBV_WC_SUCCESS) return done;
    }
  }
  ibv_grh* grh() { return reinterpret_cast<ibv_grh*>(buffer.data() + kReceiveAt); }
};

class Datagram : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(a.is_ready() && b.is_ready()); }
  DatagramEnd a;
  DatagramEnd b;
};

// CASES C08: with any bytes in the buffer before, over IPv4 and IPv6, the way back is found.
TEST_F(Datagram, IsAnsweredByWhatCameInFrontOfIt) {
  int families = 0;
  for (int index = 0; index < 16; ++index) {
    ibv_ah* const to_b = a.address_of(index);
    if (to_b == nullptr) continue;
    ++families;
    for (const auto fill : {static_cast<unsigned char>(0x60), static_cast<unsigned char>(0xff)}) {
      std::fill(b.buffer.begin(), b.buffer.end(), fill);
      std::fill_n(a.buffer.begin(), 4096, static_cast<unsigned char>(index + 1));
      b.receive(5);
      ASSERT_EQ(a.send(to_b, b.qp->qp_num, 100), 0);
      auto got = b.wait_for_receive();
      ASSERT_TRUE(got);
      EXPECT_EQ(got->status, IBV_WC_SUCCESS);
      EXPECT_EQ(got->wr_id, 5u);
      EXPECT_EQ(got->byte_len, 140u);
      EXPECT_EQ(got->src_qp, a.qp->qp_num);
      EXPECT_EQ(got->imm_data, 0x04030201u);
      EXPECT_EQ(got->wc_flags, unsigned{IBV_WC_GRH | IBV_WC_WITH_IMM});
      EXPECT_EQ(b.buffer[kReceiveAt + 40], index + 1);
      EXPECT_EQ(b.buffer[kReceiveAt + 139], index + 1);
      EXPECT_EQ(b.buffer[kReceiveAt + 140], fill);

      ibv_ah_attr back{};
      ASSERT_EQ(ibv_init_ah_from_wc(b.context, 1, &*got, b.grh(), &back), 0);
      EXPECT_EQ(back.is_global, 1);
      EXPECT_EQ(back.grh.sgid_index, index);
      ibv_ah* const to_a = ibv_create_ah_from_wc(b.pd, &*got, b.grh(), 1);
      ASSERT_NE(to_a, nullptr);
      a.receive(6);
      ASSERT_EQ(b.send(to_a, got->src_qp, 7), 0);
      got = a.wait_for_receive();
      ASSERT_TRUE(got);
      EXPECT_EQ(got->byte_len, 47u);
      EXPECT_EQ(got->src_qp, b.qp->qp_num);
      EXPECT_EQ(ibv_destroy_ah(to_a), 0);
    }
    EXPECT_EQ(ibv_destroy_ah(to_b), 0);
  }
  EXPECT_GT(families, 0);
}

TEST_F(Datagram, NamesNoWayBackWithoutAHeader) {
  ibv_wc wc{};
  ibv_ah_attr back{};
  EXPECT_EQ(ibv_init_ah_from_wc(b.context, 1, &wc, b.grh(), &back), -1);
  EXPECT_EQ(ibv_create_ah_from_wc(b.pd, &wc, b.grh(), 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  wc.wc_flags = IBV_WC_GRH;
  std::fill_n(b.buffer.begin() + kReceiveAt, 40, static_cast<unsigned char>(0));
  EXPECT_EQ(ibv_init_ah_from_wc(b.context, 1, &wc, b.grh(), &back), -1);
}

TEST_F(Datagram, IsBuiltCallByCall) {
  ibv_ah* const to_b = a.address_of(0);
  ASSERT_NE(to_b, nullptr);
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(a.qp);
  ASSERT_NE(qp, nullptr);
  b.receive(5);
  std::fill_n(a.buffer.begin(), 64, static_cast<unsigned char>(0x5a));
  ibv_wr_start(qp);
  qp->wr_id = 1;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(qp);
  ibv_wr_set_ud_addr(qp, to_b, b.qp->qp_num, kQkey);
  ibv_wr_set_inline_data(qp, a.buffer.data(), 12);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  std::fill_n(a.buffer.begin(), 64, static_cast<unsigned char>(0));
  const auto got = b.wait_for_receive();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->byte_len, 52u);
  EXPECT_EQ(got->wc_flags, unsigned{IBV_WC_GRH});
  EXPECT_EQ(b.buffer[kReceiveAt + 40], 0x5a);
  EXPECT_EQ(b.buffer[kReceiveAt + 51], 0x5a);
  const auto sent = a.wait();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->status, IBV_WC_SUCCESS);

  ibv_wr_start(qp);
  ibv_wr_send(qp);
  ibv_wr_set_sge(qp, a.mr->lkey, a.address(0), 8);
  EXPECT_EQ(ibv_wr_complete(qp), EINVAL);  // no address
  EXPECT_EQ(ibv_destroy_ah(to_b), 0);
}

TEST_F(Datagram, RefusesWhatTheServiceDoesNotHave) {
  ibv_ah* const to_b = a.address_of(0);
  ASSERT_NE(to_b, nullptr);
  EXPECT_EQ(a.send(to_b, b.qp->qp_num, 8, IBV_WR_RDMA_WRITE), EOPNOTSUPP);
  EXPECT_EQ(a.send(to_b, b.qp->qp_num, 8, IBV_WR_RDMA_READ), EOPNOTSUPP);
  EXPECT_EQ(a.send(nullptr, b.qp->qp_num, 8), EINVAL);
  EXPECT_EQ(ibv_destroy_ah(to_b), 0);
  auto wanted =
      extended_attributes(a.pd, a.cq, IBV_QPT_UD, {1, 1, 1, 1, 0}, IBV_QP_EX_WITH_RDMA_WRITE);
  EXPECT_EQ(ibv_create_qp_ex(a.context, &wanted), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(Datagram, QueriesGiveTheQkeyBack) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(ibv_query_qp(a.qp, &attr, IBV_QP_QKEY, &initial), 0);
  EXPECT_EQ(attr.qkey, kQkey);
  EXPECT_EQ(initial.qp_type, IBV_QPT_UD);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
}

}  // namespace
}  // namespace verbs_test
