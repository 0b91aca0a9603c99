#include "os/append_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "os/random.h"

namespace softhca::os {
namespace {

class AppendFileTest : public ::testing::Test {
 protected:
  ~AppendFileTest() override { std::filesystem::remove(path_); }
  std::string content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static ConstBytes bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

  std::string path_ = ::testing::TempDir() + "softhca-append-" + std::to_string(random_seed());
};

TEST_F(AppendFileTest, WritesItsHeadOnceHoweverManyOpenIt) {
  const std::string head = "HEAD";
  const std::string record = "-record";
  for (int i = 0; i < 3; ++i) {
    auto file = AppendFile::open(path_, bytes(head));
    ASSERT_TRUE(file);
    EXPECT_TRUE(file->append(bytes(record)));
  }
  EXPECT_EQ(content(), "HEAD-record-record-record");
}

TEST_F(AppendFileTest, WritesItsHeadIntoAnEmptyFile) {
  { std::ofstream empty(path_); }
  const std::string head = "HEAD";
  ASSERT_TRUE(AppendFile::open(path_, bytes(head)));
  EXPECT_EQ(content(), "HEAD");
}

TEST_F(AppendFileTest, KeepsRecordsOfSeveralProcessesWhole) {
  constexpr int kWriters = 4;
  constexpr int kRecords = 200;
  std::array<pid_t, kWriters> children{};
  const std::string head = "HEAD";
  for (int i = 0; i < kWriters; ++i) {
    children[static_cast<std::size_t>(i)] = fork();
    if (children[static_cast<std::size_t>(i)] == 0) {
      auto file = AppendFile::open(path_, bytes(head));
      const std::string record(1000, static_cast<char>('a' + i));
      bool good = static_cast<bool>(file);
      for (int n = 0; good && n < kRecords; ++n) good = file->append(bytes(record));
      _exit(good ? 0 : 1);
    }
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const std::string all = content();
  ASSERT_EQ(all.size(), 4u + kWriters * kRecords * 1000u);
  EXPECT_TRUE(all.starts_with("HEAD"));
  for (std::size_t at = 4; at < all.size(); at += 1000)
    ASSERT_EQ(all.substr(at, 1000), std::string(1000, all[at]));
}

TEST_F(AppendFileTest, FailsWithTheReasonOfTheSystem) {
  const auto file = AppendFile::open("/nonexistent/softhca.pcap", {});
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().number, ENOENT);
}

}  // namespace
}  // namespace softhca::os
