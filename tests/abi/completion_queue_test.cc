// Completion queues: created in every way, resized, moderated, and the times of completions.
#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <thread>

#include "endpoint.h"

namespace verbs_test {
namespace {

bool has_event(ibv_comp_channel* channel, int timeout_ms) {
  pollfd watched{channel->fd, POLLIN, 0};
  return ::poll(&watched, 1, timeout_ms) == 1;
}

bool post_empty_write(Endpoint& from, Endpoint& to, std::uint64_t id,
                      unsigned flags = IBV_SEND_SIGNALED) {
  ibv_send_wr wr{};
  wr.wr_id = id;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = flags;
  wr.wr.rdma.remote_addr = to.address(0);
  wr.wr.rdma.rkey = to.mr->rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(from.qp, &wr, &bad) == 0;
}

std::uint64_t time_of_day_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

class ChangedQueue : public ::testing::Test {
 protected:
  ChangedQueue() : a(options()), b(options()) {}
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    connect(a, b);
  }
  static Options options() {
    Options options;
    options.with_channel = true;
    return options;
  }
  // Writes that are done, and whose completions nobody has polled: once the queue has taken as many
  // more as it has room for, it is done with these. Driving goes by b's queue, which stays empty.
  void complete(int count, std::uint64_t first_id = 0) {
    for (int i = 0; i < count; ++i)
      ASSERT_TRUE(post_empty_write(a, b, first_id + static_cast<std::uint64_t>(i)));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (std::uint32_t posted = 0; posted < options().requests;) {
      ibv_wc wc{};
      if (post_empty_write(a, b, 0, 0)) ++posted;
      ASSERT_EQ(ibv_poll_cq(b.cq, 1, &wc), 0);
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    }
  }

  Endpoint a;
  Endpoint b;
};

TEST_F(ChangedQueue, KeepsWhatWasNotPolledInOrderWhenItIsResized) {  // CASES C32
  complete(5);
  EXPECT_EQ(ibv_resize_cq(a.cq, 4), EINVAL);
  ASSERT_EQ(ibv_resize_cq(a.cq, 200), 0);
  EXPECT_GE(a.cq->cqe, 200);
  ASSERT_EQ(ibv_resize_cq(a.cq, 8), 0);
  EXPECT_EQ(a.cq->cqe, 8);
  for (std::uint64_t id = 0; id < 5; ++id) {
    const auto wc = a.wait();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, id);
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
  }
  ASSERT_EQ(ibv_resize_cq(a.cq, 1), 0);
  for (std::uint64_t id = 0; id < 20; ++id) {
    ASSERT_TRUE(post_empty_write(a, b, id));
    const auto wc = a.wait();
    ASSERT_TRUE(wc);
    EXPECT_EQ(wc->wr_id, id);
  }
}

TEST_F(ChangedQueue, RefusesSizesThatItCannotHave) {
  ibv_device_attr attr{};
  ASSERT_EQ(ibv_query_device(a.context, &attr), 0);
  EXPECT_EQ(ibv_resize_cq(a.cq, 0), EINVAL);
  EXPECT_EQ(ibv_resize_cq(a.cq, attr.max_cqe + 1), EINVAL);
  EXPECT_EQ(ibv_resize_cq(a.cq, attr.max_cqe), 0);
}

TEST_F(ChangedQueue, LosesNothingWhileAnotherThreadResizesIt) {  // CASES C32
  std::atomic<bool> stop{false};
  std::thread resizer([&] {
    // Each takes the device; not so many that nothing else is done.
    for (int round = 0; round < 300 && !stop.load(); ++round)
      ibv_resize_cq(a.cq, round % 2 == 0 ? 16 : 4096);
  });
  std::uint64_t posted = 0, polled = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (polled < 2000 && std::chrono::steady_clock::now() < deadline) {
    while (posted < 2000 && posted - polled < 8 && post_empty_write(a, b, posted)) ++posted;
    ibv_wc wc{};
    if (ibv_poll_cq(a.cq, 1, &wc) != 1) continue;
    if (wc.wr_id != polled || wc.status != IBV_WC_SUCCESS) break;
    ++polled;
  }
  stop.store(true);
  resizer.join();
  EXPECT_EQ(polled, 2000u);
}

TEST_F(ChangedQueue, HoldsAnEventBackUntilThereAreAsManyCompletions) {
  ibv_modify_cq_attr attr{};
  attr.attr_mask = IBV_CQ_ATTR_MODERATE;
  attr.moderate = {3, 0xffff};
  ASSERT_EQ(ibv_modify_cq(a.cq, &attr), 0);
  ASSERT_EQ(ibv_req_notify_cq(a.cq, 0), 0);
  complete(4);
  ASSERT_TRUE(has_event(a.channel, 10'000));
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(a.channel, &cq, &context), 0);
  ibv_ack_cq_events(cq, 1);
  EXPECT_FALSE(has_event(a.channel, 0)) << "not armed any more";
}

TEST_F(ChangedQueue, GivesAnEventWhenItsTimeHasComeThoughNothingFollows) {
  ibv_modify_cq_attr attr{};
  attr.attr_mask = IBV_CQ_ATTR_MODERATE;
  attr.moderate = {1000, 2000};
  ASSERT_EQ(ibv_modify_cq(a.cq, &attr), 0);
  ASSERT_EQ(ibv_req_notify_cq(a.cq, 0), 0);
  ASSERT_TRUE(post_empty_write(a, b, 7));
  EXPECT_TRUE(has_event(a.channel, 10'000));
}

TEST_F(ChangedQueue, GivesAHeldEventAtOnceWhenModerationEnds) {
  ibv_modify_cq_attr attr{};
  attr.attr_mask = IBV_CQ_ATTR_MODERATE;
  attr.moderate = {1000, 0xffff};
  ASSERT_EQ(ibv_modify_cq(a.cq, &attr), 0);
  ASSERT_EQ(ibv_req_notify_cq(a.cq, 0), 0);
  complete(2);
  attr.moderate = {0, 0};
  ASSERT_EQ(ibv_modify_cq(a.cq, &attr), 0);
  EXPECT_TRUE(has_event(a.channel, 10'000));
}

TEST_F(ChangedQueue, KnowsNoOtherAttributeToModify) {
  ibv_modify_cq_attr attr{};
  EXPECT_EQ(ibv_modify_cq(a.cq, &attr), EINVAL);
  attr.attr_mask = IBV_CQ_ATTR_MODERATE | IBV_CQ_ATTR_RESERVED;
  EXPECT_EQ(ibv_modify_cq(a.cq, &attr), EINVAL);
}

// Another queue for `a`, of which a program can ask more.
class ExtendedQueue : public ChangedQueue {
 protected:
  void make(std::uint64_t members, std::uint32_t flags, std::uint32_t entries = 16) {
    ibv_cq_init_attr_ex wanted{};
    wanted.cqe = entries;
    wanted.wc_flags = members;
    wanted.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    wanted.flags = flags;
    cq = ibv_create_cq_ex(a.context, &wanted);
    ASSERT_NE(cq, nullptr);
    ASSERT_EQ(ibv_destroy_qp(a.qp), 0);
    ASSERT_EQ(ibv_destroy_cq(a.cq), 0);
    a.cq = ibv_cq_ex_to_cq(cq);
    ibv_qp_init_attr wanted_qp{};
    wanted_qp.send_cq = wanted_qp.recv_cq = a.cq;
    wanted_qp.qp_type = IBV_QPT_RC;
    wanted_qp.cap = {16, 16, 1, 1, 0};
    a.qp = ibv_create_qp(a.pd, &wanted_qp);
    ASSERT_NE(a.qp, nullptr);
    ibv_qp_attr reset{};
    reset.qp_state = IBV_QPS_RESET;
    ASSERT_EQ(ibv_modify_qp(b.qp, &reset, IBV_QP_STATE), 0);
    connect(a, b);
  }
  bool start() {
    ibv_poll_cq_attr none{};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < deadline)
      if (const int found = ibv_start_poll(cq, &none); found != ENOENT) return found == 0;
    return false;
  }
  ibv_cq_ex* cq = nullptr;
};

TEST_F(ExtendedQueue, StampsCompletionsWithTheDevicesClock) {
  ASSERT_NO_FATAL_FAILURE(make(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, 0));
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(a.context, nullptr, &attr), 0);
  EXPECT_NE(attr.hca_core_clock, 0u);
  EXPECT_EQ(attr.completion_timestamp_mask, ~std::uint64_t{0});
  const auto clock = [&] {
    ibv_values_ex values{};
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    EXPECT_EQ(ibv_query_rt_values_ex(a.context, &values), 0);
    EXPECT_EQ(values.comp_mask, std::uint32_t{IBV_VALUES_MASK_RAW_CLOCK});
    return static_cast<std::uint64_t>(values.raw_clock.tv_nsec);
  };
  std::uint64_t before = clock();
  for (std::uint64_t id = 0; id < 3; ++id) {
    ASSERT_TRUE(post_empty_write(a, b, id));
    ASSERT_TRUE(start());
    const std::uint64_t stamp = ibv_wc_read_completion_ts(cq);
    ibv_end_poll(cq);
    EXPECT_GE(stamp, before);
    before = clock();
    EXPECT_LE(stamp, before);
  }
}

TEST_F(ExtendedQueue, StampsCompletionsWithTheTimeOfDay) {
  ASSERT_NO_FATAL_FAILURE(make(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, 0));
  constexpr std::uint64_t kSlack = 1'000'000;  // the two clocks are read one after the other
  const std::uint64_t before = time_of_day_ns();
  ASSERT_TRUE(post_empty_write(a, b, 1));
  ASSERT_TRUE(start());
  const std::uint64_t stamp = ibv_wc_read_completion_wallclock_ns(cq);
  ibv_end_poll(cq);
  EXPECT_GE(stamp, before - kSlack);
  EXPECT_LE(stamp, time_of_day_ns() + kSlack);
}

TEST_F(ExtendedQueue, FailsWhereNoRoomIsLeft) {  // CASES C36
  ASSERT_NO_FATAL_FAILURE(make(0, 0, 2));
  for (std::uint64_t id = 0; id < 4; ++id) ASSERT_TRUE(post_empty_write(a, b, id));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (a.state() != IBV_QPS_ERR) ASSERT_LT(std::chrono::steady_clock::now(), deadline);
}

TEST_F(ExtendedQueue, LosesCompletionsWhereNoRoomIsLeftIfItIsToldNotToMind) {
  ASSERT_NO_FATAL_FAILURE(make(0, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, 2));
  complete(4);
  for (std::uint64_t id = 0; id < 2; ++id) {
    ASSERT_TRUE(start());
    EXPECT_EQ(cq->wr_id, id);
    ibv_end_poll(cq);
  }
  EXPECT_EQ(a.state(), IBV_QPS_RTS);
}

TEST_F(ExtendedQueue, RefusesMembersAndFlagsThatItDoesNotKnow) {
  ibv_cq_init_attr_ex wanted{};
  wanted.cqe = 4;
  wanted.wc_flags = IBV_WC_EX_WITH_CVLAN;
  EXPECT_EQ(ibv_create_cq_ex(a.context, &wanted), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  wanted.wc_flags = 0;
  wanted.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  wanted.flags = 1 << 7;
  EXPECT_EQ(ibv_create_cq_ex(a.context, &wanted), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_values_ex values{};
  values.comp_mask = 2;
  EXPECT_EQ(ibv_query_rt_values_ex(a.context, &values), EINVAL);
}

}  // namespace
}  // namespace verbs_test
