#include "os/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

namespace softhca::os {
namespace {

TEST(SharedMemory, IsZeroedAndSharedWithWhoeverAttaches) {
  auto memory = SharedMemory::create("test", std::size_t{1} << 34);  // sparse
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->bytes().size(), std::size_t{1} << 34);
  EXPECT_EQ(memory->bytes()[123], std::byte{0});
  auto view = SharedMemory::attach(OwnedFd(::dup(memory->fd())));
  ASSERT_TRUE(view);
  EXPECT_FALSE(view->writable());
  memory->bytes()[5000] = std::byte{9};
  EXPECT_EQ(view->read_only_bytes()[5000], std::byte{9});
  EXPECT_EQ(view->read_only_bytes().size(), memory->bytes().size());
  EXPECT_EQ(::fcntl(memory->fd(), F_GETFD), FD_CLOEXEC);
}

TEST(SharedMemory, OutlivesItsCreatorInTheHandsOfAnother) {
  auto memory = SharedMemory::create("test", 4096);
  ASSERT_TRUE(memory);
  memory->bytes()[0] = std::byte{4};
  auto view = SharedMemory::attach(OwnedFd(::dup(memory->fd())));
  ASSERT_TRUE(view);
  const SharedMemory moved = std::move(*memory);
  { const SharedMemory gone = SharedMemory(std::move(const_cast<SharedMemory&>(moved))); }
  EXPECT_EQ(view->read_only_bytes()[0], std::byte{4});
}

TEST(SharedMemory, RefusesWhatIsNoMemory) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const OwnedFd other(ends[1]);
  const auto attached = SharedMemory::attach(OwnedFd(ends[0]));
  ASSERT_FALSE(attached);
  EXPECT_EQ(attached.error(), EINVAL);
  EXPECT_EQ(::fcntl(ends[0], F_GETFD), -1);  // owned, and closed
  const auto none = SharedMemory::attach(OwnedFd());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error(), EBADF);
}

TEST(SharedMemory, OfAFileIsWhatTheFileHoldsAndGrowsAsItIsMadeUsable) {
  const auto path =
      std::filesystem::temp_directory_path() / ("softhca_memory_" + std::to_string(::getpid()));
  auto memory = SharedMemory::create_file(path, 1 << 20, 4096);
  ASSERT_TRUE(memory);
  EXPECT_EQ(std::filesystem::file_size(path), 4096u);
  auto again = SharedMemory::create_file(path, 1 << 20, 4096);
  ASSERT_TRUE(again);
  EXPECT_TRUE(std::filesystem::remove(path.string() + ".2")) << "the first one is left alone";
  ASSERT_TRUE(memory->make_usable(8192, 4096));
  memory->bytes()[8192] = std::byte{'x'};
  std::ifstream file(path);
  EXPECT_EQ(file.seekg(8192).get(), 'x');
  memory->cut(8193);
  EXPECT_EQ(std::filesystem::file_size(path), 8193u);
  memory->abandon();
  memory->bytes()[8192] = std::byte{'y'};
  EXPECT_EQ(file.seekg(8192).get(), 'x');
  EXPECT_FALSE(memory->make_usable(0, 4096));
  std::filesystem::remove(path);
}

TEST(SharedMemory, KeepsItsSize) {
  auto memory = SharedMemory::create("softhca-test", 8192);
  ASSERT_TRUE(memory);
  EXPECT_TRUE(memory->is_sealed());
  EXPECT_NE(::ftruncate(memory->fd(), 4096), 0);
  memory->close_file();
  memory->bytes()[8191] = std::byte{1};
  EXPECT_EQ(memory->read_only_bytes()[8191], std::byte{1});
}

}  // namespace
}  // namespace softhca::os
