// librdmacm.so.1 as programs use it: channels, ids and addresses.
#include <fcntl.h>
#include <signal.h>

#include <atomic>
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
}

// A program of C may have any number there.
TEST(EventNames, OfOtherNumbersAreUnknown) {
#ifdef SOFTHCA_SANITIZED
  GTEST_SKIP() << "sanitizers take a number that C++ has no name for as a mistake";
#endif
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

// As `mckey -M` does; RoCE has no addresses of InfiniBand.
TEST(BindAddr, RefusesAddressesOfInfiniband) {
  Channel channel;
  const Id id = make_id(channel.get(), RDMA_PS_UDP);
  sockaddr_storage infiniband{};
  infiniband.ss_family = AF_IB;
  auto* const address = reinterpret_cast<sockaddr*>(&infiniband);
  EXPECT_EQ(rdma_bind_addr(id.get(), address), -1);
  EXPECT_EQ(errno, EAFNOSUPPORT);
  EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, address, 100), -1);
  EXPECT_EQ(errno, EAFNOSUPPORT);
  EXPECT_EQ(rdma_join_multicast(id.get(), address, nullptr), -1);
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

}  // namespace
}  // namespace cm_test
