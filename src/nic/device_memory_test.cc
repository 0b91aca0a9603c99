#include "nic/device_memory.h"

#include <gtest/gtest.h>

#include <array>

namespace softhca::nic {
namespace {

TEST(DeviceMemory, IsZeroWhenItIsAllocatedAgain) {
  DeviceMemory memory;
  const auto first = memory.allocate(16, 1);
  ASSERT_TRUE(first);
  std::array<std::byte, 16> bytes;
  bytes.fill(std::byte{0xab});
  memory.write(*first, bytes);
  memory.release(*first);
  const auto second = memory.allocate(16, 1);
  ASSERT_EQ(second, first);
  memory.read(*second, bytes);
  for (const std::byte byte : bytes) EXPECT_EQ(byte, std::byte{0});
}

TEST(DeviceMemory, GivesOutAllOfItAndNotOneByteMore) {
  DeviceMemory memory;
  EXPECT_FALSE(memory.allocate(kDeviceMemoryBytes + 1, 1));
  const auto all = memory.allocate(kDeviceMemoryBytes, 1);
  ASSERT_TRUE(all);
  EXPECT_FALSE(memory.allocate(1, 1));
  memory.release(*all);
  EXPECT_EQ(memory.bytes_in_use(), 0u);
}

TEST(DeviceMemory, FillsGapsAndKeepsToAlignments) {
  DeviceMemory memory;
  const auto first = memory.allocate(100, 4);
  const auto second = memory.allocate(100, 64);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*second % 64, 0u);
  EXPECT_GE(*second, *first + 100);
  memory.release(*first);
  const auto larger = memory.allocate(200, 4);
  ASSERT_TRUE(larger);
  EXPECT_GE(*larger, *second + 100) << "overlaps what is taken";
  const auto fits = memory.allocate(60, 4);
  ASSERT_TRUE(fits);
  EXPECT_EQ(*fits, *first);
}

}  // namespace
}  // namespace softhca::nic
