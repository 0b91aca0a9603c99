// softhca-sysfs.so in front of libc, as `softhca run` puts it: what programs find under
// /sys/class/infiniband, by every call that they may use.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "endpoint.h"

extern "C" int ibv_read_sysfs_file(const char* directory, const char* file, char* text,
                                   std::size_t size);

namespace verbs_test {
namespace {

const std::string kRoot = "/sys/class/infiniband";
const std::string kDevice = kRoot + "/softhca0";
const std::string kPort = kDevice + "/ports/1";

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string read_from(int fd) {
  char text[256];
  const ssize_t bytes = ::read(fd, text, sizeof text);
  return {text, bytes > 0 ? static_cast<std::size_t>(bytes) : 0};
}

std::vector<std::string> names_in(DIR* folder) {
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder)) names.emplace_back(entry->d_name);
  return names;
}

struct stat described(int result, const struct stat& found) {
  EXPECT_EQ(result, 0) << std::strerror(errno);
  return found;
}

TEST(Sysfs, ListsTheDeviceThatVerbsList) {
  DIR* const folder = ::opendir(kRoot.c_str());
  ASSERT_NE(folder, nullptr);
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{".", "..", "softhca0"}));
  EXPECT_EQ(::readdir(folder), nullptr);
  ::rewinddir(folder);
  ::readdir(folder);
  ::readdir(folder);
  const long behind_dots = ::telldir(folder);
  ::readdir(folder);
  ::seekdir(folder, behind_dots);
  const dirent* const entry = ::readdir(folder);
  ASSERT_NE(entry, nullptr);
  EXPECT_STREQ(entry->d_name, "softhca0");
  EXPECT_EQ(entry->d_type, DT_DIR);
  EXPECT_EQ(::closedir(folder), 0);
}

TEST(Sysfs, ListsByEveryOtherCall) {
  dirent** list = nullptr;
  const int count = ::scandir((kDevice + "/device").c_str(), &list, nullptr, alphasort);
  ASSERT_EQ(count, 4);
  EXPECT_STREQ(list[2]->d_name, "net");
  EXPECT_STREQ(list[3]->d_name, "numa_node");
  for (int i = 0; i < count; ++i) std::free(list[i]);
  std::free(list);
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kDevice))
    files += entry.is_regular_file() ? 1 : 0;
  EXPECT_GT(files, 30u);
}

TEST(Sysfs, SaysWhatVerbsAnswer) {
  ibv_context* const context = open_first();
  ASSERT_NE(context, nullptr);
  ibv_device_attr attr{};
  ASSERT_EQ(ibv_query_device(context, &attr), 0);
  EXPECT_EQ(text_of(kDevice + "/fw_ver"), std::string(attr.fw_ver) + "\n");
  EXPECT_EQ(text_of(kPort + "/state"), "4: ACTIVE\n");
  EXPECT_EQ(text_of(kPort + "/gids/0"), "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
  EXPECT_EQ(text_of(kPort + "/gid_attrs/ndevs/0"), "lo\n");
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST(Sysfs, IsTheSameByLibibverbs) {
  char text[64] = {};
  EXPECT_EQ(ibv_read_sysfs_file(kDevice.c_str(), "board_id", text, sizeof text), 7);
  EXPECT_STREQ(text, "SoftHCA");
  EXPECT_EQ(ibv_read_sysfs_file(kPort.c_str(), "link_layer", text, 3), 3);
  EXPECT_EQ(ibv_read_sysfs_file(kDevice.c_str(), "ports", text, sizeof text), -1);
  EXPECT_EQ(errno, EISDIR);
  EXPECT_EQ(ibv_read_sysfs_file("/proc/self", "comm", text, sizeof text), 10);
  EXPECT_STREQ(text, "sysfs_test");
}

TEST(Sysfs, DescribesAFileAlikeByPathAndByDescriptor) {
  for (const std::string& path : {kPort + "/state", kPort, kDevice + "/device/net"}) {
    struct stat found {};
    const struct stat by_path = described(::stat(path.c_str(), &found), found);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0) << path;
    for (const struct stat& other :
         {described(::lstat(path.c_str(), &found), found), described(::fstat(fd, &found), found),
          described(::fstatat(fd, "", &found, AT_EMPTY_PATH), found)}) {
      EXPECT_EQ(other.st_mode, by_path.st_mode);
      EXPECT_EQ(other.st_ino, by_path.st_ino);
      EXPECT_EQ(other.st_dev, by_path.st_dev);
      EXPECT_EQ(other.st_size, by_path.st_size);
    }
    struct statx wide {};
    ASSERT_EQ(::statx(AT_FDCWD, path.c_str(), 0, STATX_BASIC_STATS, &wide), 0);
    EXPECT_EQ(wide.stx_ino, by_path.st_ino);
    EXPECT_EQ(wide.stx_mode, by_path.st_mode);
    EXPECT_EQ(::close(fd), 0);
  }
}

TEST(Sysfs, GoesOnFromAnOpenFolder) {
  const int folder = ::open(kPort.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(folder, 0);
  EXPECT_NE(::fcntl(folder, F_GETFD) & FD_CLOEXEC, 0);
  const int file = ::openat(folder, "../1/link_layer", O_RDONLY);
  ASSERT_GE(file, 0);
  EXPECT_EQ(::fcntl(file, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(read_from(file), "Ethernet\n");
  EXPECT_EQ(read_from(file), "");
  struct stat found {};
  EXPECT_EQ(::fstatat(folder, "gids", &found, 0), 0);
  EXPECT_TRUE(S_ISDIR(found.st_mode));
  EXPECT_EQ(::faccessat(folder, "rate", R_OK, 0), 0);
  char target[64] = {};
  EXPECT_GT(::readlinkat(folder, "../../device/net/lo", target, sizeof target - 1), 0);
  EXPECT_STREQ(target, "/sys/class/net/lo");
  DIR* const listed = ::fdopendir(folder);
  ASSERT_NE(listed, nullptr);
  EXPECT_EQ(::dirfd(listed), folder);
  const auto names = names_in(listed);
  EXPECT_NE(std::ranges::find(names, "hw_counters"), names.end());
  EXPECT_EQ(::closedir(listed), 0);
  EXPECT_EQ(::close(folder), -1);
  EXPECT_EQ(::close(file), 0);
}

TEST(Sysfs, LeadsToTheInterface) {
  struct stat found {};
  ASSERT_EQ(::lstat((kDevice + "/device/net/lo").c_str(), &found), 0);
  EXPECT_TRUE(S_ISLNK(found.st_mode));
  char* const real = ::realpath((kPort + "/../1//gids/").c_str(), nullptr);
  ASSERT_NE(real, nullptr);
  EXPECT_EQ(real, kPort + "/gids");
  std::free(real);
  if (::access("/sys/class/net/lo/mtu", R_OK) != 0) GTEST_SKIP() << "no sysfs here";
  EXPECT_EQ(text_of(kDevice + "/device/net/lo/mtu"), text_of("/sys/class/net/lo/mtu"));
  EXPECT_EQ(text_of(kDevice + "/../../net/lo/mtu"), text_of("/sys/class/net/lo/mtu"));
  EXPECT_LT(::open((kDevice + "/device/net/lo/subsystem").c_str(), O_RDONLY | O_NOFOLLOW), 0);
  EXPECT_EQ(errno, ELOOP);
}

TEST(Sysfs, RefusesAsTheKernelDoes) {
  const auto refused = [](const std::string& path, int flags) {
    const int fd = ::open(path.c_str(), flags, 0600);
    return fd < 0 ? errno : 0;
  };
  EXPECT_EQ(refused(kRoot + "/mlx5_0", O_RDONLY), ENOENT);
  EXPECT_EQ(refused(kPort + "/state/x", O_RDONLY), ENOTDIR);
  EXPECT_EQ(refused(kPort + "/state", O_RDONLY | O_DIRECTORY), ENOTDIR);
  EXPECT_EQ(refused(kPort + "/state", O_RDWR), EACCES);
  EXPECT_EQ(refused(kPort, O_WRONLY), EISDIR);
  EXPECT_EQ(refused(kDevice + "/device/net/lo", O_RDONLY | O_NOFOLLOW), ELOOP);
  EXPECT_EQ(::opendir((kPort + "/state").c_str()), nullptr);
  EXPECT_EQ(errno, ENOTDIR);
  EXPECT_EQ(::access((kPort + "/state").c_str(), W_OK), -1);
  EXPECT_EQ(::access((kPort + "/state").c_str(), R_OK), 0);
  EXPECT_EQ(std::fopen((kPort + "/state").c_str(), "w"), nullptr);
  char target[8];
  EXPECT_EQ(::readlink(kPort.c_str(), target, sizeof target), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(Sysfs, LeavesOtherFilesAlone) {
  EXPECT_EQ(text_of("/proc/self/comm"), "sysfs_test\n");
  EXPECT_EQ(::open("/sys/class/infiniband_none", O_RDONLY), -1);
  EXPECT_EQ(errno, ENOENT);
  const int file = ::open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(::openat(file, "below", O_RDONLY), -1);
  EXPECT_EQ(errno, ENOTDIR);
  EXPECT_EQ(::fdopendir(file), nullptr);
  EXPECT_EQ(errno, ENOTDIR);
  ::close(file);
}

TEST(Sysfs, CountsWhatThisProcessesDeviceMoved) {
  ::setenv("SOFTHCA_LOCAL", "off", 1);  // what goes without packets is not of the port
  const int counter = ::open((kPort + "/counters/port_xmit_data").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(counter, 0);
  Endpoint a, b;
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  ::unsetenv("SOFTHCA_LOCAL");
  connect(a, b);
  const auto before = std::stoull(read_from(counter));
  ASSERT_EQ(::lseek(counter, 0, SEEK_SET), 0);
  ibv_sge sge = a.sge(0, 40'000);
  ibv_send_wr wr = write_to(b, sge, IBV_SEND_SIGNALED);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  ASSERT_TRUE(a.wait());
  const auto after = std::stoull(read_from(counter));
  EXPECT_GT(after, before + 40'000 / 4);
  EXPECT_LT(after, before + 50'000 / 4);
  char text[32] = {};
  ASSERT_GT(::pread(counter, text, sizeof text - 1, 0), 0);
  EXPECT_GE(std::stoull(text), after);
  ::close(counter);
}

}  // namespace
}  // namespace verbs_test
