// Completion events and asynchronous events: which, when, and how often.
#include <fcntl.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "pair.h"

namespace conformance {
namespace {

// An event that is there, or will be within ten seconds; nothing after that.
std::optional<ibv_async_event> next_event(ibv_context* context) {
  const int flags = ::fcntl(context->async_fd, F_GETFL);
  ::fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::optional<ibv_async_event> found;
  ibv_async_event event{};
  while (!found && std::chrono::steady_clock::now() < deadline) {
    if (ibv_get_async_event(context, &event) == 0)
      found = event;
    else
      std::this_thread::yield();
  }
  ::fcntl(context->async_fd, F_SETFL, flags);
  return found;
}

bool has_event(ibv_comp_channel* channel) {
  const int flags = ::fcntl(channel->fd, F_GETFL);
  ::fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  const bool has = ibv_get_cq_event(channel, &cq, &context) == 0;
  ::fcntl(channel->fd, F_SETFL, flags);
  if (has) ibv_ack_cq_events(cq, 1);
  return has;
}

class Arming : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    verbs_test::connect(a, b);
  }
  // A message to b, and whether its completion raised an event there.
  bool raises_event(const Send& send) {
    EXPECT_EQ(post_receive(b, 1), 0);
    EXPECT_EQ(post(a, send), 0);
    EXPECT_TRUE(a.wait());
    EXPECT_TRUE(b.wait());
    return has_event(b.channel);
  }

  Endpoint a{Options{.with_channel = true}};
  Endpoint b{Options{.with_channel = true}};
};

// CASES C37, its six cases.
TEST_F(Arming, ForSolicitedOnlyHearsSolicitedAndFailedOnes) {
  ASSERT_EQ(ibv_req_notify_cq(a.cq, 1), 0);
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 1), 0);
  EXPECT_FALSE(raises_event({}));
  EXPECT_FALSE(has_event(a.channel)) << "a successful send";
  EXPECT_TRUE(raises_event({.flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED}));
  EXPECT_FALSE(raises_event({.flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED})) << "not armed";
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 1), 0);
  Send write = write_to(b, 1);
  write.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  write.flags |= IBV_SEND_SOLICITED;
  EXPECT_TRUE(raises_event(write));
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 1), 0);
  ASSERT_EQ(post_receive(b, 2), 0);
  ASSERT_EQ(move(b, IBV_QPS_ERR), 0);
  ASSERT_TRUE(b.wait());
  EXPECT_TRUE(has_event(b.channel)) << "a flushed receive";
}

TEST_F(Arming, TwiceHearsWhatEitherAskedFor) {
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 0), 0);
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 1), 0);
  EXPECT_TRUE(raises_event({}));
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 1), 0);
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 0), 0);
  EXPECT_TRUE(raises_event({}));
  EXPECT_FALSE(raises_event({})) << "one event for each arming";
}

// man ibv_req_notify_cq: only a completion that comes afterwards raises an event.
TEST_F(Arming, SaysNothingAboutWhatIsThereAlready) {
  ASSERT_EQ(post_receive(b, 1), 0);
  ASSERT_EQ(post(a, {}), 0);
  ASSERT_TRUE(a.wait());
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 0), 0);
  EXPECT_FALSE(has_event(b.channel));
  EXPECT_TRUE(b.wait());
}

// CASES C35: who destroys waits for who has not acknowledged.
TEST_F(Arming, DestroyingWaitsForAcknowledgements) {
  ASSERT_EQ(ibv_destroy_qp(b.qp), 0);
  b.qp = nullptr;
  ASSERT_EQ(ibv_req_notify_cq(a.cq, 0), 0);
  ASSERT_EQ(move(a, IBV_QPS_ERR), 0);
  ASSERT_EQ(post(a, {}), 0);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(a.channel, &cq, &context), 0);
  ASSERT_EQ(cq, a.cq);
  EXPECT_EQ(context, &a);
  ASSERT_EQ(ibv_destroy_qp(a.qp), 0);
  a.qp = nullptr;
  std::atomic<bool> acknowledged{false};
  std::thread destroyer([&] {
    EXPECT_EQ(ibv_destroy_cq(a.cq), 0);
    EXPECT_TRUE(acknowledged.load());
    a.cq = nullptr;
  });
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  acknowledged = true;
  ibv_ack_cq_events(cq, 1);
  destroyer.join();
}

// CASES C36: never silent: the queue says so on its context, its queue pairs fail.
TEST(AsyncEvent, AnOverrunCompletionQueueSaysSo) {
  Endpoint a({.requests = 64}), b({.requests = 64});
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  ASSERT_EQ(ibv_destroy_qp(a.qp), 0);
  ibv_cq* const small = ibv_create_cq(a.context, 4, nullptr, nullptr, 0);
  ASSERT_NE(small, nullptr);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = small;
  wanted.recv_cq = a.cq;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {64, 1, 1, 1, 0};
  a.qp = ibv_create_qp(a.pd, &wanted);
  ASSERT_NE(a.qp, nullptr);
  verbs_test::connect(a, b);
  for (std::uint64_t id = 0; id < 64; ++id)
    if (post(a, write_to(b, id)) != 0) break;
  bool cq_failed = false, qp_failed = false;
  for (int i = 0; i < 2; ++i) {
    auto event = next_event(a.context);
    ASSERT_TRUE(event);
    cq_failed |= event->event_type == IBV_EVENT_CQ_ERR && event->element.cq == small;
    qp_failed |= event->event_type == IBV_EVENT_QP_FATAL && event->element.qp == a.qp;
    ibv_ack_async_event(&*event);
  }
  EXPECT_TRUE(cq_failed);
  EXPECT_TRUE(qp_failed);
  EXPECT_EQ(a.state(), IBV_QPS_ERR);
  ASSERT_EQ(ibv_destroy_qp(a.qp), 0);
  a.qp = nullptr;
  EXPECT_EQ(ibv_destroy_cq(small), 0);
}

// CASES C49: the side that only owns the memory hears of it too.
TEST(AsyncEvent, ARefusedAccessIsToldToTheTarget) {
  for (const bool with_immediate : {false, true}) {
    Endpoint a, b;
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    verbs_test::connect(a, b);
    ASSERT_EQ(post_receive(b, 7), 0);
    Send send = write_to(b, 1);
    send.rkey ^= 0xff00;
    if (with_immediate) send.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    ASSERT_EQ(post(a, send), 0);
    ASSERT_TRUE(a.wait());
    const auto receive = b.wait();
    ASSERT_TRUE(receive);
    EXPECT_EQ(receive->wr_id, 7u);
    EXPECT_EQ(b.state(), IBV_QPS_ERR);
    if (with_immediate) {  // the error rides on the receive that it would have taken
      EXPECT_NE(receive->status, IBV_WC_WR_FLUSH_ERR);
      EXPECT_NE(receive->status, IBV_WC_SUCCESS);
      continue;
    }
    EXPECT_EQ(receive->status, IBV_WC_WR_FLUSH_ERR);
    auto event = next_event(b.context);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->event_type, IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(event->element.qp, b.qp);
    ibv_ack_async_event(&*event);
  }
}

// IBTA 11.6.3.1: the first message may be there before the program has been told to go to RTS.
TEST(AsyncEvent, TheFirstMessageInRtrIsTold) {
  Endpoint a, b;
  ASSERT_TRUE(a.is_ready() && b.is_ready());
  for (Endpoint* end : {&a, &b}) ASSERT_EQ(end->to_init(), 0);
  ASSERT_EQ(a.to_rtr(b.gid(), b.qp->qp_num), 0);
  ASSERT_EQ(b.to_rtr(a.gid(), a.qp->qp_num), 0);
  ASSERT_EQ(a.to_rts(), 0);
  ASSERT_EQ(post_receive(b, 1), 0);
  ASSERT_EQ(post(a, {}), 0);
  ASSERT_TRUE(a.wait());
  ASSERT_TRUE(b.wait());
  auto event = next_event(b.context);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_COMM_EST);
  EXPECT_EQ(event->element.qp, b.qp);
  ibv_ack_async_event(&*event);
}

}  // namespace
}  // namespace conformance
