#include "os/owned_fd.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "os/shared_memory.h"

namespace softhca::os {
namespace {

TEST(FileIdentity, IsThatOfTheFileAndNotOfTheDescriptor) {
  const auto one = SharedMemory::create("one", 4096);
  const auto other = SharedMemory::create("other", 4096);
  ASSERT_TRUE(one && other);
  const auto first = identity_of(one->fd());
  const auto again = identity_of(one->fd());
  const auto second = identity_of(other->fd());
  ASSERT_TRUE(first && again && second);
  EXPECT_EQ(first->inode, again->inode);
  EXPECT_EQ(first->device, again->device);
  EXPECT_NE(first->inode, second->inode);
}

TEST(FileIdentity, AClosedDescriptorHasNone) {
  const auto none = identity_of(-1);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().number, EBADF);
}

}  // namespace
}  // namespace softhca::os
