#include "os/peer_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

#include "os/host_name.h"
#include "os/self.h"
#include "os/test_child.h"

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

// Whatever takes all memory of a process: its locks, or a core dump.
TEST(PeerTable, TakesNoMoreMemoryThanIsUsed) {
  const int status = run_in_child([] {
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) return kChildSkips;
    constexpr std::size_t kBytes = 16 << 20;
    const auto table = PeerTable::create("softhca-test", kBytes);
    if (!table) return kChildSkips;
    store_le(table->bytes(), 8000, 1u);
    struct stat file {};
    EXPECT_EQ(fstat(table->fd(), &file), 0);
    EXPECT_LT(file.st_blocks, 1000);

    char start[32];
    std::snprintf(start, sizeof start, "%" PRIxPTR "-",
                  reinterpret_cast<std::uintptr_t>(table->bytes().data()));
    std::ifstream mappings("/proc/self/smaps");
    std::string line;
    while (std::getline(mappings, line) && !line.starts_with(start)) {
    }
    while (std::getline(mappings, line) && !line.starts_with("VmFlags:")) {
    }
    EXPECT_NE(line.find(" dd"), std::string::npos) << line;
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  if (status == kChildSkips) GTEST_SKIP() << "may not lock so much memory";
  EXPECT_EQ(status, 0);
}

// A child that sleeps, with memory of its own where this process has its own.
struct Sleeper {
  explicit Sleeper(std::uint64_t& word) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
      word = 7;
      static_cast<void>(!write(ready[1], "", 1));
      for (;;) pause();
    }
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~Sleeper() { end(); }
  void end() {
    if (pid > 0) kill(pid, SIGKILL);
    if (pid > 0) waitpid(std::exchange(pid, 0), nullptr, 0);
  }
  pid_t pid{};
};

MemoryPiece piece_of_word(std::uint64_t& word) {
  return {reinterpret_cast<std::uintptr_t>(&word), sizeof word};
}

TEST(PeerMemory, IsReadAndWrittenWhileItsProcessSleeps) {
  static std::uint64_t word = 1;
  const Sleeper other(word);
  const auto pid = static_cast<std::uint32_t>(other.pid);
  std::uint64_t own = 0;
  const MemoryPiece here = piece_of_word(own);
  const MemoryPiece there = piece_of_word(word);
  ASSERT_TRUE(read_from(pid, {&there, 1}, {&here, 1}));
  EXPECT_EQ(own, 7u);
  own = 9;
  ASSERT_TRUE(write_to(pid, {&here, 1}, {&there, 1}));
  own = 0;
  ASSERT_TRUE(read_from(pid, {&there, 1}, {&here, 1}));
  EXPECT_EQ(own, 9u);
  EXPECT_EQ(word, 1u) << "this process has its own";
}

TEST(PeerMemory, ThatIsNotThereIsAnError) {
  static std::uint64_t word = 1;
  Sleeper other(word);
  const auto pid = static_cast<std::uint32_t>(other.pid);
  std::uint64_t own = 0;
  const MemoryPiece here = piece_of_word(own);
  const MemoryPiece nowhere{4096, 8};
  EXPECT_EQ(read_from(pid, {&nowhere, 1}, {&here, 1}).error().number, EFAULT);
  other.end();
  const MemoryPiece there = piece_of_word(word);
  EXPECT_EQ(write_to(pid, {&here, 1}, {&there, 1}).error().number, ESRCH);
}

TEST(HasFile, TellsWhetherAProcessIsStillTheOneItWas) {
  static std::uint64_t word = 1;
  auto table = PeerTable::create("softhca-test", 4096);
  ASSERT_TRUE(table);
  const std::uint64_t inode = identity_of(table->fd())->inode;
  const int fd = table->fd();
  EXPECT_TRUE(has_file(own_pid(), own_thread(), fd, inode));
  EXPECT_FALSE(has_file(own_pid(), own_thread(), fd, inode + 1));
  EXPECT_TRUE(has_file(own_pid(), fd, inode));
  EXPECT_FALSE(has_file(own_pid(), fd, inode + 1));
  Sleeper other(word);
  const auto pid = static_cast<std::uint32_t>(other.pid);
  EXPECT_TRUE(has_file(pid, pid, fd, inode));
  EXPECT_TRUE(has_file(pid, fd, inode));
  other.end();
  EXPECT_FALSE(has_file(pid, pid, fd, inode));
  EXPECT_FALSE(has_file(pid, fd, inode));
  table->close_file();
  EXPECT_FALSE(has_file(own_pid(), own_thread(), fd, inode));
}

}  // namespace
}  // namespace softhca::os
