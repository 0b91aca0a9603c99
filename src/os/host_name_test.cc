#include "os/host_name.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "os/self.h"

namespace softhca::os {
namespace {

std::string own_name(const char* what) {
  return "softhca-test/" + std::to_string(own_pid()) + "/" + what;
}

TEST(HostName, HasOneHolderAtATime) {
  auto holder = HostName::take(own_name("one"));
  ASSERT_TRUE(holder);
  const auto second = HostName::take(own_name("one"));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().number, EADDRINUSE);
  holder->release();
  EXPECT_FALSE(holder->is_held());
  EXPECT_TRUE(HostName::take(own_name("one")));
}

TEST(HostName, IsNotWaitedForWithoutEnd) {
  auto holder = HostName::take_in_time(own_name("moment"));
  ASSERT_TRUE(holder);
  EXPECT_FALSE(HostName::take_in_time(own_name("moment"), 2));
  holder->release();
  EXPECT_TRUE(HostName::take_in_time(own_name("moment"), 2));
}

TEST(HostName, MayBeAsLongAsLinuxAllows) {
  const std::string longest = own_name("") + std::string(kMaxHostName - own_name("").size(), 'x');
  auto holder = HostName::take(longest);
  ASSERT_TRUE(holder) << error_text(holder.error());
  EXPECT_EQ(host_names(longest), std::vector<std::string>{longest});
}

TEST(HostName, IsListedByItsPrefix) {
  auto a = HostName::take(own_name("list/a"));
  auto b = HostName::take(own_name("list/b"));
  auto c = HostName::take(own_name("lost/c"));
  ASSERT_TRUE(a && b && c);
  auto names = host_names(own_name("list/"));
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{own_name("list/a"), own_name("list/b")}));
}

TEST(HostName, IsListedOnceThoughItIsWatched) {
  auto holder = HostName::take(own_name("watched"));
  ASSERT_TRUE(holder);
  const auto watch = NameWatch::start(own_name("watched"));
  ASSERT_TRUE(watch);
  EXPECT_EQ(host_names(own_name("watched")), std::vector<std::string>{own_name("watched")});
}

TEST(NameWatch, NoticesThatANameIsGivenUp) {
  EXPECT_FALSE(NameWatch().is_over());
  EXPECT_EQ(NameWatch::start(own_name("given")).error().number, ECONNREFUSED);
  auto holder = HostName::take(own_name("given"));
  ASSERT_TRUE(holder);
  auto watch = NameWatch::start(own_name("given"));
  ASSERT_TRUE(watch);
  EXPECT_EQ(watch->uid(), own_uid());
  EXPECT_FALSE(watch->is_over());
  holder->release();
  EXPECT_TRUE(watch->is_over());
  watch->stop();
  EXPECT_FALSE(watch->is_running());
}

TEST(NameWatch, NoticesThatTheHolderOfAnotherUserIsKilled) {
  if (getuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  std::array<int, 2> ready{};
  ASSERT_EQ(pipe(ready.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto name = setresuid(65534, 65534, 65534) == 0
                          ? HostName::take("softhca-test/" + std::to_string(getppid()) + "/killed")
                          : HostName::take("");
    if (write(ready[1], "x", name ? 1 : 0) == 1) pause();
    _exit(1);
  }
  close(ready[1]);
  char byte = 0;
  const bool held = read(ready[0], &byte, 1) == 1;
  const auto watch = NameWatch::start(own_name("killed"));
  EXPECT_TRUE(held && watch);
  if (watch) {
    EXPECT_EQ(watch->uid(), 65534u);
    EXPECT_FALSE(watch->is_over());
  }
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  if (watch) {
    EXPECT_TRUE(watch->is_over());
  }
  close(ready[0]);
}

TEST(NameWatch, SaysWhenTooManyWatch) {
  auto holder = HostName::take(own_name("famous"));
  ASSERT_TRUE(holder);
  std::vector<NameWatch> watches;
  int error = 0;
  while (error == 0 && watches.size() < 1000) {
    auto watch = NameWatch::start(own_name("famous"));
    if (watch)
      watches.push_back(std::move(*watch));
    else
      error = watch.error().number;
  }
  EXPECT_EQ(error, EAGAIN);
  EXPECT_GE(watches.size(), 100u);
}

TEST(HostName, TakesAUidForOneUserUnlessTheNamespaceHasNoNumberForIt) {
  EXPECT_TRUE(names_one_user(own_uid() == 65534 ? 1 : own_uid()));
  EXPECT_TRUE(names_one_user(1));
}

TEST(HostName, TellsWhoHasIt) {
  const std::string name = "softhca-test/holder/" + std::to_string(own_pid());
  EXPECT_FALSE(holder_of(name));
  const auto held = HostName::take(name);
  ASSERT_TRUE(held);
  const auto holder = holder_of(name);
  ASSERT_TRUE(holder);
  EXPECT_EQ(holder->pid, own_pid());
  EXPECT_EQ(holder->uid, own_uid());
}

}  // namespace
}  // namespace softhca::os
