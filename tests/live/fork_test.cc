// A program that forks (ARCHITECTURE.md, "Fork, exec, threads, exit"): the parent's device goes on
// as if nothing had happened; the child has none until it opens its own.
#include <dirent.h>
#include <setjmp.h>
#include <spawn.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "forked_child.h"
#include "traffic.h"

namespace verbs_test {
namespace {

std::size_t count_in(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++count;
  return count;
}

bool host_name_in_use(const std::string& name) {
  std::ifstream listing("/proc/self/net/unix");
  for (std::string line; std::getline(listing, line);)
    if (line.ends_with("@" + name)) return true;
  return false;
}

std::string mailbox_of(std::uint32_t qpn, std::uint32_t interface_index) {
  return "softhca/1/qpn/4791/" + std::to_string(interface_index) + "/" + std::to_string(qpn >> 12);
}

// What the open descriptors of this process are.
std::multiset<std::string> descriptors() {
  std::multiset<std::string> links;
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return links;
  while (const dirent* const entry = readdir(directory)) {
    char target[256];
    const ssize_t bytes = readlinkat(dirfd(directory), entry->d_name, target, sizeof target);
    if (bytes > 0) links.emplace(target, static_cast<std::size_t>(bytes));
  }
  closedir(directory);
  return links;
}

TEST(Fork, ParentTrafficGoesOnBesideAChildAndAfterItsEnd) {
  Pair pair;
  ASSERT_TRUE(pair.works());
  Signal done;
  ForkedChild child([&] { return done.take() ? 7 : 1; });
  EXPECT_TRUE(pair.works(200));
  done.give();
  child.expect_exit(7);
  EXPECT_TRUE(pair.works());
}

TEST(Fork, ParentTrafficGoesOnThroughAnExecInTheChild) {
  Pair pair;
  ForkedChild child([] {
    execl("/bin/sh", "sh", "-c", "exit 5", nullptr);
    return 1;
  });
  EXPECT_TRUE(pair.works(100));
  child.expect_exit(5);
  EXPECT_EQ(std::system("exit 3"), 3 << 8);
  char shell[] = "/bin/true";
  char* arguments[] = {shell, nullptr};
  pid_t spawned = 0;
  ASSERT_EQ(posix_spawn(&spawned, shell, nullptr, nullptr, arguments, environ), 0);
  EXPECT_TRUE(pair.works());
  EXPECT_EQ(waitpid(spawned, nullptr, 0), spawned);
  EXPECT_TRUE(pair.works());
}

// An idle parent, too: packets that arrive wake its service thread, not a copy in the child.
TEST(Fork, APassiveParentIsServedWhileTheChildLives) {
  Pair pair({.with_channel = true});
  ASSERT_TRUE(pair.works());
  Signal done;
  ForkedChild child([&] { return done.take() ? 0 : 1; });
  ASSERT_EQ(ibv_req_notify_cq(pair.a.cq, 0), 0);
  ASSERT_TRUE(post_write(pair.a, pair.b.address(0), pair.b.mr->rkey, 5000));
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  pollfd ready{pair.a.channel->fd, POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 10'000), 1);
  ASSERT_EQ(ibv_get_cq_event(pair.a.channel, &cq, &context), 0);
  ibv_ack_cq_events(cq, 1);
  EXPECT_TRUE(pair.a.wait().has_value());
  done.give();
  child.expect_exit(0);
}

int expect_refused(Endpoint& e) {
  ibv_sge sge = e.sge(0, 16);
  ibv_send_wr send{};
  send.sg_list = &sge;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  ibv_send_wr* bad_send = nullptr;
  HOLDS(ibv_post_send(e.qp, &send, &bad_send) == EPERM && bad_send == &send);
  ibv_recv_wr receive{};
  receive.sg_list = &sge;
  receive.num_sge = 1;
  ibv_recv_wr* bad_receive = nullptr;
  HOLDS(ibv_post_recv(e.qp, &receive, &bad_receive) == EPERM && bad_receive == &receive);
  ibv_wc wc{};
  HOLDS(ibv_poll_cq(e.cq, 1, &wc) == -1 && errno == EPERM);
  HOLDS(ibv_req_notify_cq(e.cq, 0) == EPERM);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  HOLDS(ibv_get_cq_event(e.channel, &cq, &context) == -1 && errno == EPERM);
  ibv_async_event event{};
  HOLDS(ibv_get_async_event(e.context, &event) == -1 && errno == EPERM);
  HOLDS(ibv_alloc_pd(e.context) == nullptr && errno == EPERM);
  HOLDS(ibv_reg_mr(e.pd, e.buffer.data(), 16, 0) == nullptr && errno == EPERM);
  HOLDS(ibv_create_cq(e.context, 1, nullptr, nullptr, 0) == nullptr && errno == EPERM);
  HOLDS(ibv_create_comp_channel(e.context) == nullptr && errno == EPERM);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = e.cq;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {1, 1, 1, 1, 0};
  HOLDS(ibv_create_qp(e.pd, &wanted) == nullptr && errno == EPERM);
  ibv_qp_attr reset{};
  HOLDS(ibv_modify_qp(e.qp, &reset, IBV_QP_STATE) == EPERM);
  return 0;
}

int expect_answers(Endpoint& e, const ibv_gid& gid) {
  ibv_device_attr device{};
  HOLDS(ibv_query_device(e.context, &device) == 0 && device.max_qp > 0);
  ibv_port_attr port{};
  HOLDS(ibv_query_port(e.context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
  ibv_gid same{};
  HOLDS(ibv_query_gid(e.context, 1, 0, &same) == 0);
  HOLDS(std::memcmp(&gid, &same, sizeof gid) == 0);
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  HOLDS(ibv_query_qp(e.qp, &attributes, IBV_QP_STATE, &initial) == 0);
  HOLDS(attributes.qp_state == IBV_QPS_RTS && initial.send_cq == e.cq);
  return 0;
}

int take_down(Endpoint& e) {
  HOLDS(ibv_destroy_cq(e.cq) == 0);  // in no particular order
  HOLDS(ibv_dereg_mr(e.mr) == 0);
  HOLDS(ibv_destroy_qp(e.qp) == 0);
  HOLDS(e.channel == nullptr || ibv_destroy_comp_channel(e.channel) == 0);
  HOLDS(ibv_dealloc_pd(e.pd) == 0);
  HOLDS(ibv_close_device(e.context) == 0);
  return 0;
}

TEST(Fork, AChildIsRefusedWithOneLineAndMayAsk) {
  Pair pair({.with_channel = true});
  ASSERT_TRUE(pair.works());
  const ibv_gid gid = pair.a.gid();
  // A completion and its event that the parent has not taken yet.
  ASSERT_EQ(ibv_req_notify_cq(pair.a.cq, 0), 0);
  ASSERT_TRUE(post_write(pair.a, pair.b.address(0), pair.b.mr->rkey, 100));
  pollfd ready{pair.a.channel->fd, POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 10'000), 1);

  ForkedChild child([&] {
    if (const int status = expect_answers(pair.a, gid)) return status;
    if (const int status = expect_refused(pair.a)) return status;
    return expect_refused(pair.b);
  });
  child.expect_exit(0);
  EXPECT_EQ(count_in(child.said(), "left_behind"), 1u) << child.said();
  EXPECT_EQ(count_in(child.said(), "\n"), 1u) << child.said();

  ASSERT_EQ(poll(&ready, 1, 0), 1);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(pair.a.channel, &cq, &context), 0);
  ibv_ack_cq_events(cq, 1);
  EXPECT_TRUE(pair.a.wait().has_value());
  EXPECT_TRUE(pair.works());
}

TEST(Fork, AChildTakesItsCopyDownAndTheParentDoesNotNotice) {
  Pair pair({.with_channel = true});
  ASSERT_TRUE(pair.works());
  ForkedChild child([&] { return take_down(pair.a) + take_down(pair.b); });
  child.expect_exit(0);
  EXPECT_EQ(child.said(), "");
  EXPECT_TRUE(pair.works());
  ForkedChild second([&] { return ibv_close_device(pair.a.context); });
  second.expect_exit(0);
  EXPECT_TRUE(pair.works());
}

TEST(Fork, AChildKeepsNothingThatIsShared) {
  const std::multiset<std::string> allowed = descriptors();
  Pair pair;
  ASSERT_TRUE(pair.works());
  ForkedChild child([&] {
    for (const std::string& link : descriptors()) {
      // What the program sees as async_fd and cmd_fd, and the child's own: stderr, the directory.
      if (link.find("[eventfd]") != std::string::npos || link.find("memfd:softhca-command") == 1 ||
          link.find("memfd:stderr") == 1 || link.find("/proc/") == 0)
        continue;
      if (allowed.contains(link)) continue;
      std::fprintf(stderr, "the child has %s\n", link.c_str());
      return 1;
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("softhca:") == std::string::npos &&
          line.find("softhca-port") == std::string::npos)
        continue;
      std::fprintf(stderr, "the child maps %s\n", line.c_str());
      return 1;
    }
    return 0;
  });
  child.expect_exit(0);
}

TEST(Fork, WhatTheParentHeldIsFreeWhenItDiesThoughTheChildLives) {
  Signal opened, forked, done;
  std::uint32_t qpn = 0, interface_index = 0;
  ForkedChild parent([&] {
    auto pair = std::make_unique<Pair>();
    HOLDS(pair->works());
    ibv_gid_entry entry{};
    HOLDS(ibv_query_gid_ex(pair->a.context, 1, 0, &entry, 0) == 0);
    opened.send(pair->a.qp->qp_num);
    opened.send(entry.ndev_ifindex);
    if (fork() == 0) {
      forked.give();
      done.take();
      _exit(0);
    }
    pause();
    return 0;
  });
  ASSERT_TRUE(opened.receive(qpn) && opened.receive(interface_index));
  ASSERT_TRUE(forked.take());
  const std::string mailbox = mailbox_of(qpn, interface_index);
  EXPECT_TRUE(host_name_in_use(mailbox));
  kill(parent.pid(), SIGKILL);
  parent.wait();
  EXPECT_FALSE(host_name_in_use(mailbox));
  done.give();
}

struct Address {
  ibv_gid gid;
  std::uint32_t qpn;
  std::uint32_t rkey;
  std::uint64_t start;
};
Address address_of(const Endpoint& e) { return {e.gid(), e.qp->qp_num, e.mr->rkey, e.address(0)}; }

TEST(Fork, AChildOpensADeviceOfItsOwnAndTalksToItsParent) {
  if (kThreadSanitizer) GTEST_SKIP() << "TSan allows no thread in the child of one that has some";
  Pair pair;
  ASSERT_TRUE(pair.works());
  Endpoint passive;
  ASSERT_TRUE(passive.is_ready());
  Signal to_child, to_parent;
  ForkedChild child([&] {
    Pair own;
    HOLDS(own.works());
    HOLDS(own.a.qp->qp_num >> 12 != pair.a.qp->qp_num >> 12);
    Endpoint active;
    HOLDS(active.is_ready());
    to_parent.send(address_of(active));
    Address there{};
    HOLDS(to_child.receive(there));
    HOLDS(active.to_init() == 0 && active.to_rtr(there.gid, there.qpn) == 0);
    HOLDS(active.to_rts() == 0);
    std::fill_n(active.buffer.begin(), 5000, static_cast<unsigned char>(0x77));
    HOLDS(post_write(active, there.start, there.rkey, 5000));
    const auto done = active.wait();
    HOLDS(done && done->status == IBV_WC_SUCCESS);
    HOLDS(own.works());
    ibv_wc wc{};
    HOLDS(ibv_poll_cq(pair.a.cq, 1, &wc) == -1 && errno == EPERM);
    return 0;
  });
  Address there{};
  ASSERT_TRUE(to_parent.receive(there));
  ASSERT_EQ(passive.to_init(), 0);
  ASSERT_EQ(passive.to_rtr(there.gid, there.qpn), 0);
  ASSERT_EQ(passive.to_rts(), 0);
  to_child.send(address_of(passive));
  child.expect_exit(0);
  EXPECT_EQ(passive.buffer[4999], 0x77);
  EXPECT_TRUE(pair.works());
}

// What daemon(3) does: the one who opened the device ends, the child goes on.
TEST(Fork, ADaemonOpensItsDeviceAnew) {
  if (kThreadSanitizer) GTEST_SKIP() << "TSan allows no thread in the child of one that has some";
  Signal worked;
  ForkedChild starter([&] {
    auto* const pair = new Pair;
    HOLDS(pair->works());
    if (fork() != 0) _exit(0);
    take_down(pair->a);
    take_down(pair->b);
    Pair own;
    if (own.works(50)) worked.give();
    _exit(0);
  });
  starter.expect_exit(0);
  EXPECT_TRUE(worked.take()) << starter.said();
}

// A copy is made for whoever writes first. The device has to stay with the parent, also where it
// goes by the frames that are pinned.
TEST(Fork, TheDeviceFollowsTheParentWhenPagesAreCopied) {
  Pair pair;
  ASSERT_TRUE(pair.works());
  Signal child_wrote, parent_wrote, done;
  std::ranges::fill(pair.a.buffer, static_cast<unsigned char>(0x11));
  std::ranges::fill(pair.b.buffer, static_cast<unsigned char>(0x22));
  ForkedChild child([&] {
    // Half of each before the parent writes, the rest after.
    std::fill_n(pair.a.buffer.begin(), 32 * 1024, static_cast<unsigned char>(0xee));
    std::fill_n(pair.b.buffer.begin(), 32 * 1024, static_cast<unsigned char>(0xee));
    child_wrote.give();
    HOLDS(parent_wrote.take());
    HOLDS(pair.b.buffer[40 * 1024] == 0x22);
    std::ranges::fill(pair.b.buffer, static_cast<unsigned char>(0xdd));
    done.give();
    return 0;
  });
  ASSERT_TRUE(child_wrote.take());
  std::ranges::fill(pair.a.buffer, static_cast<unsigned char>(0x33));
  ASSERT_TRUE(post_write(pair.a, pair.b.address(0), pair.b.mr->rkey, 64 * 1024));
  ASSERT_TRUE(pair.a.wait().has_value());
  parent_wrote.give();
  ASSERT_TRUE(done.take());
  EXPECT_TRUE(std::ranges::all_of(pair.b.buffer, [](unsigned char x) { return x == 0x33; }));
  child.expect_exit(0);
  EXPECT_TRUE(pair.works());
}

// A child of which no code of ours ran: made by a bare system call.
TEST(Fork, AChildThatNoHookSawIsRefusedToo) {
  if (kSanitizer) GTEST_SKIP() << "their run time needs its own hooks";
  Endpoint e({.with_channel = true});
  ASSERT_TRUE(e.is_ready());
  ASSERT_EQ(e.to_init(), 0);
  const long child = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) {
    ibv_wc wc{};
    const bool refused = ibv_poll_cq(e.cq, 1, &wc) == -1 && errno == EPERM;
    _exit(refused && ibv_alloc_pd(e.context) == nullptr && errno == EPERM ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = 1;
  EXPECT_EQ(waitpid(static_cast<pid_t>(child), &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Threads that are inside every kind of call while the main thread forks.
class Busy {
 public:
  template <class Body>
  explicit Busy(Body body)
      : thread_([this, body] {
          while (!stop_.load()) body();
        }) {}
  ~Busy() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(Fork, WhileOtherThreadsAreInsideNothingWaitsForEver) {
  if (kSanitizer) GTEST_SKIP() << "their allocators do not hold their locks over a fork (GCC 12)";
  Pair pair({.with_channel = true});
  Pair forked({.with_channel = true});  // nobody but the main thread uses these
  ASSERT_TRUE(pair.works() && forked.works());
  std::atomic<int> failures{0};
  {
    Busy traffic([&] { failures += exchange(pair.a, pair.b, 1) ? 0 : 1; });
    Busy regions([&] {
      ibv_mr* mr = ibv_reg_mr(pair.b.pd, pair.b.buffer.data(), 8192, kAllAccess);
      failures += mr != nullptr && ibv_dereg_mr(mr) == 0 ? 0 : 1;
    });
    Busy contexts([&] {
      ibv_context* context = open_first();
      ibv_comp_channel* channel = context != nullptr ? ibv_create_comp_channel(context) : nullptr;
      failures += channel != nullptr && ibv_destroy_comp_channel(channel) == 0 ? 0 : 1;
      failures += context != nullptr && ibv_close_device(context) == 0 ? 0 : 1;
    });
    for (int round = 0; round < 40; ++round) {
      ForkedChild child([&] {
        ibv_wc wc{};
        HOLDS(ibv_poll_cq(pair.a.cq, 1, &wc) == -1 && errno == EPERM);
        ibv_port_attr port{};
        HOLDS(ibv_query_port(pair.a.context, 1, &port) == 0);
        HOLDS(take_down(pair.a) == 0 && take_down(pair.b) == 0 && take_down(forked.b) == 0);
        if (round % 4 != 0) return 0;
        ibv_context* context = open_first();
        HOLDS(context != nullptr && ibv_alloc_pd(context) != nullptr);
        return ibv_close_device(context);
      });
      child.expect_exit(0);
      if (HasFailure()) break;
    }
  }
  EXPECT_EQ(failures.load(), 0);
  EXPECT_TRUE(pair.works() && forked.works());
}

// A crash reporter: a fault in the middle of a call, and a handler that forks.
void* g_page = nullptr;
int g_child_status = -1;
void fork_and_repair(int) {
  const pid_t child = fork();
  if (child == 0) _exit(9);
  waitpid(child, &g_child_status, 0);
  mprotect(g_page, 4096, PROT_READ);
}

TEST(Fork, AHandlerMayForkInTheMiddleOfACall) {
  if (kThreadSanitizer) GTEST_SKIP() << "TSan allows no memory to be freed there";
  Pair pair;
  ASSERT_TRUE(pair.works());
  g_page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct sigaction before {
  }, action{};
  action.sa_handler = fork_and_repair;
  sigaction(SIGSEGV, &action, &before);
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(g_page), 16, 0};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;  // read inside the call
  wr.wr.rdma.remote_addr = pair.b.address(0);
  wr.wr.rdma.rkey = pair.b.mr->rkey;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(pair.a.qp, &wr, &bad), 0);
  sigaction(SIGSEGV, &before, nullptr);
  EXPECT_EQ(WEXITSTATUS(g_child_status), 9);
  EXPECT_TRUE(pair.a.wait().has_value());
  EXPECT_TRUE(pair.works());
  munmap(g_page, 4096);
}

TEST(Fork, IsSafeWithoutPreparation) {
  EXPECT_EQ(ibv_fork_init(), 0);
  EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
  Pair pair;
  EXPECT_EQ(ibv_fork_init(), 0);
  EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
}

}  // namespace
}  // namespace verbs_test
