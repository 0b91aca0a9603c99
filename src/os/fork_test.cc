#include "os/fork.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "os/self.h"
#include "os/shared_memory.h"
#include "os/test_child.h"

namespace softhca::os {
namespace {

TEST(Lineage, DiffersFromThatOfEveryAncestor) {
  const std::uint64_t own = lineage();
  EXPECT_NE(own, 0u);
  EXPECT_EQ(lineage(), own);
  const int wrong = run_in_child([&] {
    const std::uint64_t child = lineage();
    if (child == own || own_pid() != static_cast<std::uint32_t>(::getpid())) return 1;
    return run_in_child([&] { return lineage() == own || lineage() == child ? 2 : 0; });
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(lineage(), own);
  EXPECT_EQ(own_pid(), static_cast<std::uint32_t>(::getpid()));
}

constinit ForkMutex g_mutex;
constinit int g_first = 0;  // under g_mutex: equal
constinit int g_second = 0;

TEST(ForkMutex, IsFreeInTheChildAndWhatItGuardsIsWhole) {
  static const bool hooked = on_fork({.before = [] { g_mutex.lock_for_fork(); },
                                      .in_parent = [] { g_mutex.unlock_after_fork(); },
                                      .in_child = [] { g_mutex.unlock_after_fork(); }});
  ASSERT_TRUE(hooked);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load()) {
      const std::lock_guard held(g_mutex);
      ++g_first;
      ++g_second;
    }
  });
  int wrong = 0;
  for (int i = 0; i < 20; ++i)
    wrong += run_in_child([] {
      if (!g_mutex.try_lock()) return 1;
      return g_first == g_second ? 0 : 2;
    });
  // Whoever is inside may fork too, and stays inside.
  {
    const std::lock_guard held(g_mutex);
    wrong += run_in_child([] {
      if (g_mutex.try_lock()) return 1;
      g_mutex.unlock();
      return g_mutex.try_lock() ? 0 : 2;
    });
  }
  stop.store(true);
  other.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(g_mutex.try_lock());
  g_mutex.unlock();
}

TEST(SharedMemory, ThatAChildAbandonsStaysAsItWasInTheParent) {
  auto memory = SharedMemory::create("softhca-test", 8192);
  ASSERT_TRUE(memory);
  memory->bytes()[0] = std::byte{7};
  const int wrong = run_in_child([&] {
    memory->abandon();
    const bool zero = memory->bytes()[0] == std::byte{0};
    memory->bytes()[0] = memory->bytes()[8191] = std::byte{9};
    return zero && memory->fd() == -1 ? 0 : 1;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(memory->bytes()[0], std::byte{7});
  EXPECT_EQ(memory->bytes()[8191], std::byte{0});
}

}  // namespace
}  // namespace softhca::os
