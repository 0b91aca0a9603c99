// Completion channels and asynchronous events.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <string>
#include <thread>

#include "endpoint.h"

namespace verbs_test {
namespace {

bool readable(int fd, int timeout_ms) {
  pollfd watched{fd, POLLIN, 0};
  return ::poll(&watched, 1, timeout_ms) == 1;
}

void make_non_blocking(int fd) {
  ASSERT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

// A receive that comes back flushed as soon as the queue pair is sent to ERR.
void flush_one(Endpoint& end) {
  ASSERT_EQ(end.to_init(), 0);
  ibv_sge sge = end.sge(0, 8);
  ibv_recv_wr receive{};
  receive.sg_list = &sge;
  receive.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(end.qp, &receive, &bad), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE), 0);
}

class ChannelTest : public ::testing::Test {
 protected:
  ChannelTest() : end(with_channel()) {}
  void SetUp() override { ASSERT_TRUE(end.is_ready()); }
  static Options with_channel() {
    Options options;
    options.with_channel = true;
    return options;
  }
  // One that is not acknowledged, of a queue that nothing uses any more.
  void take_an_event() {
    ASSERT_EQ(ibv_req_notify_cq(end.cq, 0), 0);
    flush_one(end);
    void* context = nullptr;
    ASSERT_EQ(ibv_get_cq_event(end.channel, &cq, &context), 0);
    ASSERT_EQ(ibv_destroy_qp(end.qp), 0);
    end.qp = nullptr;
  }
  Endpoint end;
  ibv_cq* cq = nullptr;  // that the event was of
};

TEST_F(ChannelTest, IsReadableOnceAnArmedQueueHasACompletion) {
  ASSERT_EQ(ibv_req_notify_cq(end.cq, 0), 0);
  EXPECT_FALSE(readable(end.channel->fd, 0));
  flush_one(end);
  ASSERT_TRUE(readable(end.channel->fd, 10'000));
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(end.channel, &cq, &context), 0);
  EXPECT_EQ(cq, end.cq);
  EXPECT_EQ(context, &end);
  EXPECT_FALSE(readable(end.channel->fd, 0));
  ibv_ack_cq_events(cq, 1);
  const auto wc = end.wait();
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(ChannelTest, SaysNothingAboutAQueueThatIsNotArmed) {
  flush_one(end);
  ASSERT_TRUE(end.wait());
  EXPECT_FALSE(readable(end.channel->fd, 0));
}

TEST_F(ChannelTest, AnswersEagainOnceItIsNonBlocking) {
  make_non_blocking(end.channel->fd);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  errno = 0;
  EXPECT_EQ(ibv_get_cq_event(end.channel, &cq, &context), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(ChannelTest, StaysWhileAQueueUsesIt) {
  EXPECT_EQ(end.channel->refcnt, 1);
  EXPECT_EQ(ibv_destroy_comp_channel(end.channel), EBUSY);
}

TEST_F(ChannelTest, DropsEventsOfAQueueThatGoes) {
  ASSERT_EQ(ibv_req_notify_cq(end.cq, 0), 0);
  flush_one(end);
  ASSERT_TRUE(readable(end.channel->fd, 10'000));
  ASSERT_EQ(ibv_destroy_qp(end.qp), 0);
  ASSERT_EQ(ibv_destroy_cq(end.cq), 0);
  end.qp = nullptr;
  end.cq = nullptr;
  EXPECT_FALSE(readable(end.channel->fd, 0));
}

TEST_F(ChannelTest, KeepsAQueueUntilItsEventsAreAcknowledged) {
  ASSERT_NO_FATAL_FAILURE(take_an_event());
  auto destroyed = std::async(std::launch::async, [&] { return ibv_destroy_cq(end.cq); });
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  ibv_ack_cq_events(cq, 1);
  ASSERT_EQ(destroyed.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(destroyed.get(), 0);
  end.cq = nullptr;
}

// CASES C35: after a second it says so, which is what is tested: no event comes before.
TEST_F(ChannelTest, SaysWhatADestroyWaitsForAndWhereThatWasObtained) {
  ASSERT_NO_FATAL_FAILURE(take_an_event());
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const int own_stderr = ::dup(STDERR_FILENO);
  ASSERT_GE(::dup2(pipe_ends[1], STDERR_FILENO), 0);
  const std::string name = "ibv_destroy_cq(cq " + std::to_string(cq->handle) + "): ";
  auto destroyed = std::async(std::launch::async, [&] { return ibv_destroy_cq(end.cq); });
  const bool told = readable(pipe_ends[0], 10'000);
  ::dup2(own_stderr, STDERR_FILENO);
  ibv_ack_cq_events(cq, 1);
  EXPECT_EQ(destroyed.get(), 0);
  end.cq = nullptr;
  std::string line(4096, '\0');
  ASSERT_TRUE(told);
  line.resize(static_cast<std::size_t>(::read(pipe_ends[0], line.data(), line.size())));
  for (const int fd : {pipe_ends[0], pipe_ends[1], own_stderr}) ::close(fd);
  for (const std::string& part :
       {name + "events_unacknowledged", std::string("Waiting for 1 unacknowledged event"),
        std::string("obtained at ibverbs_test"), std::string("Remedy: Call ibv_ack_cq_events")})
    EXPECT_NE(line.find(part), std::string::npos) << line;
}

TEST_F(ChannelTest, WakesAThreadThatWaits) {
  ASSERT_EQ(ibv_req_notify_cq(end.cq, 0), 0);
  auto event = std::async(std::launch::async, [&] {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    const int result = ibv_get_cq_event(end.channel, &cq, &context);
    if (result == 0) ibv_ack_cq_events(cq, 1);
    return result;
  });
  flush_one(end);
  ASSERT_EQ(event.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(event.get(), 0);
}

TEST(AsyncEvents, AnswersEagainOnceNonBlocking) {
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  make_non_blocking(context->async_fd);
  ibv_async_event event{};
  errno = 0;
  EXPECT_EQ(ibv_get_async_event(context, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST(AsyncEvents, CancelsAThreadThatWaits) {
#ifdef SOFTHCA_SANITIZED
  GTEST_SKIP() << "sanitizers do not follow the unwinding of a cancelled thread";
#endif
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  pthread_t waiting{};
  const auto wait = [](void* opened) -> void* {
    ibv_async_event event{};
    ibv_get_async_event(static_cast<ibv_context*>(opened), &event);
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&waiting, nullptr, wait, context), 0);
  ASSERT_EQ(pthread_cancel(waiting), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(waiting, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST(AsyncEvents, TellTheTargetOfARefusedAccess) {
  Endpoint a;
  Endpoint b;
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  connect(a, b);
  if (HasFatalFailure()) return;
  ibv_sge sge = a.sge(0, 8);
  ibv_send_wr send{};
  send.sg_list = &sge;
  send.num_sge = 1;
  send.opcode = IBV_WR_RDMA_WRITE;
  send.send_flags = IBV_SEND_SIGNALED;
  send.wr.rdma.remote_addr = b.address(0);
  send.wr.rdma.rkey = b.mr->rkey ^ 1;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &send, &bad), 0);
  const auto wc = a.wait();
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_NE(wc->vendor_err, 0u);
  ASSERT_TRUE(readable(b.context->async_fd, 10'000));
  ibv_async_event event{};
  ASSERT_EQ(ibv_get_async_event(b.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(event.element.qp, b.qp);
  auto destroyed = std::async(std::launch::async, [&] { return ibv_destroy_qp(b.qp); });
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  ibv_ack_async_event(&event);
  ASSERT_EQ(destroyed.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(destroyed.get(), 0);
  b.qp = nullptr;
}

}  // namespace
}  // namespace verbs_test
