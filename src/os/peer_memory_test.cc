#include "os/peer_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/host_name.h"
#include "os/self.h"

namespace softhca::os {
namespace {

TEST(PeerTable, IsFoundAndChangedByAnotherProcess) {
  auto table = PeerTable::create("softhca-test", 8192);
  ASSERT_TRUE(table);
  const std::uint32_t pid = own_pid();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto seen = PeerTable::open(pid, table->fd(), "softhca-test", 8192);
    if (!seen) _exit(1);
    store_le(seen->bytes(), 8000, 0x1234u);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(load_le<std::uint32_t>(table->bytes(), 8000), 0x1234u);
}

TEST(PeerTable, IsNotWhateverElseHasThatNumber) {
  auto table = PeerTable::create("softhca-test", 8192);
  ASSERT_TRUE(table);
  const std::uint32_t pid = own_pid();
  EXPECT_FALSE(PeerTable::open(pid, table->fd(), "softhca-other", 8192));
  EXPECT_FALSE(PeerTable::open(pid, table->fd(), "softhca-test", 4096));
  EXPECT_FALSE(PeerTable::open(pid, 0, "softhca-test", 8192));
  EXPECT_FALSE(PeerTable::open(pid, 99999, "softhca-test", 8192));
  // The same name and size, but it could shrink under who maps it.
  const OwnedFd unsealed(memfd_create("softhca-test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_FALSE(PeerTable::open(pid, unsealed.get(), "softhca-test", 8192));
}

TEST(PeerTable, CannotBeShrunk) {
  auto table = PeerTable::create("softhca-test", 8192);
  ASSERT_TRUE(table);
  EXPECT_NE(ftruncate(table->fd(), 0), 0);
}

}  // namespace
}  // namespace softhca::os
