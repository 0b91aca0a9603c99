#include "pcie/config_space.h"

#include <gtest/gtest.h>

namespace softhca::pcie {
namespace {

TEST(ConfigSpace, StartsWithBusMasterClear) {
  ConfigSpace config;
  EXPECT_FALSE(config.bus_master());
  config.set_bus_master(true);
  EXPECT_TRUE(config.bus_master());
  EXPECT_EQ(config.command(), 0x0004);
  config.set_bus_master(false);
  EXPECT_EQ(config.command(), 0x0000);
}

TEST(ConfigSpace, KeepsOnlyTheBitsThatItImplements) {
  ConfigSpace config;
  config.write_command(0xffff);
  EXPECT_EQ(config.command(), 0x0406);
  config.set_bus_master(false);
  EXPECT_EQ(config.command(), 0x0402);
}

}  // namespace
}  // namespace softhca::pcie
