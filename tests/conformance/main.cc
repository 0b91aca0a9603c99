// Runs on the first device that libibverbs lists; on ours that is loopback, with every page mapped
// on its own.
#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  ::setenv("SOFTHCA_NETDEV", "lo", 0);
  ::setenv("SOFTHCA_SCATTER", "1", 0);
  ::setenv("SOFTHCA_QUIET", "1", 0);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
