// librdmacm.so.1 as programs use it: what it keeps, many threads, forks, a network of one's own.
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "cm_side.h"

namespace cm_test {
namespace {

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

// The kernel gives the word to either of two processes, and one of them is gone by then.
TEST(LastWords, OfAProcessThatEndsAtOnceAreHeard) {
  for (int round = 0; round < 8; ++round) {
    int port_pipe[2];
    ASSERT_EQ(::pipe(port_pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      Channel passive;
      const Id listener = listener_on(passive);
      const __be16 port = rdma_get_src_port(listener.get());
      if (::write(port_pipe[1], &port, sizeof port) != sizeof port) ::_exit(1);
      const Event asked = passive.next(RDMA_CM_EVENT_CONNECT_REQUEST);
      if (asked == nullptr || rdma_reject(asked->id, "no", 2) != 0) ::_exit(2);
      ::raise(SIGKILL);
    }
    __be16 port = 0;
    ASSERT_EQ(::read(port_pipe[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
    ::close(port_pipe[0]);
    ::close(port_pipe[1]);
    {
      Channel active;
      const Id client = routed(active, port);
      ASSERT_EQ(add_qp(client.get()), 0);
      rdma_conn_param wanted = parameters();
      ASSERT_EQ(rdma_connect(client.get(), &wanted), 0);
      const Event refused = active.next(RDMA_CM_EVENT_REJECTED);
      ASSERT_NE(refused, nullptr) << "round " << round;
      EXPECT_EQ(refused->status, 28) << "by the program";
      ASSERT_GE(refused->param.conn.private_data_len, 2);
      EXPECT_EQ(std::memcmp(refused->param.conn.private_data, "no", 2), 0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << status;
  }
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
    // The interface goes, and with it the device that the id is on.
    const Id of_every_address = make_id(channel.get());
    own.sin_addr.s_addr = INADDR_ANY;
    EXPECT_EQ(rdma_bind_addr(of_every_address.get(), plain(own)), 0);
    EXPECT_EQ(std::system("ip link delete cm0"), 0);
    EXPECT_EQ(channel.next(RDMA_CM_EVENT_DEVICE_REMOVAL)->id, id.get());
    EXPECT_FALSE(channel.is_readable()) << "who is on no device does not hear of one";
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  if (status == kSkips) GTEST_SKIP() << "no network of one's own here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace cm_test
