// A program that goes without cleaning up, by any door, with a service thread running and packets
// on their way: no hang, no crash, no word, and its own exit status.
//
// The test starts itself anew: `leaving_test --leave DOOR` opens a device and goes.
#include <dirent.h>
#include <pthread.h>
#include <spawn.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "forked_child.h"
#include "traffic.h"

namespace verbs_test {
namespace {

constexpr int kStatus = 37;
Pair* g_pair = nullptr;  // for ever: the program does not clean up

// Leaves sends outstanding that nobody has polled.
bool open_and_send() {
  g_pair = new Pair;
  if (!g_pair->works(5)) return false;
  for (int i = 0; i < 8; ++i)
    if (!post_write(g_pair->a, g_pair->b.address(0), g_pair->b.mr->rkey, 60'000)) return false;
  return true;
}

// What an exec leaves: `--after-exec` ends with 0 if no descriptor but the first three is there.
int count_descriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 1;
  int left = 0;
  while (const dirent* const entry = readdir(directory)) {
    const int fd = std::atoi(entry->d_name);
    if (fd > 2 && fd != dirfd(directory)) {
      char target[256] = {};
      if (readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1) > 0)
        std::fprintf(stderr, "left open: %d %s\n", fd, target);
      ++left;
    }
  }
  closedir(directory);
  return left == 0 ? 0 : 1;
}

// With the descriptors above the first three that the test itself was started with closed.
int exec_self(const char* what, const char* argument) {
  return execl("/proc/self/exe", "leaving_test", what, argument, nullptr);
}

int leave(const std::string& door) {
  if (!open_and_send()) return 1;
  if (door == "return") return kStatus;
  if (door == "exit") std::exit(kStatus);
  if (door == "_exit") _exit(kStatus);
  if (door == "quick_exit") std::quick_exit(kStatus);
  if (door == "abort") std::abort();
  if (door == "kill") kill(getpid(), SIGTERM);
  if (door == "exec") return exec_self("--after-exec", nullptr);
  // From a thread, while the main one waits for ever; and the other way round.
  static std::thread* const other = new std::thread([] {
    const bool sent = open_and_send();
    std::exit(sent ? kStatus : 1);
  });
  if (door == "thread" && other != nullptr) pause();
  if (door == "main_thread_ends") pthread_exit(nullptr);
  return 1;
}

class Leaving : public ::testing::TestWithParam<const char*> {};

TEST_P(Leaving, EndsAtOnceSilentlyAndWithItsOwnStatus) {
  const std::string door = GetParam();
  ForkedChild program([&] {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    for (int fd = 3; fd < 256; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
    return exec_self("--leave", door.c_str());
  });
  const int status = program.wait();
  const int expected = door == "abort"  ? SIGABRT
                       : door == "kill" ? SIGTERM
                       : door == "exec" ? 0
                                        : kStatus << 8;
  EXPECT_EQ(status & ~0x80, expected) << program.said();  // 0x80: with a core file
  EXPECT_EQ(program.said(), "");
}

INSTANTIATE_TEST_SUITE_P(Doors, Leaving,
                         ::testing::Values("return", "exit", "_exit", "quick_exit", "abort", "kill",
                                           "exec", "thread", "main_thread_ends"),
                         [](const auto& door) { return std::string(door.param); });

// An image that was started by somebody with an open device, and not by replacing him.
TEST(Leaving, ASpawnedProgramInheritsNothing) {
  for (int fd = 3; fd < 256; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
  Pair pair;
  ASSERT_TRUE(pair.works());
  char name[] = "leaving_test", what[] = "--after-exec";
  char* arguments[] = {name, what, nullptr};
  pid_t spawned = 0;
  ASSERT_EQ(posix_spawn(&spawned, "/proc/self/exe", nullptr, nullptr, arguments, environ), 0);
  int status = 1;
  ASSERT_EQ(waitpid(spawned, &status, 0), spawned);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(pair.works());
}

// Brings an endpoint to RTS, connected to one in another process that does the same.
bool join(Endpoint& e, Signal& to_other, Signal& from_other) {
  struct There {
    ibv_gid gid;
    std::uint32_t qpn;
  };
  if (!e.is_ready()) return false;
  There there{};
  to_other.send(There{e.gid(), e.qp->qp_num});
  return from_other.receive(there) && e.to_init() == 0 && e.to_rtr(there.gid, there.qpn) == 0 &&
         e.to_rts() == 0;
}

// One that ends with the message that it was waiting for has acknowledged it.
TEST(Leaving, WhoEndsWithItsLastMessageHasAcknowledgedIt) {
  Signal to_child, to_parent;
  ForkedChild program([&] {
    Endpoint e;
    HOLDS(join(e, to_parent, to_child));
    ibv_sge sge{e.address(0), 64, e.mr->lkey};
    ibv_recv_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    HOLDS(ibv_post_recv(e.qp, &wr, &bad) == 0);
    ibv_wc wc{};
    for (int i = 0; i < 1000; ++i) HOLDS(ibv_poll_cq(e.cq, 1, &wc) == 0);
    to_parent.give();
    while (ibv_poll_cq(e.cq, 1, &wc) == 0) {
    }
    std::exit(wc.status == IBV_WC_SUCCESS ? 0 : 1);
  });
  Endpoint e;
  ASSERT_TRUE(join(e, to_child, to_parent));
  ASSERT_TRUE(to_parent.take());
  ibv_sge sge{e.address(0), 8, e.mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(e.qp, &wr, &bad), 0);
  const auto done = e.wait();
  program.expect_exit(0);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
}

// The peer of one that is gone finds out by its retries.
TEST(Leaving, ThePeerSeesARetryError) {
  Signal to_child, to_parent;
  ForkedChild program([&] {
    Endpoint e;
    HOLDS(join(e, to_parent, to_child));
    to_parent.give();
    _exit(0);
  });
  Endpoint e;
  ASSERT_TRUE(join(e, to_child, to_parent));
  ASSERT_TRUE(to_parent.take());
  program.expect_exit(0);
  ASSERT_TRUE(post_write(e, 0x1000, 0x1234, 100));
  const auto done = e.wait();
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, IBV_WC_RETRY_EXC_ERR);
}

}  // namespace
}  // namespace verbs_test

int main(int argc, char** argv) {
  ::setenv("SOFTHCA_NETDEV", "lo", 1);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "--after-exec") return verbs_test::count_descriptors();
  if (what == "--leave") return verbs_test::leave(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
