// librdmacm.so.1 as programs use it: connections, over loopback.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <iterator>
#include <thread>

#include "cm_side.h"

namespace cm_test {
namespace {

TEST(EventChannel, IsReadableExactlyWhileAnEventWaits) {
  Channel channel;
  const Id id = make_id(channel.get());
  EXPECT_FALSE(channel.is_readable());
  sockaddr_in to = loopback(htons(1));
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, plain(to), 2000), 0);
  EXPECT_TRUE(channel.is_readable(10'000));
  channel.next(RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_FALSE(channel.is_readable());
}

TEST(EventChannel, DoesNotBlockIfItsDescriptorSaysSo) {
  Channel channel;
  ASSERT_EQ(fcntl(channel.get()->fd, F_SETFL, O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(channel.get(), &event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(EventChannel, LetsAWaitingThreadBeInterrupted) {
  Channel channel;
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &nothing, nullptr), 0);
  std::atomic<int> code = 0;
  std::thread waiting([&] {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(channel.get(), &event) == -1) code = errno;
  });
  while (code == 0) pthread_kill(waiting.native_handle(), SIGUSR1);
  EXPECT_EQ(code, EINTR);
  waiting.join();
}

TEST(EventChannel, LetsAWaitingThreadBeCancelled) {
#ifdef SOFTHCA_SANITIZED
  GTEST_SKIP() << "sanitizers do not follow the unwinding of a cancelled thread";
#endif
  Channel channel;
  std::thread cancelled([&] {
    rdma_cm_event* event = nullptr;
    for (;;) rdma_get_cm_event(channel.get(), &event);
  });
  EXPECT_EQ(pthread_cancel(cancelled.native_handle()), 0);
  cancelled.join();
}

TEST(EventNames, AreThoseOfTheHeader) {
  EXPECT_STREQ(rdma_event_str(RDMA_CM_EVENT_ADDR_RESOLVED), "RDMA_CM_EVENT_ADDR_RESOLVED");
  EXPECT_STREQ(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
  const std::uint32_t number = 99;
  rdma_cm_event_type unknown{};
  std::memcpy(&unknown, &number, sizeof unknown);
  EXPECT_STREQ(rdma_event_str(unknown), "UNKNOWN EVENT");
}

TEST(Devices, AreOpenAndStayTheSame) {
  int count = 0;
  ibv_context** list = rdma_get_devices(&count);
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(count, 1);
  EXPECT_EQ(list[1], nullptr);
  ibv_device_attr attributes{};
  EXPECT_EQ(ibv_query_device(list[0], &attributes), 0);
  Channel channel;
  const Id id = routed(channel, htons(1));
  EXPECT_EQ(id->verbs, list[0]);
  rdma_free_devices(list);
}

TEST(Id, IsOfAKnownPortSpace) {
  Channel channel;
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(channel.get(), &id, nullptr, static_cast<rdma_port_space>(7)), -1);
  EXPECT_EQ(errno, EINVAL);
  const Id udp = make_id(channel.get(), RDMA_PS_UDP, &channel);
  EXPECT_EQ(udp->ps, RDMA_PS_UDP);
  EXPECT_EQ(udp->qp_type, IBV_QPT_UD);
  EXPECT_EQ(udp->context, &channel);
  EXPECT_EQ(udp->channel, channel.get());
  EXPECT_EQ(make_id(channel.get())->qp_type, IBV_QPT_RC);
}

// As perftest does when its server was not there yet and it tries again.
TEST(Ids, AreNotLookedIntoWhenTheyAreGone) {
  Channel channel;
  rdma_cm_id* gone = nullptr;
  ASSERT_EQ(rdma_create_id(channel.get(), &gone, nullptr, RDMA_PS_TCP), 0);
  ASSERT_EQ(rdma_destroy_id(gone), 0);
  sockaddr_in to = loopback(htons(1));
  EXPECT_EQ(rdma_resolve_addr(gone, nullptr, plain(to), 100), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_destroy_id(gone), -1);
  EXPECT_EQ(errno, EINVAL);
  ibv_srq_init_attr srq{};
  srq.attr.max_wr = srq.attr.max_sge = 1;
  EXPECT_EQ(rdma_create_srq(gone, nullptr, &srq), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_get_src_port(gone), 0);
  rdma_destroy_qp(gone);
  rdma_destroy_srq(gone);
  rdma_destroy_ep(gone);
}

TEST(BindAddr, ChoosesAPortAndBindsOnce) {
  Channel channel;
  const Id id = make_id(channel.get());
  sockaddr_in any = loopback();
  ASSERT_EQ(rdma_bind_addr(id.get(), plain(any)), 0);
  EXPECT_NE(rdma_get_src_port(id.get()), 0);
  EXPECT_EQ(id->route.addr.src_sin.sin_port, rdma_get_src_port(id.get()));
  EXPECT_EQ(id->route.addr.src_sin.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  EXPECT_NE(id->verbs, nullptr) << "the device of the loopback interface has it";
  EXPECT_EQ(rdma_bind_addr(id.get(), plain(any)), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(BindAddr, ToEveryAddressIsToNoDevice) {
  Channel channel;
  const Id id = make_id(channel.get());
  sockaddr_in any = loopback();
  any.sin_addr.s_addr = INADDR_ANY;
  ASSERT_EQ(rdma_bind_addr(id.get(), plain(any)), 0);
  EXPECT_NE(rdma_get_src_port(id.get()), 0);
  EXPECT_EQ(id->verbs, nullptr);
}

TEST(BindAddr, RefusesAPortThatSomebodyHas) {
  Channel channel;
  const Id first = listener_on(channel);
  const Id second = make_id(channel.get());
  sockaddr_in same = loopback(rdma_get_src_port(first.get()));
  EXPECT_EQ(rdma_bind_addr(second.get(), plain(same)), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  const Id other_space = make_id(channel.get(), RDMA_PS_UDP);
  EXPECT_EQ(rdma_bind_addr(other_space.get(), plain(same)), 0);
}

TEST(BindAddr, RefusesAddressesOfOtherHostsAndFamilies) {
  Channel channel;
  const Id id = make_id(channel.get());
  sockaddr_in elsewhere = loopback();
  elsewhere.sin_addr.s_addr = htonl(0xc6336407);  // 198.51.100.7, RFC 5737
  EXPECT_EQ(rdma_bind_addr(id.get(), plain(elsewhere)), -1);
  EXPECT_EQ(errno, EADDRNOTAVAIL);
  sockaddr_storage unix_address{};
  unix_address.ss_family = AF_UNIX;
  EXPECT_EQ(rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&unix_address)), -1);
  EXPECT_EQ(errno, EAFNOSUPPORT);
}

TEST(Resolve, FillsInWhereTheIdIsAndWhereItGoes) {
  Channel channel;
  const Id id = routed(channel, htons(7174));
  EXPECT_NE(id->verbs, nullptr);
  EXPECT_NE(id->pd, nullptr);
  EXPECT_EQ(id->port_num, 1);
  EXPECT_EQ(rdma_get_dst_port(id.get()), htons(7174));
  EXPECT_NE(rdma_get_src_port(id.get()), 0);
  EXPECT_EQ(id->route.addr.src_sin.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  ASSERT_EQ(id->route.num_paths, 1);
  const ibv_sa_path_rec& path = *id->route.path_rec;
  EXPECT_EQ(path.sgid.raw[12], 127);
  EXPECT_EQ(path.dgid.raw[15], 1);
  EXPECT_EQ(path.pkey, 0xffff);
  EXPECT_EQ(path.mtu, IBV_MTU_4096);
  EXPECT_EQ(std::memcmp(&id->route.addr.addr.ibaddr.sgid, &path.sgid, sizeof path.sgid), 0);
}

// CASES C77
TEST(Resolve, ReachesLoopbackOfIpv6) {
  Channel channel;
  const Id id = make_id(channel.get());
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(7174);
  to.sin6_addr = in6addr_loopback;
  if (rdma_resolve_addr(id.get(), nullptr, reinterpret_cast<sockaddr*>(&to), 2000) != 0)
    GTEST_SKIP() << "no IPv6 here";
  channel.next(RDMA_CM_EVENT_ADDR_RESOLVED);
  EXPECT_EQ(id->route.addr.src_sin6.sin6_family, AF_INET6);
  EXPECT_EQ(rdma_get_dst_port(id.get()), htons(7174));
}

TEST(Calls, OutOfTurnAreRefused) {
  Channel channel;
  const Id id = make_id(channel.get());
  rdma_conn_param wanted = parameters();
  ibv_qp_attr attributes{};
  int mask = 0;
  for (const int answer :
       {rdma_resolve_route(id.get(), 1), rdma_connect(id.get(), &wanted),
        rdma_accept(id.get(), &wanted), rdma_reject(id.get(), nullptr, 0),
        rdma_disconnect(id.get()), rdma_establish(id.get()), add_qp(id.get()),
        rdma_notify(id.get(), IBV_EVENT_COMM_EST), rdma_init_qp_attr(id.get(), &attributes, &mask)})
    EXPECT_EQ(answer, -1);
  EXPECT_EQ(errno, EINVAL);
  rdma_cm_id* request = nullptr;
  EXPECT_EQ(rdma_get_request(id.get(), &request), -1) << "an id with a channel";
}

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

TEST(Migrate, TakesWhatWaitsAlong) {
  Channel first, second;
  const Id id = make_id(first.get());
  sockaddr_in to = loopback(htons(1));
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, plain(to), 2000), 0);
  ASSERT_EQ(rdma_migrate_id(id.get(), second.get()), 0);
  EXPECT_FALSE(first.is_readable());
  EXPECT_EQ(id->channel, second.get());
  EXPECT_EQ(second.next(RDMA_CM_EVENT_ADDR_RESOLVED)->id, id.get());
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

TEST(DestroyId, WaitsForTheAcknowledgementOfItsEvents) {
  Channel channel;
  Id id = make_id(channel.get());
  sockaddr_in to = loopback(htons(1));
  ASSERT_EQ(rdma_resolve_addr(id.get(), nullptr, plain(to), 2000), 0);
  Event event = channel.next(RDMA_CM_EVENT_ADDR_RESOLVED);
  std::atomic<bool> given_back = false;
  std::thread other([&] {
    given_back = true;
    event.reset();
  });
  id.reset();
  EXPECT_TRUE(given_back);
  other.join();
}

TEST(Options, AreChecked) {
  Channel channel;
  const Id id = make_id(channel.get());
  std::uint8_t byte = 0x20;
  int number = 1;
  EXPECT_EQ(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1), 0);
  EXPECT_EQ(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &number, 4), 0);
  EXPECT_EQ(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &number, 4), 0);
  byte = 12;
  EXPECT_EQ(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), 0);
  byte = 32;
  EXPECT_EQ(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), -1);
  EXPECT_EQ(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &number, 4), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_set_option(id.get(), RDMA_OPTION_ID, 99, &number, 4), -1);
  EXPECT_EQ(errno, ENOSYS);
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

std::size_t entries(const char* folder) {
  std::size_t count = 0;
  DIR* dir = opendir(folder);
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

// CASES C82
TEST(Leaks, AreNone) {
  constexpr std::size_t kPortsOpenedLate = 8;  // sockets that the next queue pairs leave by
  const auto come_and_go = [](int connections) {
    for (int i = 0; i < connections; ++i) {
      Connection both;
      ASSERT_NE(both.server, nullptr);
      ASSERT_EQ(rdma_disconnect(both.client.get()), 0);
      both.passive.next(RDMA_CM_EVENT_DISCONNECTED);
    }
  };
  come_and_go(50);  // what stays open is open
  const std::size_t descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  come_and_go(50);
  EXPECT_LE(entries("/proc/self/fd"), descriptors + kPortsOpenedLate);
  EXPECT_EQ(entries("/proc/self/task"), threads);
}

TEST(Threads, ConnectBesideEachOther) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([] {
      for (int round = 0; round < 20; ++round) {
        Connection both;
        ASSERT_NE(both.server, nullptr);
        ASSERT_EQ(rdma_disconnect(both.server.get()), 0);
        both.active.next(RDMA_CM_EVENT_DISCONNECTED);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

// The child's exit status.
template <class Body>
int in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Fork, LeavesTheParentsIdsBehind) {
  Connection both;
  ASSERT_NE(both.server, nullptr);
  const int status = in_child([&] {
    rdma_cm_event* event = nullptr;
    rdma_cm_id* id = nullptr;
    const bool refused = rdma_get_cm_event(both.active.get(), &event) == -1 && errno == EPERM &&
                         rdma_disconnect(both.client.get()) == -1 && errno == EPERM &&
                         rdma_create_id(both.active.get(), &id, nullptr, RDMA_PS_TCP) == -1;
    if (!refused) return 1;
    rdma_destroy_qp(both.client.get());
    if (rdma_destroy_id(both.client.release()) != 0) return 2;
    // What it makes itself works.
    Connection own;
    if (own.server == nullptr || rdma_disconnect(own.client.get()) != 0) return 3;
    return ::testing::Test::HasFailure() ? 4 : 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(both.passive.is_readable()) << "the parent's connection goes on";
  EXPECT_EQ(state_of(both.client->qp), IBV_QPS_RTS);
}

// A host of its own with a network that nobody else is in.
constexpr int kSkips = 77;
bool enter_network() {
  ::setenv("SOFTHCA_NETDEV", "cm0", 1);
  return ::unshare(::geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) == 0 &&
         std::system(
             "ip link set lo up && ip link add cm0 type veth peer name cm1 && "
             "ip addr add 192.0.2.1/24 dev cm0 && ip link set cm0 up && "
             "ip link set cm1 up") == 0;
}

TEST(Network, KnowsItsAddressesAndWhoIsSilent) {
  const int status = in_child([] {
    if (!enter_network()) return kSkips;
    Channel channel;
    const Id id = make_id(channel.get());
    sockaddr_in own = loopback();
    own.sin_addr.s_addr = htonl(0xc0000201);
    EXPECT_EQ(rdma_bind_addr(id.get(), plain(own)), 0);
    EXPECT_NE(id->verbs, nullptr);
    EXPECT_EQ(id->port_num, 1);
    sockaddr_in silent = own;
    silent.sin_addr.s_addr = htonl(0xc000024d);
    EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, plain(silent), 100), 0);
    const Event failed = channel.next(RDMA_CM_EVENT_ADDR_ERROR);
    EXPECT_EQ(failed->status, -ETIMEDOUT);
    // The same id may try again; its own address it reaches.
    EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, plain(own), 100), 0);
    channel.next(RDMA_CM_EVENT_ADDR_RESOLVED);
    const Id lost = make_id(channel.get());
    sockaddr_in elsewhere = loopback();
    elsewhere.sin_addr.s_addr = htonl(0xc6336407);
    EXPECT_EQ(rdma_resolve_addr(lost.get(), nullptr, plain(elsewhere), 100), -1);
    EXPECT_EQ(errno, ENETUNREACH);
    // An answer that nobody waits for any more.
    Id gone = make_id(channel.get());
    EXPECT_EQ(rdma_resolve_addr(gone.get(), nullptr, plain(silent), 10'000), 0);
    gone.reset();
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  if (status == kSkips) GTEST_SKIP() << "no network of one's own here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace cm_test
