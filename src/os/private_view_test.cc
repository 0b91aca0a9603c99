#include "os/private_view.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "os/test_child.h"

namespace softhca::os {
namespace {

namespace fs = std::filesystem;

class PrivateView : public ::testing::Test {
 protected:
  PrivateView() {
    char name[] = "/tmp/private-view.XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder = name;
    fs::create_directories(folder + "/other/inner");
  }
  ~PrivateView() override { fs::remove_all(folder); }

  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Whether seen() is true in a process that has the view.
  template <class Seen>
  static bool in_view(const std::string& of, Seen&& seen) {
    return run_in_child([&] {
             const uid_t user = ::getuid();
             const auto refusal =
                 enter_private_view(of, {{.path = "a/b", .text = "text\n"},
                                         {.path = "l", .text = "a/b", .is_link = true}});
             return !refusal && ::getuid() == user && seen() ? 0 : 1;
           }) == 0;
  }

  std::string folder;
};

TEST_F(PrivateView, CoversAFolderForThisProcessOnly) {
  if (!try_private_view(folder).works()) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_TRUE(in_view(folder, [&] {
    return text_of(folder + "/a/b") == "text\n" && text_of(folder + "/l") == "text\n" &&
           !fs::exists(folder + "/other") && ::open((folder + "/x").c_str(), O_CREAT, 0600) < 0;
  }));
  EXPECT_FALSE(fs::exists(folder + "/a"));
  EXPECT_TRUE(fs::exists(folder + "/other/inner"));
}

TEST_F(PrivateView, AddsAFolderWhereThereIsNone) {
  if (!try_private_view(folder).works()) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_TRUE(in_view(folder + "/new", [&] {
    return text_of(folder + "/new/a/b") == "text\n" && fs::exists(folder + "/other/inner");
  }));
  EXPECT_FALSE(fs::exists(folder + "/new"));
}

TEST_F(PrivateView, SaysWhatWasRefused) {
  EXPECT_EQ(run_in_child([&] {
              const auto refusal = enter_private_view(folder + "/none/new", {});
              return refusal && refusal->error != 0 && !refusal->step.empty() ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace softhca::os
