// Runs on the loopback device, with every page mapped on its own.
#include <gtest/gtest.h>

#include <cstdlib>

#ifdef __SANITIZE_THREAD__
// Children of tests with threads have threads, too. TSan ends them unless it is told not to, since
// a lock of its own might be held at the fork; nothing runs beside the tests' forks.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

int main(int argc, char** argv) {
  ::setenv("SOFTHCA_NETDEV", "lo", 1);
  ::setenv("SOFTHCA_SCATTER", "1", 1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
