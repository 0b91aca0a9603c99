// librdmacm.so.1 as programs use it: datagrams, groups, shared receive queues and XRC.
#include "cm_side.h"

namespace cm_test {
namespace {

constexpr std::size_t kGrhBytes = 40;

struct Buffer {
  explicit Buffer(rdma_cm_id* id) : bytes(4096), mr(rdma_reg_msgs(id, bytes.data(), 4096)) {}
  ~Buffer() { EXPECT_EQ(rdma_dereg_mr(mr), 0); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::vector<char> bytes;
  ibv_mr* mr;
};

// A client's datagram service, as its peer has answered.
struct Datagrams {
  explicit Datagrams(rdma_port_space ps = RDMA_PS_UDP) : listener(listener_on(passive, ps)) {
    client = routed(active, rdma_get_src_port(listener.get()), ps);
    EXPECT_EQ(add_qp(client.get(), IBV_QPT_UD), 0);
  }
  Channel active, passive;
  Id listener, client;
};

TEST(Datagrams, AreReadyBeforeAnybodyIsAsked) {
  const Datagrams both;
  EXPECT_EQ(state_of(both.client->qp), IBV_QPS_RTS);
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(ibv_query_qp(both.client->qp, &attributes, IBV_QP_QKEY, &initial), 0);
  EXPECT_EQ(attributes.qkey, unsigned{RDMA_UDP_QKEY});
}

TEST(Datagrams, ReachTheQueuePairThatServesThePort) {
  Datagrams both;
  const auto asked = counted_bytes(180), answered = counted_bytes(136);
  rdma_conn_param wanted = parameters(asked.data(), asked.size());
  ASSERT_EQ(rdma_connect(both.client.get(), &wanted), 0);
  const Event request = both.passive.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(request, nullptr);
  const Id server(request->id);
  EXPECT_EQ(request->param.ud.private_data_len, 180);
  EXPECT_TRUE(begins_with(request->param.ud.private_data, asked));
  ASSERT_EQ(add_qp(server.get(), IBV_QPT_UD), 0);
  Buffer got(server.get()), sent(both.client.get());
  ASSERT_EQ(rdma_post_recv(server.get(), nullptr, got.bytes.data(), 4096, got.mr), 0);
  wanted = parameters(answered.data(), answered.size());
  ASSERT_EQ(rdma_accept(server.get(), &wanted), 0);

  const Event established = both.active.next(RDMA_CM_EVENT_ESTABLISHED);
  rdma_ud_param& to = established->param.ud;
  EXPECT_EQ(to.private_data_len, 136);
  EXPECT_TRUE(begins_with(to.private_data, answered));
  EXPECT_EQ(to.qp_num, server->qp->qp_num);
  EXPECT_EQ(to.qkey, unsigned{RDMA_UDP_QKEY});
  ibv_ah* ah = ibv_create_ah(both.client->pd, &to.ah_attr);
  ASSERT_NE(ah, nullptr);
  std::strcpy(sent.bytes.data(), "hello");
  ASSERT_EQ(rdma_post_ud_send(both.client.get(), nullptr, sent.bytes.data(), 6, sent.mr,
                              IBV_SEND_SIGNALED, ah, to.qp_num),
            0);
  ibv_wc wc{};
  ASSERT_EQ(rdma_get_recv_comp(server.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_STREQ(got.bytes.data() + kGrhBytes, "hello");
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

TEST(Datagrams, ThatNobodyServesAreUnreachable) {
  Datagrams both;
  ASSERT_EQ(rdma_connect(both.client.get(), nullptr), 0);
  const Id server(both.passive.next(RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  ASSERT_EQ(rdma_reject(server.get(), nullptr, 0), 0);
  EXPECT_EQ(both.active.next(RDMA_CM_EVENT_UNREACHABLE)->status, 2) << "SIDR: rejected";

  const Id other = routed(both.active, htons(1), RDMA_PS_UDP);
  ASSERT_EQ(rdma_connect(other.get(), nullptr), 0);
  EXPECT_EQ(both.active.next(RDMA_CM_EVENT_UNREACHABLE)->status, 1) << "SIDR: not supported";
}

sockaddr_in group_address(unsigned char last) {
  sockaddr_in group = loopback();
  group.sin_addr.s_addr = htonl(0xef4d0000u | last);  // 239.77.0.last
  return group;
}

TEST(Multicast, IsJoinedHeardAndLeft) {
  Datagrams both;
  sockaddr_in group = group_address(1);
  int context = 0;
  ASSERT_EQ(rdma_join_multicast(both.client.get(), plain(group), &context), 0);
  Event joined = both.active.next(RDMA_CM_EVENT_MULTICAST_JOIN);
  ASSERT_NE(joined, nullptr);
  EXPECT_EQ(joined->status, 0);
  EXPECT_EQ(joined->param.ud.private_data, &context);
  EXPECT_EQ(joined->param.ud.qp_num, 0xffffffu);
  EXPECT_EQ(joined->param.ud.qkey, unsigned{RDMA_UDP_QKEY});
  EXPECT_EQ(joined->param.ud.ah_attr.grh.dgid.raw[12], 239);
  EXPECT_EQ(joined->param.ud.ah_attr.grh.dgid.raw[11], 0xff);

  Buffer got(both.client.get());
  ASSERT_EQ(rdma_post_recv(both.client.get(), nullptr, got.bytes.data(), 4096, got.mr), 0);
  ibv_ah* ah = ibv_create_ah(both.client->pd, &joined->param.ud.ah_attr);
  ASSERT_NE(ah, nullptr);
  char hello[] = "hello";
  ASSERT_EQ(rdma_post_ud_send(both.client.get(), nullptr, hello, sizeof hello, nullptr,
                              IBV_SEND_INLINE | IBV_SEND_SIGNALED, ah, joined->param.ud.qp_num),
            0);
  ibv_wc wc{};
  ASSERT_EQ(rdma_get_recv_comp(both.client.get(), &wc), 1);
  EXPECT_STREQ(got.bytes.data() + kGrhBytes, "hello");
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  joined.reset();
  EXPECT_EQ(rdma_leave_multicast(both.client.get(), plain(group)), 0);
  EXPECT_EQ(rdma_leave_multicast(both.client.get(), plain(group)), -1);
  EXPECT_EQ(errno, EADDRNOTAVAIL);
}

TEST(Multicast, OfWhoOnlySendsIsNotHeard) {
  Datagrams both;
  sockaddr_in group = group_address(2);
  rdma_cm_join_mc_attr_ex wanted{
      .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
      .join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
      .addr = plain(group)};
  ASSERT_EQ(rdma_join_multicast_ex(both.client.get(), &wanted, nullptr), 0);
  const Event joined = both.active.next(RDMA_CM_EVENT_MULTICAST_JOIN);
  EXPECT_EQ(ibv_detach_mcast(both.client->qp, &joined->param.ud.ah_attr.grh.dgid, 0), EINVAL)
      << "it was never attached";
  wanted.comp_mask = 0;
  EXPECT_EQ(rdma_join_multicast_ex(both.client.get(), &wanted, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(Multicast, IsOfDatagramsAndOfGroups) {
  Channel channel;
  const Id connected = routed(channel, htons(1));
  sockaddr_in group = group_address(3), no_group = loopback();
  EXPECT_EQ(rdma_join_multicast(connected.get(), plain(group), nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  const Id datagrams = routed(channel, htons(1), RDMA_PS_UDP);
  EXPECT_EQ(rdma_join_multicast(datagrams.get(), plain(no_group), nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  // An event that is never read goes with the id.
  EXPECT_EQ(rdma_join_multicast(datagrams.get(), plain(group), nullptr), 0);
}

TEST(SharedReceiveQueue, IsUsedByTheIdsQueuePair) {
  Channel active, passive;
  const Id listener = listener_on(passive);
  const Id client = routed(active, rdma_get_src_port(listener.get()));
  ASSERT_EQ(add_qp(client.get()), 0);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  const Id server(passive.next(RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  ibv_srq_init_attr wanted{};
  wanted.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 0};
  ASSERT_EQ(rdma_create_srq(server.get(), nullptr, &wanted), 0);
  EXPECT_EQ(rdma_create_srq(server.get(), nullptr, &wanted), -1) << "it has one";
  ASSERT_EQ(add_qp(server.get()), 0);
  EXPECT_EQ(server->qp->srq, server->srq);
  Buffer got(server.get());
  ASSERT_EQ(rdma_post_recv(server.get(), nullptr, got.bytes.data(), 4096, got.mr), 0);
  ASSERT_EQ(rdma_accept(server.get(), nullptr), 0);
  EXPECT_EQ(active.next(RDMA_CM_EVENT_ESTABLISHED)->param.conn.srq, 1);
  char hello[] = "hello";
  ASSERT_EQ(rdma_post_send(client.get(), nullptr, hello, sizeof hello, nullptr, IBV_SEND_INLINE),
            0);
  ibv_wc wc{};
  ASSERT_EQ(rdma_get_recv_comp(server.get(), &wc), 1);
  EXPECT_STREQ(got.bytes.data(), "hello");
  rdma_destroy_qp(server.get());
  rdma_destroy_srq(server.get());
  EXPECT_EQ(server->srq, nullptr);
}

// As rdma_xserver and rdma_xclient do.
TEST(Xrc, ConnectsASenderWithASharedReceiveQueue) {
  Channel active, passive;
  sockaddr_in here = loopback();
  rdma_addrinfo wanted{};
  wanted.ai_flags = RAI_PASSIVE;
  wanted.ai_port_space = RDMA_PS_TCP;
  wanted.ai_qp_type = IBV_QPT_XRC_RECV;
  wanted.ai_src_addr = plain(here);
  rdma_cm_id* made = nullptr;
  ASSERT_EQ(rdma_create_ep(&made, &wanted, nullptr, nullptr), 0);
  const Id listener(made);
  ASSERT_EQ(rdma_migrate_id(listener.get(), passive.get()), 0);
  ASSERT_EQ(rdma_listen(listener.get(), 4), 0);

  sockaddr_in to = loopback(rdma_get_src_port(listener.get()));
  wanted = {};
  wanted.ai_port_space = RDMA_PS_TCP;
  wanted.ai_qp_type = IBV_QPT_XRC_SEND;
  wanted.ai_dst_addr = plain(to);
  ibv_qp_init_attr attributes = queue_pair();
  attributes.cap.max_recv_wr = attributes.cap.max_recv_sge = 0;
  ASSERT_EQ(rdma_create_ep(&made, &wanted, nullptr, &attributes), 0);
  const Id client(made);
  ASSERT_EQ(rdma_migrate_id(client.get(), active.get()), 0);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);

  const Id server(passive.next(RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  EXPECT_EQ(server->qp_type, IBV_QPT_XRC_RECV);
  ibv_srq_init_attr queue{};
  queue.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 0};
  ASSERT_EQ(rdma_create_srq(server.get(), nullptr, &queue), 0);
  ASSERT_NE(server->recv_cq, nullptr);
  std::uint32_t number = 0;
  ASSERT_EQ(ibv_get_srq_num(server->srq, &number), 0);
  ASSERT_EQ(add_qp(server.get(), IBV_QPT_XRC_RECV), 0);
  Buffer got(server.get());
  ASSERT_EQ(rdma_post_recv(server.get(), nullptr, got.bytes.data(), 4096, got.mr), 0);
  ASSERT_EQ(rdma_accept(server.get(), nullptr), 0);
  active.next(RDMA_CM_EVENT_ESTABLISHED);

  char hello[] = "hello";
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(hello), sizeof hello, 0};
  ibv_send_wr wr{};
  wr.sg_list = &piece;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_INLINE;
  wr.qp_type.xrc.remote_srqn = number;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(client->qp, &wr, &bad), 0);
  ibv_wc wc{};
  ASSERT_EQ(rdma_get_recv_comp(server.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_STREQ(got.bytes.data(), "hello");
  rdma_destroy_qp(server.get());
  rdma_destroy_srq(server.get());
}

}  // namespace
}  // namespace cm_test
