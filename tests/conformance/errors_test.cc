// What a failure does to a queue pair: which request fails, how, and what becomes of the rest.
#include <atomic>
#include <set>
#include <thread>

#include "pair.h"

namespace conformance {
namespace {

using Errors = Pair;

Send bad_write(const Endpoint& target, std::uint64_t id) {
  Send send = write_to(target, id);
  send.rkey ^= 0xff00;
  return send;
}

// CASES C28: whatever is posted after a failure completes too, in order, asked for or not.
TEST_F(Errors, EveryRequestPostedAfterAFailureIsFlushed) {
  ASSERT_EQ(post(a, write_to(b, 1)), 0);
  ASSERT_TRUE(a.wait());
  for (std::uint64_t id = 100; id < 200; ++id) {
    Send send = bad_write(b, id);
    send.flags = id % 2 == 0 ? IBV_SEND_SIGNALED : 0;
    ASSERT_EQ(post(a, send), 0);
    const auto done = a.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->wr_id, id);
    EXPECT_EQ(done->qp_num, a.qp->qp_num);
    EXPECT_EQ(done->status, id == 100 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR);
  }
  EXPECT_EQ(a.state(), IBV_QPS_ERR);
}

// The requests before the one that fails complete, and do so before it.
TEST_F(Errors, WhatWasPostedBeforeTheFailureCompletesFirst) {
  constexpr std::uint64_t kGood = 5, kBehind = 5;
  std::uint64_t id = 0;
  for (; id < kGood; ++id) ASSERT_EQ(post(a, write_to(b, id)), 0);
  ASSERT_EQ(post(a, bad_write(b, id++)), 0);
  // The failure may be there before these: then they are flushed just the same.
  for (; id < kGood + 1 + kBehind; ++id) ASSERT_EQ(post(a, write_to(b, id)), 0);
  for (std::uint64_t next = 0; next < id; ++next) {
    const auto done = a.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->wr_id, next);
    EXPECT_EQ(done->status, next < kGood    ? IBV_WC_SUCCESS
                            : next == kGood ? IBV_WC_REM_ACCESS_ERR
                                            : IBV_WC_WR_FLUSH_ERR);
  }
}

// CASES C29: a program that posts a marker to both queues of a failed queue pair learns by it that
// both are empty.
TEST_F(Errors, MarkersComeLastFromBothQueues) {
  constexpr std::uint64_t kReceives = 10, kSends = 10, kMarker = 1000;
  for (std::uint64_t id = 0; id < kReceives; ++id) ASSERT_EQ(post_receive(a, id), 0);
  ASSERT_EQ(move(b, IBV_QPS_RESET), 0);  // nobody answers any more
  for (std::uint64_t id = 100; id < 100 + kSends; ++id) ASSERT_EQ(post(a, write_to(b, id)), 0);
  ASSERT_EQ(move(a, IBV_QPS_ERR), 0);
  ASSERT_EQ(post_receive(a, kMarker), 0);
  ASSERT_EQ(post(a, {.id = kMarker + 1}), 0);
  std::vector<std::uint64_t> receives, sends;
  for (std::uint64_t i = 0; i < kReceives + kSends + 2; ++i) {
    const auto done = a.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_WR_FLUSH_ERR);
    const bool is_receive = done->wr_id < kReceives || done->wr_id == kMarker;
    (is_receive ? receives : sends).push_back(done->wr_id);
  }
  EXPECT_TRUE(std::is_sorted(receives.begin(), receives.end()));
  EXPECT_TRUE(std::is_sorted(sends.begin(), sends.end()));
  EXPECT_EQ(receives.back(), kMarker);
  EXPECT_EQ(sends.back(), kMarker + 1);
  EXPECT_TRUE(drain(a).empty());
}

// CASES C22: no message is delivered twice, and every receive ends once, whenever the queue pair
// fails.
TEST(ErrorsUnderTraffic, NothingIsDeliveredTwiceWhenAQueuePairFails) {
  for (unsigned round = 0; round < 30; ++round) {
    Endpoint sender({.requests = 64}), receiver({.requests = 64});
    ASSERT_TRUE(sender.is_ready() && receiver.is_ready());
    verbs_test::connect(sender, receiver);
    constexpr std::uint64_t kMessages = 60;
    for (std::uint64_t id = 0; id < kMessages; ++id) ASSERT_EQ(post_receive(receiver, id), 0);
    std::atomic<bool> go{false};
    std::thread flipper([&] {
      while (!go.load()) std::this_thread::yield();
      for (unsigned i = 0; i < round * 10; ++i) std::this_thread::yield();
      EXPECT_EQ(move(receiver, IBV_QPS_ERR), 0);
    });
    go = true;
    for (std::uint64_t id = 0; id < kMessages; ++id) {
      const int posted = post(sender, {.id = id});
      if (posted != 0) break;
    }
    flipper.join();
    std::set<std::uint64_t> ended;
    bool flushed = false;
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      const auto done = receiver.wait();
      ASSERT_TRUE(done);
      EXPECT_TRUE(ended.insert(done->wr_id).second) << "receive " << done->wr_id << " ended twice";
      EXPECT_TRUE(done->status == IBV_WC_SUCCESS || done->status == IBV_WC_WR_FLUSH_ERR);
      EXPECT_FALSE(flushed && done->status == IBV_WC_SUCCESS) << "a success behind a flush";
      flushed |= done->status == IBV_WC_WR_FLUSH_ERR;
    }
    EXPECT_TRUE(drain(receiver).empty());
  }
}

// CASES C30: of an error completion these mean something, in every run the same.
TEST(ErrorCompletion, SaysTheSameEveryTime) {
  std::vector<ibv_wc> seen;
  for (int run = 0; run < 2; ++run) {
    Endpoint sender, receiver;
    ASSERT_TRUE(sender.is_ready() && receiver.is_ready());
    verbs_test::connect(sender, receiver);
    ASSERT_EQ(post(sender, bad_write(receiver, 7)), 0);
    const auto done = sender.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->qp_num, sender.qp->qp_num);
    seen.push_back(*done);
  }
  EXPECT_EQ(seen[0].wr_id, 7u);
  EXPECT_EQ(seen[0].status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(seen[1].status, seen[0].status);
  EXPECT_EQ(seen[1].vendor_err, seen[0].vendor_err);
}

// A queue pair that was reset knows nothing of before and can be connected again.
TEST_F(Errors, AResetForgetsEverything) {
  ASSERT_EQ(post(a, bad_write(b, 1)), 0);
  ASSERT_TRUE(a.wait());
  for (std::uint64_t id = 0; id < 4; ++id) ASSERT_EQ(post_receive(a, id), 0);
  for (Endpoint* end : {&a, &b}) {
    ASSERT_EQ(move(*end, IBV_QPS_RESET), 0);
    EXPECT_TRUE(drain(*end).empty());
  }
  verbs_test::connect(a, b);
  ASSERT_EQ(post_receive(b, 9), 0);
  ASSERT_EQ(post(a, {.id = 8}), 0);
  const auto sent = a.wait(), received = b.wait();
  ASSERT_TRUE(sent && received);
  EXPECT_EQ(sent->status, IBV_WC_SUCCESS);
  EXPECT_EQ(received->wr_id, 9u);
}

// Each way to be refused, at the requester: status, and that the queue pair has failed.
TEST(ErrorStatus, NamesTheKindOfRefusal) {
  struct Case {
    const char* what;
    void (*break_it)(Endpoint& from, Endpoint& to, Send& send);
    ibv_wc_status status;
  };
  constexpr Case kCases[] = {
      {"a key that is not one", [](Endpoint&, Endpoint&, Send& s) { s.rkey = 0xdeadbeef; },
       IBV_WC_REM_ACCESS_ERR},
      {"one byte in front", [](Endpoint&, Endpoint& to, Send& s) { s.remote = to.address(0) - 1; },
       IBV_WC_REM_ACCESS_ERR},
      {"one byte behind",
       [](Endpoint&, Endpoint& to, Send& s) { s.remote = to.address(0) + to.buffer.size() - 7; },
       IBV_WC_REM_ACCESS_ERR},
      {"an address that wraps", [](Endpoint&, Endpoint&, Send& s) { s.remote = ~0ull - 3; },
       IBV_WC_REM_ACCESS_ERR},
      {"a local range that is not registered",
       [](Endpoint& from, Endpoint&, Send& s) {
         s.bytes = static_cast<std::uint32_t>(from.buffer.size()) + 1;
       },
       IBV_WC_LOC_PROT_ERR},
      {"a receive that is too small",
       [](Endpoint&, Endpoint& to, Send& s) {
         s = {.bytes = 100};
         ASSERT_EQ(post_receive(to, 1, 99), 0);
       },
       IBV_WC_REM_INV_REQ_ERR},
  };
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.what);
    Endpoint from, to;
    ASSERT_TRUE(from.is_ready() && to.is_ready());
    verbs_test::connect(from, to);
    Send send = write_to(to, 3);
    one.break_it(from, to, send);
    const verbs_test::Buffer before = to.buffer;
    ASSERT_EQ(post(from, send), 0);
    const auto done = from.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, one.status) << ibv_wc_status_str(done->status);
    EXPECT_EQ(from.state(), IBV_QPS_ERR);
    if (one.status == IBV_WC_REM_ACCESS_ERR) {
      EXPECT_EQ(to.buffer, before);
    }
  }
}

// A receive that a message does not fit into tells its own side so (IBTA C9-150).
TEST_F(Errors, AReceiveThatIsTooSmallTellsBothSides) {
  ASSERT_EQ(post_receive(b, 5, 16), 0);
  ASSERT_EQ(post_receive(b, 6, 16), 0);
  ASSERT_EQ(post(a, {.bytes = 17}), 0);
  const auto first = b.wait(), second = b.wait();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->wr_id, 5u);
  EXPECT_EQ(first->status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(second->wr_id, 6u);
  EXPECT_EQ(second->status, IBV_WC_WR_FLUSH_ERR);
  const auto sent = a.wait();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->status, IBV_WC_REM_INV_REQ_ERR);
}

}  // namespace
}  // namespace conformance
