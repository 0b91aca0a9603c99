// When the service thread is there, and what is left after a device was opened, used and closed
// many times: nothing.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "forked_child.h"
#include "threads.h"
#include "traffic.h"

namespace verbs_test {
namespace {

long status_kb(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":")) return std::atol(line.c_str() + field.size() + 1);
  return -1;
}

struct Left {
  int descriptors = entries("/proc/self/fd");
  int threads = verbs_test::threads();
  long mappings = 0;
  long pinned_kb = status_kb("VmPin");
  long locked_kb = status_kb("VmLck");
  long resident_kb = status_kb("VmRSS");
  Left() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) ++mappings;
  }
};

// Some run times start a thread of their own with the first one.
void settle() {
  std::thread([] {}).join();
}

TEST(ServiceThread, StartsWithTheFirstQueuePairInRtrAndEndsWithTheLastClose) {
  settle();
  const int before = threads();
  {
    Endpoint a;
    Endpoint b;
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    ASSERT_EQ(a.to_init(), 0);
    ASSERT_EQ(b.to_init(), 0);
    ibv_wc wc{};
    EXPECT_EQ(ibv_poll_cq(a.cq, 1, &wc), 0);
    EXPECT_EQ(threads(), before);
    ASSERT_EQ(a.to_rtr(b.gid(), b.qp->qp_num), 0);
    EXPECT_EQ(threads(), before + 1);
    ASSERT_EQ(b.to_rtr(a.gid(), a.qp->qp_num), 0);
    EXPECT_EQ(threads(), before + 1);  // one for all contexts of a device
  }
  EXPECT_EQ(threads(), before);
}

void open_use_close() {
  Pair pair;
  ASSERT_TRUE(pair.works(2));
}

TEST(Cycles, OpenUseCloseLeavesNothing) {
  settle();
  const char* const full = std::getenv("SOFTHCA_APPS_FULL");
  const int cycles = full != nullptr && *full == '1' ? 1000 : 100;
  // The allocator finds out meanwhile which sizes come back again and again.
  for (int i = 0; i < 50 && !HasFailure(); ++i) open_use_close();
  const Left before;
  for (int i = 0; i < cycles && !HasFailure(); ++i) open_use_close();
  const Left after;
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(after.pinned_kb, 0);
  EXPECT_EQ(after.locked_kb, 0);
  // The allocator may still take a stretch of memory now and then, a sanitizer keeps some.
  if (kSanitizer) return;
  // What was in frames of the device comes back as a mapping of its own, with all its pages: until
  // the allocator has used each place once. A leak would be 12 MiB.
  const char* const memory = std::getenv("SOFTHCA_MEMORY");
  const bool has_frames = memory != nullptr && std::string(memory) == "frames";
  EXPECT_LE(after.mappings, before.mappings + (has_frames ? 60 : 2));
  EXPECT_LE(after.resident_kb, before.resident_kb + (has_frames ? 2048 : 1024));
}

// A program that opens, and forks a child that opens, and so on: a chain of daemons.
TEST(Cycles, AChainOfChildrenEachWithADeviceOfItsOwn) {
  if (kThreadSanitizer) GTEST_SKIP() << "TSan allows no thread in the child of one that has some";
  ForkedChild first([] {
    for (int generation = 0; generation < 5; ++generation) {
      auto* const pair = new Pair;
      HOLDS(pair->works(5));
      const pid_t child = fork();
      HOLDS(child >= 0);
      if (child == 0) continue;  // the child is the next
      int status = 1;
      HOLDS(waitpid(child, &status, 0) == child && status == 0);
      HOLDS(pair->works(5));
      delete pair;
      return 0;
    }
    return 0;
  });
  first.expect_exit(0);
  EXPECT_EQ(first.said(), "");
}

}  // namespace
}  // namespace verbs_test
