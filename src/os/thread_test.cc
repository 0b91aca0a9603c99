#include "os/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <array>
#include <chrono>
#include <future>
#include <memory>

namespace softhca::os {
namespace {

TEST(Thread, RunsWithAllSignalsBlockedUnderItsName) {
  sigset_t mask;
  std::array<char, 32> name{};
  auto thread = Thread::start("softhca-with-a-long-name", [&] {
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    pthread_getname_np(pthread_self(), name.data(), name.size());
  });
  ASSERT_TRUE(thread);
  thread->join();
  EXPECT_FALSE(thread->is_running());
  for (const int signal : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1, SIGPROF})
    EXPECT_EQ(sigismember(&mask, signal), 1) << signal;
  EXPECT_STREQ(name.data(), "softhca-with-a-");
}

TEST(Thread, LeavesTheMaskOfItsStarterAlone) {
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  auto thread = Thread::start("t", [] {});
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal)
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  EXPECT_TRUE(thread);
}

TEST(Thread, JoinsWhenItsOwnerGoes) {
  bool ran = false;
  {
    auto thread = Thread::start("t", [&] { ran = true; });
  }
  EXPECT_TRUE(ran);
}

TEST(Thread, ThatIsLetGoEndsWithoutItsOwner) {
  const auto may_end = std::make_shared<std::promise<void>>();
  const auto ends = std::make_shared<std::promise<void>>();
  const std::future<void> ended = ends->get_future();
  {
    auto thread = Thread::start("t", [may_end, ends] {
      may_end->get_future().wait();
      ends->set_value();
    });
    ASSERT_TRUE(thread);
    thread->let_go();
    EXPECT_FALSE(thread->is_running());
  }  // and nobody has joined it here, since it still waits
  EXPECT_EQ(ended.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  may_end->set_value();
  EXPECT_EQ(ended.wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST(Thread, HasAStackOfModestSizeWhateverTheProgramsDefaultIs) {
  std::size_t bytes = 0;
  auto thread = Thread::start("t", [&] {
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstacksize(&attributes, &bytes);
    pthread_attr_destroy(&attributes);
  });
  ASSERT_TRUE(thread);
  thread->join();
  EXPECT_GE(bytes, std::size_t{256} << 10);
  EXPECT_LE(bytes, std::size_t{2} << 20);
}

TEST(Thread, KnowsItself) {
  Thread thread;
  EXPECT_FALSE(thread.is_current());
  auto started = Thread::start("t", [] {});
  ASSERT_TRUE(started);
  thread = std::move(*started);
  EXPECT_TRUE(thread.is_running());
  EXPECT_FALSE(thread.is_current());
}

}  // namespace
}  // namespace softhca::os
