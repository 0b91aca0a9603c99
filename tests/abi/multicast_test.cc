// Multicast groups, as a verbs program uses them: attached, heard, detached.
#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

constexpr std::uint32_t kGroupQkey = 0x22222222;
constexpr std::uint32_t kEverybody = 0xffffff;

ibv_gid group_v4(unsigned char last) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 239;
  gid.raw[13] = 77;
  gid.raw[15] = last;
  return gid;
}

// An endpoint whose queue pair is one of datagrams, in RTS, with eight receives.
struct GroupEnd : Endpoint {
  GroupEnd() {
    if (!is_ready()) return;
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq;
    wanted.qp_type = IBV_QPT_UD;
    wanted.cap = {16, 16, 1, 1, 64};
    qp = ibv_create_qp(pd, &wanted);
    if (qp == nullptr) return;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = kGroupQkey;
    EXPECT_EQ(
        ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    attr.qp_state = IBV_QPS_RTR;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
    for (std::uint64_t i = 0; i < 8; ++i) {
      ibv_sge piece = sge(4096, 1024);
      ibv_recv_wr wr{};
      wr.wr_id = i;
      wr.sg_list = &piece;
      wr.num_sge = 1;
      ibv_recv_wr* bad = nullptr;
      EXPECT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
    }
  }
  ibv_ah* to(const ibv_gid& group) {
    ibv_ah_attr attr{};
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.dgid = group;
    return ibv_create_ah(pd, &attr);
  }
  void send(ibv_ah* ah, std::uint32_t qpn = kEverybody) {
    ibv_sge piece = sge(0, 100);
    ibv_send_wr wr{};
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = kGroupQkey;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(qp, &wr, &bad), 0);
  }
  // Whether the next message comes from `from`, with its bytes and the group's address in front.
  void expect_message(const GroupEnd& from, const ibv_gid& group) {
    const auto done = wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    EXPECT_EQ(done->opcode, IBV_WC_RECV);
    EXPECT_EQ(done->byte_len, 140u);
    EXPECT_EQ(done->src_qp, from.qp->qp_num);
    EXPECT_EQ(std::memcmp(buffer.data() + 4096 + 40, from.buffer.data(), 100), 0);
    const bool v4 = group.raw[10] == 0xff && group.raw[0] == 0;
    EXPECT_EQ(
        std::memcmp(buffer.data() + 4096 + (v4 ? 36 : 24), group.raw + (v4 ? 12 : 0), v4 ? 4 : 16),
        0);
  }
};

TEST(MulticastVerbs, EveryAttachedQueuePairGetsACopy) {
  GroupEnd a, b, outside;
  ASSERT_TRUE(a.is_ready() && b.is_ready() && outside.is_ready());
  const ibv_gid group = group_v4(1);
  ASSERT_EQ(ibv_attach_mcast(a.qp, &group, 0), 0);
  ASSERT_EQ(ibv_attach_mcast(b.qp, &group, 0), 0);
  EXPECT_EQ(ibv_attach_mcast(b.qp, &group, 0), 0) << "once more changes nothing";
  EXPECT_EQ(ibv_destroy_qp(b.qp), EBUSY);  // C70
  ibv_ah* from_a = a.to(group);
  ibv_ah* from_outside = outside.to(group);
  ASSERT_TRUE(from_a != nullptr && from_outside != nullptr);
  std::memset(a.buffer.data(), 0x41, 100);
  std::memset(outside.buffer.data(), 0x42, 100);
  a.send(from_a);
  a.expect_message(a, group);  // the sender's own, too
  b.expect_message(a, group);
  outside.send(from_outside);
  a.expect_message(outside, group);
  b.expect_message(outside, group);
  ASSERT_EQ(ibv_detach_mcast(b.qp, &group, 0), 0);
  EXPECT_EQ(ibv_detach_mcast(b.qp, &group, 0), EINVAL);
  outside.send(from_outside, b.qp->qp_num);  // a group has one QPN
  outside.send(from_outside);
  a.expect_message(outside, group);
  ibv_wc none{};
  EXPECT_EQ(ibv_poll_cq(b.cq, 1, &none), 0);
  EXPECT_EQ(ibv_poll_cq(a.cq, 1, &none), 0);
  EXPECT_EQ(ibv_detach_mcast(a.qp, &group, 0), 0);
  EXPECT_EQ(ibv_destroy_ah(from_a), 0);
  EXPECT_EQ(ibv_destroy_ah(from_outside), 0);
}

TEST(MulticastVerbs, RefuseWhatIsNoGroupAndNoDatagrams) {
  GroupEnd a;
  Endpoint connected;
  ASSERT_TRUE(a.is_ready() && connected.is_ready());
  const ibv_gid group = group_v4(2);
  const ibv_gid own = a.gid();
  EXPECT_EQ(ibv_attach_mcast(a.qp, &own, 0), EINVAL);
  EXPECT_EQ(ibv_attach_mcast(connected.qp, &group, 0), EINVAL);
  EXPECT_EQ(ibv_detach_mcast(a.qp, &group, 0), EINVAL);
}

// C74: as many groups as are said to be, and no more. What is left goes with the context.
TEST(MulticastVerbs, ThereAreAsManyGroupsAsAdvertised) {
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  ibv_device_attr attr{};
  ASSERT_EQ(ibv_query_device(context, &attr), 0);
  ibv_pd* pd = ibv_alloc_pd(context);
  ibv_cq* cq = ibv_create_cq(context, 4, nullptr, nullptr, 0);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq;
  wanted.qp_type = IBV_QPT_UD;
  wanted.cap = {1, 1, 1, 1, 0};
  ibv_qp* qp = ibv_create_qp(pd, &wanted);
  ASSERT_NE(qp, nullptr);
  int count = 0;
  int refused = 0;
  for (; refused == 0 && count <= attr.max_mcast_grp; ++count) {
    ibv_gid group = group_v4(static_cast<unsigned char>(count));
    group.raw[14] = static_cast<unsigned char>(1 + count / 256);
    refused = ibv_attach_mcast(qp, &group, 0);
  }
  EXPECT_EQ(refused, ENOMEM);
  EXPECT_EQ(count - 1, attr.max_mcast_grp);
  EXPECT_EQ(ibv_close_device(context), 0);
}

}  // namespace
}  // namespace verbs_test
