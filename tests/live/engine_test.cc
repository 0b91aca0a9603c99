// SOFTHCA_ENGINE: who drives the device.
#include <cerrno>
#include <cstdlib>

#include "connected_child.h"
#include "threads.h"

namespace verbs_test {
namespace {

class Engine : public ::testing::Test {
 protected:
  Engine() { setenv("SOFTHCA_LOCAL", "off", 1); }  // so that a target has something to do
  ~Engine() override {
    unsetenv("SOFTHCA_LOCAL");
    unsetenv("SOFTHCA_ENGINE");
  }
  void choose(const char* how) { setenv("SOFTHCA_ENGINE", how, 1); }

  // How a WRITE ends whose target waits for the test and calls nothing meanwhile.
  ibv_wc_status write_to_idle_target() {
    Talk talk;
    ForkedChild target = start_target(talk, [&](Endpoint&) {
      talk.to_target.take();
      return 0;
    });
    ibv_wc_status status = IBV_WC_GENERAL_ERR;
    {
      Endpoint end;
      EXPECT_TRUE(end.is_ready());
      const Address peer = connect_initiator(end, talk);
      EXPECT_TRUE(post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, 8), peer.start, peer.rkey));
      if (const auto done = end.wait()) status = done->status;
    }
    talk.to_target.give();
    target.expect_exit(0);
    return status;
  }
};

TEST_F(Engine, InlineHasNoThreadWhileNobodySleeps) {
  choose("inline");
  const int before = threads();
  Pair pair;
  EXPECT_TRUE(pair.works());
  EXPECT_EQ(threads(), before);
}

TEST_F(Engine, InlineWakesAProgramThatSleepsOnACompletionChannel) {
  choose("inline");
  const int before = threads();
  Options options;
  options.with_channel = true;
  Pair pair(options);
  ASSERT_TRUE(pair.is_connected());
  ASSERT_EQ(ibv_req_notify_cq(pair.a.cq, 0), 0);
  EXPECT_EQ(threads(), before + 1);
  ASSERT_TRUE(post_write(pair.a, pair.b.address(0), pair.b.mr->rkey, 5000));
  pollfd ready{pair.a.channel->fd, POLLIN, 0};
  ASSERT_EQ(poll(&ready, 1, 10'000), 1);
  ibv_cq* told = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(pair.a.channel, &told, &context), 0);
  ibv_ack_cq_events(told, 1);
  const auto done = pair.a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
}

TEST_F(Engine, InlineDoesNothingForATargetThatCallsNothing) {
  choose("inline");
  EXPECT_EQ(write_to_idle_target(), IBV_WC_RETRY_EXC_ERR);
}

TEST_F(Engine, ThreadDrivesForThoseWhoPollAndThoseWhoDoNot) {
  choose("thread");
  {
    const int before = threads();
    Pair pair;
    EXPECT_TRUE(pair.works());
    EXPECT_EQ(threads(), before + 1);
  }
  EXPECT_EQ(write_to_idle_target(), IBV_WC_SUCCESS);
}

// Two programs that spin and the threads of their devices, on however few processors.
TEST_F(Engine, NothingStarvesWhereBothEndsSpin) {
  for (const char* how : {"auto", "inline", "thread"}) {
    choose(how);
    Talk talk;
    ForkedChild target = start_target(talk, [&](Endpoint& end) {
      volatile unsigned char* const last = end.buffer.data() + 4999;
      ibv_wc wc;
      for (long spins = 0; *last != 200 && spins < 2'000'000'000; ++spins)
        if (ibv_poll_cq(end.cq, 1, &wc) < 0) return 2;
      return *last == 200 ? 0 : 3;
    });
    {
      Endpoint end;
      ASSERT_TRUE(end.is_ready());
      const Address peer = connect_initiator(end, talk);
      for (unsigned char round = 1; round <= 200; ++round) {
        std::fill_n(end.buffer.begin(), 5000, round);
        ASSERT_TRUE(post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, 5000), peer.start, peer.rkey));
        const auto done = end.wait();
        ASSERT_TRUE(done && done->status == IBV_WC_SUCCESS) << how;
      }
    }
    target.expect_exit(0);
  }
}

TEST(Settings, AWordThatMeansNothingKeepsTheDeviceFromBeingOpened) {
  const char* const wrong[][2] = {{"SOFTHCA_ENGINE", "steam"},      {"SOFTHCA_LOCAL", "somehow"},
                                  {"SOFTHCA_ECN", "loud"},          {"SOFTHCA_PIN", "glue"},
                                  {"SOFTHCA_CNP_INTERVAL", "soon"}, {"SOFTHCA_STRICT", "very"}};
  for (const auto& [variable, word] : wrong) {
    setenv(variable, word, 1);
    ::testing::internal::CaptureStderr();
    errno = 0;
    EXPECT_EQ(open_first(), nullptr) << variable;
    EXPECT_EQ(errno, EINVAL) << variable;
    unsetenv(variable);
    const std::string line = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(line.find(std::string(variable) + " is \"" + word + "\""), std::string::npos) << line;
    EXPECT_NE(line.find("setting_unknown"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace verbs_test
