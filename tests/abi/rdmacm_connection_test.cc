// librdmacm.so.1 as programs use it: connections, over loopback.
#include <thread>

#include "cm_side.h"

namespace cm_test {
namespace {

TEST(Connection, IsAskedForWithWhatBothSidesSay) {
  Channel active, passive;
  const Id listener = listener_on(passive, RDMA_PS_TCP, 8, &passive);
  const Id client = routed(active, rdma_get_src_port(listener.get()));
  ASSERT_EQ(add_qp(client.get()), 0);
  EXPECT_EQ(state_of(client->qp), IBV_QPS_INIT);
  const auto asked = counted_bytes(56), answered = counted_bytes(196);
  rdma_conn_param wanted = parameters(asked.data(), asked.size());
  ASSERT_EQ(rdma_connect(client.get(), &wanted), 0);

  Event request = passive.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  ASSERT_NE(request, nullptr);
  const Id server(request->id);
  EXPECT_EQ(request->listen_id, listener.get());
  EXPECT_EQ(server->context, &passive) << "the listener's";
  EXPECT_NE(server->verbs, nullptr);
  EXPECT_EQ(rdma_get_src_port(server.get()), rdma_get_src_port(listener.get()));
  EXPECT_EQ(rdma_get_dst_port(server.get()), rdma_get_src_port(client.get()));
  EXPECT_EQ(server->route.num_paths, 1);
  const rdma_conn_param& heard = request->param.conn;
  EXPECT_EQ(heard.private_data_len, 56);
  EXPECT_TRUE(begins_with(heard.private_data, asked));
  EXPECT_EQ(heard.responder_resources, 4);
  EXPECT_EQ(heard.initiator_depth, 3);
  EXPECT_EQ(heard.retry_count, 5);
  EXPECT_EQ(heard.rnr_retry_count, 6);
  EXPECT_EQ(heard.qp_num, client->qp->qp_num);
  request.reset();

  ASSERT_EQ(add_qp(server.get()), 0);
  wanted = parameters(answered.data(), answered.size());
  ASSERT_EQ(rdma_accept(server.get(), &wanted), 0);
  EXPECT_EQ(state_of(server->qp), IBV_QPS_RTS);
  const Event established = active.next(RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(established->param.conn.private_data_len, 196);
  EXPECT_TRUE(begins_with(established->param.conn.private_data, answered));
  EXPECT_EQ(established->param.conn.qp_num, server->qp->qp_num);
  EXPECT_EQ(state_of(client->qp), IBV_QPS_RTS);
  EXPECT_EQ(passive.next(RDMA_CM_EVENT_ESTABLISHED)->param.conn.private_data_len, 0);
}

TEST(Connection, CarriesMessagesAndReads) {
  Connection both;
  ASSERT_NE(both.server, nullptr);
  std::vector<char> sent(4096, 'a'), got(4096);
  ibv_mr* from = rdma_reg_read(both.client.get(), sent.data(), sent.size());
  ibv_mr* to = rdma_reg_msgs(both.server.get(), got.data(), got.size());
  ASSERT_TRUE(from != nullptr && to != nullptr);
  ASSERT_EQ(rdma_post_recv(both.server.get(), nullptr, got.data(), got.size(), to), 0);
  ASSERT_EQ(rdma_post_send(both.client.get(), nullptr, sent.data(), 100, from, 0), 0);
  ibv_wc wc{};
  ASSERT_EQ(rdma_get_recv_comp(both.server.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 100u);
  ASSERT_EQ(rdma_get_send_comp(both.client.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  ASSERT_EQ(rdma_post_read(both.server.get(), nullptr, got.data(), got.size(), to, 0,
                           reinterpret_cast<std::uintptr_t>(sent.data()), from->rkey),
            0);
  ASSERT_EQ(rdma_get_send_comp(both.server.get(), &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(got, sent);
  EXPECT_EQ(rdma_dereg_mr(from), 0);
  EXPECT_EQ(rdma_dereg_mr(to), 0);
}

TEST(Connection, EndsOnBothSides) {
  Connection both;
  ASSERT_NE(both.server, nullptr);
  ASSERT_EQ(rdma_disconnect(both.client.get()), 0);
  EXPECT_EQ(state_of(both.client->qp), IBV_QPS_ERR);
  EXPECT_EQ(both.passive.next(RDMA_CM_EVENT_DISCONNECTED)->id, both.server.get());
  EXPECT_EQ(both.active.next(RDMA_CM_EVENT_DISCONNECTED)->id, both.client.get());
  EXPECT_EQ(rdma_disconnect(both.server.get()), 0);
  EXPECT_EQ(state_of(both.server->qp), IBV_QPS_ERR);
}

TEST(Connection, OfAnIdThatIsDestroyedEnds) {
  Connection both;
  ASSERT_NE(both.server, nullptr);
  both.client.reset();
  both.passive.next(RDMA_CM_EVENT_DISCONNECTED);
}

// CASES C80
TEST(Reject, ReachesTheOtherSideWithItsBytes) {
  for (const std::size_t length : {0u, 1u, 148u}) {
    Channel active, passive;
    const Id listener = listener_on(passive);
    const Id client = routed(active, rdma_get_src_port(listener.get()));
    ASSERT_EQ(add_qp(client.get()), 0);
    rdma_conn_param wanted = parameters();
    ASSERT_EQ(rdma_connect(client.get(), &wanted), 0);
    const Id server(passive.next(RDMA_CM_EVENT_CONNECT_REQUEST)->id);
    const auto bytes = counted_bytes(length);
    ASSERT_EQ(rdma_reject(server.get(), bytes.data(), static_cast<std::uint8_t>(length)), 0);
    const Event rejected = active.next(RDMA_CM_EVENT_REJECTED);
    EXPECT_EQ(rejected->status, 28);
    EXPECT_EQ(rejected->param.conn.private_data_len, 148);
    EXPECT_TRUE(begins_with(rejected->param.conn.private_data, bytes));
    EXPECT_EQ(state_of(client->qp), IBV_QPS_ERR);
  }
}

TEST(Reject, IsWhatNobodyListensTo) {
  Channel channel;
  const Id client = routed(channel, htons(1));
  ASSERT_EQ(add_qp(client.get()), 0);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  EXPECT_EQ(channel.next(RDMA_CM_EVENT_REJECTED)->status, 8);
}

TEST(Reject, IsTheEndOfRequestsThatNobodyHasSeen) {
  Channel active, passive;
  Id listener = listener_on(passive);
  const Id client = routed(active, rdma_get_src_port(listener.get()));
  ASSERT_EQ(add_qp(client.get()), 0);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  ASSERT_TRUE(passive.is_readable(10'000));
  listener.reset();
  EXPECT_FALSE(passive.is_readable());
  EXPECT_EQ(active.next(RDMA_CM_EVENT_REJECTED)->status, 28);
}

// 0.0.0.0 is every address of IPv4; ::, if the id says so, every one of IPv6.
TEST(Listen, OfBothFamiliesIsToldApart) {
  Channel of_ipv4, of_ipv6, active;
  const Id four = make_id(of_ipv4.get());
  sockaddr_in any4 = loopback();
  any4.sin_addr.s_addr = INADDR_ANY;
  ASSERT_EQ(rdma_bind_addr(four.get(), plain(any4)), 0);
  ASSERT_EQ(rdma_listen(four.get(), 4), 0);
  const __be16 port = rdma_get_src_port(four.get());

  const Id six = make_id(of_ipv6.get());
  int on = 1;
  ASSERT_EQ(rdma_set_option(six.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof on), 0);
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  any6.sin6_port = port;
  if (rdma_bind_addr(six.get(), reinterpret_cast<sockaddr*>(&any6)) != 0)
    GTEST_SKIP() << "no IPv6 here";
  ASSERT_EQ(rdma_listen(six.get(), 4), 0);

  const Id client = routed(active, port);
  ASSERT_EQ(add_qp(client.get()), 0);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  const Event request = of_ipv4.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  const Id server(request->id);
  EXPECT_FALSE(of_ipv6.is_readable());

  const Id client6 = make_id(active.get());
  sockaddr_in6 to = any6;
  to.sin6_addr = in6addr_loopback;
  if (rdma_resolve_addr(client6.get(), nullptr, reinterpret_cast<sockaddr*>(&to), 2000) != 0)
    GTEST_SKIP() << "no IPv6 here";
  active.next(RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_resolve_route(client6.get(), 2000), 0);
  active.next(RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_EQ(add_qp(client6.get()), 0);
  ASSERT_EQ(rdma_connect(client6.get(), nullptr), 0);
  const Event request6 = of_ipv6.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  const Id server6(request6->id);
  EXPECT_FALSE(of_ipv4.is_readable());
}

// A request that found no room comes again, after seconds; those that come later are let in.
TEST(Listen, MayChangeItsBacklog) {
  Channel active, passive;
  const Id listener = listener_on(passive, RDMA_PS_TCP, 1);
  const __be16 port = rdma_get_src_port(listener.get());
  std::vector<Id> clients, servers;
  const auto ask = [&] {
    clients.push_back(routed(active, port));
    EXPECT_EQ(add_qp(clients.back().get()), 0);
    EXPECT_EQ(rdma_connect(clients.back().get(), nullptr), 0);
  };
  ask();
  servers.emplace_back(passive.next(RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  ASSERT_EQ(rdma_listen(listener.get(), 8), 0);
  ask();
  servers.emplace_back(passive.next(RDMA_CM_EVENT_CONNECT_REQUEST)->id);
}

TEST(Connect, RefusesWhatCannotBeAskedFor) {
  Channel channel;
  const Id id = routed(channel, htons(1));
  EXPECT_EQ(rdma_connect(id.get(), nullptr), -1) << "neither queue pair nor its number";
  EXPECT_EQ(errno, EINVAL);
  const auto bytes = counted_bytes(57);
  rdma_conn_param wanted = parameters(bytes.data(), bytes.size());
  EXPECT_EQ(rdma_connect(id.get(), &wanted), -1);
  EXPECT_EQ(errno, EINVAL);
  wanted = parameters();
  wanted.responder_resources = 200;
  EXPECT_EQ(rdma_connect(id.get(), &wanted), -1);
  EXPECT_EQ(errno, EINVAL);
}

// Queue pairs that the program makes and moves by itself, as UCX and `rping -q` do.
TEST(ExternalQueuePair, IsToldWhatItNeeds) {
  Channel active, passive;
  const Id listener = listener_on(passive);
  const Id client = routed(active, rdma_get_src_port(listener.get()));
  ibv_cq* cq = ibv_create_cq(client->verbs, 16, nullptr, nullptr, 0);
  ibv_qp_init_attr wanted_qp = queue_pair();
  wanted_qp.send_cq = wanted_qp.recv_cq = cq;
  ibv_qp* mine = ibv_create_qp(client->pd, &wanted_qp);
  ibv_qp* theirs = ibv_create_qp(client->pd, &wanted_qp);
  ASSERT_TRUE(mine != nullptr && theirs != nullptr);
  const auto move = [](rdma_cm_id* id, ibv_qp* qp, ibv_qp_state state) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    int mask = 0;
    return rdma_init_qp_attr(id, &attributes, &mask) == 0 &&
           ibv_modify_qp(qp, &attributes, mask) == 0;
  };
  EXPECT_TRUE(move(client.get(), mine, IBV_QPS_INIT));

  ibv_ece ece{.vendor_id = 0x1234, .options = 5, .comp_mask = 0};
  ASSERT_EQ(rdma_set_local_ece(client.get(), &ece), 0);
  rdma_conn_param wanted = parameters();
  wanted.qp_num = mine->qp_num;
  ASSERT_EQ(rdma_connect(client.get(), &wanted), 0);
  const Event request = passive.next(RDMA_CM_EVENT_CONNECT_REQUEST);
  const Id server(request->id);
  EXPECT_EQ(request->param.conn.qp_num, mine->qp_num);
  ece = {};
  ASSERT_EQ(rdma_get_remote_ece(server.get(), &ece), 0);
  EXPECT_EQ(ece.vendor_id, 0x1234u);
  EXPECT_EQ(ece.options, 5u);
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS})
    EXPECT_TRUE(move(server.get(), theirs, state)) << state;
  wanted.qp_num = theirs->qp_num;
  ASSERT_EQ(rdma_accept(server.get(), &wanted), 0);

  EXPECT_EQ(active.next(RDMA_CM_EVENT_CONNECT_RESPONSE)->param.conn.qp_num, theirs->qp_num);
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS})
    EXPECT_TRUE(move(client.get(), mine, state)) << state;
  ASSERT_EQ(rdma_establish(client.get()), 0);
  passive.next(RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(ibv_destroy_qp(mine), 0);
  EXPECT_EQ(ibv_destroy_qp(theirs), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
}

TEST(Notify, EstablishesWhatOnlyTheRtuIsMissingFor) {
  Channel active, passive;
  const Id listener = listener_on(passive);
  const Id client = routed(active, rdma_get_src_port(listener.get()));
  ASSERT_EQ(add_qp(client.get()), 0);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  const Id server(passive.next(RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  ASSERT_EQ(add_qp(server.get()), 0);
  ASSERT_EQ(rdma_accept(server.get(), nullptr), 0);
  // The client has not looked for its event yet, so no RTU has left.
  ASSERT_EQ(rdma_notify(server.get(), IBV_EVENT_COMM_EST), 0);
  passive.next(RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(rdma_notify(server.get(), IBV_EVENT_COMM_EST), -1);
  EXPECT_EQ(errno, EISCONN);
  EXPECT_EQ(rdma_notify(server.get(), IBV_EVENT_QP_FATAL), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(Migrate, OfAListenerTakesItsRequestsAlong) {
  Channel active, first, second;
  const Id listener = listener_on(first);
  Id client = routed(active, rdma_get_src_port(listener.get()));
  ASSERT_EQ(add_qp(client.get()), 0);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  ASSERT_TRUE(first.is_readable(10'000));
  ASSERT_EQ(rdma_migrate_id(listener.get(), second.get()), 0);
  EXPECT_FALSE(first.is_readable());
  const Id server(second.next(RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  EXPECT_EQ(server->channel, second.get());
  client.reset();
  // Who gives up says so once, and another process of this host may have been given that datagram
  // just when it ended.
  if (const Event over = second.next(); over) {
    EXPECT_EQ(over->event, RDMA_CM_EVENT_REJECTED);
    EXPECT_EQ(over->status, 4);
  }
}

TEST(Options, ReachTheQueuePairs) {
  Channel active, passive;
  const Id listener = listener_on(passive);
  const Id client = make_id(active.get());
  std::uint8_t tos = 0x60, timeout = 12;
  ASSERT_EQ(rdma_set_option(client.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1), 0);
  ASSERT_EQ(rdma_set_option(client.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1),
            0);
  sockaddr_in to = loopback(rdma_get_src_port(listener.get()));
  ASSERT_EQ(rdma_resolve_addr(client.get(), nullptr, plain(to), 2000), 0);
  active.next(RDMA_CM_EVENT_ADDR_RESOLVED);
  ibv_path_data path{};
  path.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
  path.path.tclass = 0x40;
  ASSERT_EQ(rdma_set_option(client.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path),
            0);
  active.next(RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_EQ(add_qp(client.get()), 0);
  ASSERT_EQ(rdma_connect(client.get(), nullptr), 0);
  const Id server(passive.next(RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  ASSERT_EQ(add_qp(server.get()), 0);
  ASSERT_EQ(rdma_accept(server.get(), nullptr), 0);
  active.next(RDMA_CM_EVENT_ESTABLISHED);
  for (ibv_qp* qp : {client->qp, server->qp}) {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    ASSERT_EQ(ibv_query_qp(qp, &attributes, IBV_QP_AV | IBV_QP_TIMEOUT, &initial), 0);
    EXPECT_EQ(attributes.timeout, 12);
    EXPECT_EQ(attributes.ah_attr.grh.traffic_class, 0x40) << "the last one that was said";
  }
}

// Everything in single calls that wait, as rdma_client and rdma_server are written.
TEST(Synchronous, EndpointsConnectAndTalk) {
  sockaddr_in here = loopback();
  rdma_addrinfo wanted{};
  wanted.ai_flags = RAI_PASSIVE;
  wanted.ai_port_space = RDMA_PS_TCP;
  wanted.ai_qp_type = IBV_QPT_RC;
  wanted.ai_src_addr = plain(here);
  ibv_qp_init_attr attributes = queue_pair();
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_ep(&listener, &wanted, nullptr, &attributes), 0);
  ASSERT_EQ(rdma_listen(listener, 0), 0);

  std::thread server([&] {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_get_request(listener, &id), 0);
    ASSERT_NE(id->qp, nullptr);
    ASSERT_NE(id->event, nullptr);
    EXPECT_EQ(id->event->param.conn.private_data_len, 56);
    EXPECT_TRUE(begins_with(id->event->param.conn.private_data, counted_bytes(4)));
    char got[16] = {};
    ibv_mr* mr = rdma_reg_msgs(id, got, sizeof got);
    ASSERT_EQ(rdma_post_recv(id, nullptr, got, sizeof got, mr), 0);
    ASSERT_EQ(rdma_accept(id, nullptr), 0);
    ibv_wc wc{};
    ASSERT_EQ(rdma_get_recv_comp(id, &wc), 1);
    EXPECT_STREQ(got, "hello");
    EXPECT_EQ(rdma_disconnect(id), 0);
    EXPECT_EQ(rdma_dereg_mr(mr), 0);
    rdma_destroy_ep(id);
  });

  sockaddr_in to = loopback(rdma_get_src_port(listener));
  wanted.ai_flags = 0;
  wanted.ai_dst_addr = plain(to);
  wanted.ai_src_addr = nullptr;
  auto bytes = counted_bytes(4);
  wanted.ai_connect = bytes.data();
  wanted.ai_connect_len = bytes.size();
  rdma_cm_id* client = nullptr;
  attributes = queue_pair();
  ASSERT_EQ(rdma_create_ep(&client, &wanted, nullptr, &attributes), 0);
  ASSERT_EQ(rdma_connect(client, nullptr), 0);
  char hello[16] = "hello";
  ASSERT_EQ(rdma_post_send(client, nullptr, hello, 6, nullptr, IBV_SEND_INLINE), 0);
  ibv_wc wc{};
  ASSERT_EQ(rdma_get_send_comp(client, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(rdma_disconnect(client), 0);
  server.join();
  rdma_destroy_ep(client);
  rdma_destroy_ep(listener);
}

TEST(Synchronous, CallsSayWhyTheyFail) {
  const Id id = make_id(nullptr);
  sockaddr_in to = loopback(htons(1));
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, plain(to), 2000), 0);
  EXPECT_EQ(id->event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_resolve_route(id.get(), 2000), 0);
  ASSERT_EQ(add_qp(id.get()), 0);
  EXPECT_EQ(rdma_connect(id.get(), nullptr), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  EXPECT_EQ(id->event->status, 8);
}

TEST(QueuePair, IsOfTheIdsDevice) {
  Channel channel;
  const Id id = routed(channel, htons(1));
  ibv_device** list = ibv_get_device_list(nullptr);
  ibv_context* other = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  ibv_pd* foreign = ibv_alloc_pd(other);
  ibv_qp_init_attr wanted = queue_pair();
  EXPECT_EQ(rdma_create_qp(id.get(), foreign, &wanted), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(id->send_cq, nullptr);
  wanted.cap.max_send_wr = 1u << 30;
  EXPECT_EQ(rdma_create_qp(id.get(), nullptr, &wanted), -1);
  EXPECT_EQ(wanted.send_cq, nullptr) << "what was made for it is gone, and not left in there";
  wanted.cap.max_send_wr = 8;
  ibv_pd* own = ibv_alloc_pd(id->verbs);
  ASSERT_EQ(rdma_create_qp(id.get(), own, &wanted), 0);
  EXPECT_EQ(id->pd, own);
  EXPECT_EQ(wanted.send_cq, id->send_cq);
  EXPECT_EQ(id->send_cq->cq_context, id.get());
  EXPECT_EQ(add_qp(id.get()), -1) << "it has one";
  rdma_destroy_qp(id.get());
  EXPECT_EQ(id->qp, nullptr);
  EXPECT_EQ(id->send_cq, nullptr);
  EXPECT_NE(id->pd, own);
  EXPECT_EQ(ibv_dealloc_pd(own), 0);
  EXPECT_EQ(ibv_dealloc_pd(foreign), 0);
  EXPECT_EQ(ibv_close_device(other), 0);
}

}  // namespace
}  // namespace cm_test
