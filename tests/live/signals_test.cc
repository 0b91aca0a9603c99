// Programs with signals of their own: blocked, used as an exception mechanism, or arriving all the
// time; and threads with small stacks.
#include <pthread.h>
#include <sys/time.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "forked_child.h"
#include "traffic.h"

namespace verbs_test {
namespace {

TEST(Signals, AProgramMayBlockThemAll) {
  sigset_t all, before;
  sigfillset(&all);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &all, &before), 0);
  {
    Pair pair;
    EXPECT_TRUE(pair.works());
    // Faults of the device's own kind: memory that is gone.
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ibv_mr* mr = ibv_reg_mr(pair.b.pd, page, 4096, kAllAccess);
    ASSERT_NE(mr, nullptr);
    munmap(page, 4096);
    ASSERT_TRUE(post_write(pair.a, reinterpret_cast<std::uintptr_t>(page), mr->rkey, 100));
    const auto done = pair.a.wait();
    EXPECT_TRUE(done && done->status != IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
  sigset_t pending;
  sigpending(&pending);
  for (int signal = 1; signal < 32; ++signal) EXPECT_FALSE(sigismember(&pending, signal)) << signal;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(Signals, TheServiceThreadBlocksThemAll) {
  Pair pair;
  ASSERT_TRUE(pair.works());
  int threads = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    bool ours = false;
    for (std::string line; std::getline(status, line);) {
      if (line == "Name:\tsofthca") ours = true;
      if (!ours || !line.starts_with("SigBlk:")) continue;
      ++threads;
      // All but SIGKILL and SIGSTOP, and the two that the C library keeps to itself.
      constexpr unsigned long long kReserved = 0x1'8000'0000, kNever = 0x4'0100;
      EXPECT_EQ(std::stoull(line.substr(7), nullptr, 16) | kReserved, ~kNever);
    }
  }
  EXPECT_EQ(threads, 1);
}

// Memory that the program makes readable only when it is touched, as garbage collectors do.
char* g_pages = nullptr;
constexpr std::size_t kPages = 512;
std::atomic<int> g_faults{0};
void repair(int, siginfo_t* where, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(where->si_addr) & ~std::uintptr_t{4095};
  ++g_faults;
  if (mprotect(reinterpret_cast<void*>(address), 4096, PROT_READ | PROT_WRITE) != 0) _exit(9);
}

TEST(Signals, AProgramMayRecoverFromFaultsOfItsOwn) {
  Pair pair;
  ASSERT_TRUE(pair.works());
  struct sigaction action {
  }, before{};
  action.sa_sigaction = repair;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGSEGV, &action, &before), 0);
  g_pages = static_cast<char*>(
      mmap(nullptr, kPages * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::thread toucher([] {
    for (std::size_t i = 0; i < kPages; ++i) g_pages[i * 4096] = 1;
  });
  EXPECT_TRUE(pair.works(100));
  toucher.join();
  EXPECT_EQ(g_faults.load(), static_cast<int>(kPages));
  // Nobody has put another handler there.
  struct sigaction now {};
  sigaction(SIGSEGV, &before, &now);
  EXPECT_EQ(now.sa_sigaction, repair);
  munmap(g_pages, kPages * 4096);
}

std::atomic<int> g_ticks{0};
void tick(int) { ++g_ticks; }

// Every system call may be interrupted, none is restarted.
TEST(Signals, ATimerMayInterruptEveryCall) {
  struct sigaction action {
  }, before{};
  action.sa_handler = tick;
  sigaction(SIGALRM, &action, &before);
  const itimerval often{{0, 500}, {0, 500}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  const int rounds = kSanitizer ? 3 : 20;
  for (int round = 0; round < rounds || (g_ticks.load() < 20 && round < 10'000); ++round) {
    Pair pair({.buffer_bytes = std::size_t{1} << 20, .with_channel = true});
    ASSERT_TRUE(pair.works());
    ASSERT_EQ(ibv_req_notify_cq(pair.a.cq, 0), 0);
    ASSERT_TRUE(post_write(pair.a, pair.b.address(0), pair.b.mr->rkey, 5000));
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    int got = -1;
    do {
      got = ibv_get_cq_event(pair.a.channel, &cq, &context);
    } while (got != 0 && errno == EINTR);
    ASSERT_EQ(got, 0);
    ibv_ack_cq_events(cq, 1);
    ASSERT_TRUE(pair.a.wait().has_value());
  }
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_GE(g_ticks.load(), 20);
}

// Stops and continues, as a shell or a debugger does: the service thread's wait is interrupted.
TEST(Signals, AStoppedProgramGoesOnWhereItWas) {
  Signal ready, go;
  ForkedChild program([&] {
    Pair pair({.with_channel = true});
    HOLDS(pair.works());
    ready.give();
    HOLDS(go.take());
    HOLDS(pair.works());
    return 0;
  });
  ASSERT_TRUE(ready.take());
  for (int i = 0; i < 20; ++i) {
    kill(program.pid(), SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(program.pid(), &status, WUNTRACED), program.pid());
    ASSERT_TRUE(WIFSTOPPED(status));
    kill(program.pid(), SIGCONT);
  }
  go.give();
  program.expect_exit(0);
}

// Everything a program does, on threads with 64 KiB of stack.
void* all_of_it(void* result) {
  Pair pair({.sges = 16, .inline_bytes = 512, .with_channel = true});
  bool good = pair.works(50);
  ibv_async_event event{};
  ibv_port_attr port{};
  ibv_device_attr device{};
  good = good && ibv_query_port(pair.a.context, 1, &port) == 0 &&
         ibv_query_device(pair.a.context, &device) == 0;
  // A refusal, which prints its reason; and a failed request.
  good = good && ibv_reg_mr(pair.a.pd, nullptr, 4096, 0) == nullptr;
  good = good && post_write(pair.a, 0x1000, 1, 100);
  const auto failed = pair.a.wait();
  good = good && failed && failed->status == IBV_WC_REM_ACCESS_ERR;
  static_cast<void>(event);
  *static_cast<bool*>(result) = good;
  return nullptr;
}

TEST(Stacks, SixtyFourKilobytesAreEnough) {
  if (kSanitizer) GTEST_SKIP() << "their frames are larger";
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 64 * 1024), 0);
  bool good = false;
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, all_of_it, &good), 0);
  pthread_join(thread, nullptr);
  EXPECT_TRUE(good);
  pthread_attr_destroy(&attributes);
}

}  // namespace
}  // namespace verbs_test
