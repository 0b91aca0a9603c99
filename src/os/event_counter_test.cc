#include "os/event_counter.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>

namespace softhca::os {
namespace {

bool readable(const EventCounter& counter) {
  pollfd watched{counter.fd(), POLLIN, 0};
  return ::poll(&watched, 1, 0) == 1 && (watched.revents & POLLIN) != 0;
}

TEST(EventCounter, IsReadableExactlyWhileSomethingWaits) {
  auto counter = EventCounter::open();
  ASSERT_TRUE(counter);
  EXPECT_FALSE(readable(*counter));
  counter->give();
  counter->give();
  EXPECT_TRUE(readable(*counter));
  EXPECT_TRUE(counter->take());
  EXPECT_TRUE(readable(*counter));
  EXPECT_TRUE(counter->take());
  EXPECT_FALSE(readable(*counter));
}

TEST(EventCounter, AnswersEagainOnceTheProgramMadeItNonBlocking) {
  auto counter = EventCounter::open();
  ASSERT_TRUE(counter);
  EXPECT_FALSE(counter->is_non_blocking());
  ASSERT_EQ(::fcntl(counter->fd(), F_SETFL, ::fcntl(counter->fd(), F_GETFL) | O_NONBLOCK), 0);
  const auto taken = counter->take();
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().number, EAGAIN);
  EXPECT_TRUE(counter->is_non_blocking());
}

TEST(EventCounter, TakesIfAnyWithoutBlockingAndLeavesTheModeAlone) {
  auto counter = EventCounter::open();
  ASSERT_TRUE(counter);
  const int flags = ::fcntl(counter->fd(), F_GETFL);
  EXPECT_FALSE(counter->take_if_any());
  counter->give();
  EXPECT_TRUE(counter->take_if_any());
  EXPECT_FALSE(counter->take_if_any());
  EXPECT_EQ(::fcntl(counter->fd(), F_GETFL), flags);
}

TEST(EventCounter, IsClosedOnExec) {
  auto counter = EventCounter::open();
  ASSERT_TRUE(counter);
  EXPECT_NE(::fcntl(counter->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

}  // namespace
}  // namespace softhca::os
