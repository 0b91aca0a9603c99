#include "os/poller.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "os/thread.h"

namespace softhca::os {
namespace {

class PollerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe(ends.data()), 0);
    reader_ = OwnedFd(ends[0]);
    writer_ = OwnedFd(ends[1]);
    auto opened = Poller::open();
    ASSERT_TRUE(opened);
    poller_ = std::make_unique<Poller>(std::move(*opened));
    ASSERT_TRUE(poller_->watch(reader_.get()));
  }
  void make_readable() { ASSERT_EQ(write(writer_.get(), "x", 1), 1); }
  std::size_t readable_now() { return poller_->wait(ready_, Duration{}).readable; }

  OwnedFd reader_;
  OwnedFd writer_;
  std::unique_ptr<Poller> poller_;
  std::array<int, 4> ready_{};
};

TEST_F(PollerTest, DoesNotReportWhatIsNotArmed) {
  make_readable();
  EXPECT_EQ(readable_now(), 0u);
  poller_->arm(reader_.get());
  EXPECT_EQ(readable_now(), 1u);
  EXPECT_EQ(ready_[0], reader_.get());
}

TEST_F(PollerTest, ReportsOnceForEachArming) {
  make_readable();
  poller_->arm(reader_.get());
  EXPECT_EQ(readable_now(), 1u);
  EXPECT_EQ(readable_now(), 0u);
  poller_->arm(reader_.get());
  EXPECT_EQ(readable_now(), 1u);
  poller_->arm(reader_.get());
  poller_->disarm(reader_.get());
  EXPECT_EQ(readable_now(), 0u);
}

TEST_F(PollerTest, ForgetsADescriptor) {
  poller_->arm(reader_.get());
  poller_->forget(reader_.get());
  make_readable();
  EXPECT_EQ(readable_now(), 0u);
}

TEST_F(PollerTest, RemembersAWakeThatCameBeforeTheWait) {
  poller_->wake();
  poller_->wake();
  EXPECT_TRUE(poller_->wait(ready_, seconds(10)).by_wake);
  EXPECT_FALSE(poller_->wait(ready_, Duration{}).by_wake);
}

TEST_F(PollerTest, IsWokenByAnotherThread) {
  auto thread = Thread::start("waker", [this] { poller_->wake(); });
  ASSERT_TRUE(thread);
  EXPECT_TRUE(poller_->wait(ready_, seconds(10)).by_wake);
}

TEST_F(PollerTest, LosesNothingForWantOfRoom) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const OwnedFd reader(ends[0]);
  const OwnedFd writer(ends[1]);
  ASSERT_TRUE(poller_->watch(reader.get()));
  ASSERT_EQ(write(writer.get(), "x", 1), 1);
  make_readable();
  poller_->arm(reader.get());
  poller_->arm(reader_.get());
  EXPECT_EQ(poller_->wait(std::span(ready_).first(1), Duration{}).readable, 1u);
  EXPECT_EQ(poller_->wait(std::span(ready_).first(1), Duration{}).readable, 1u);
  EXPECT_EQ(readable_now(), 0u);
}

}  // namespace
}  // namespace softhca::os
