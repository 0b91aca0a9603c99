// Runs on the loopback device, with every page mapped on its own.
#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  ::setenv("SOFTHCA_NETDEV", "lo", 1);
  ::setenv("SOFTHCA_SCATTER", "1", 1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
