// Shared receive queues: who takes, who is told, and what is left behind.
#include "pair.h"

namespace softhca::sim {
namespace {

using driver::AsyncEventType;
using trace::ReasonId;
using transport::QpAttribute;
using transport::QpState;
using transport::Status;
using transport::WorkOpcode;

// Two senders on host 0, each with a peer on host 1; the peers share a queue of receives.
struct Shared {
  static constexpr std::uint32_t kReceiveBytes = 256;

  explicit Shared(std::uint32_t requests = 8) {
    driver::Engine& engine = world.host(1).engine();
    pd = *engine.alloc_pd();
    srq = *engine.create_srq({.pd = pd, .capacity = {requests, 2}, .events = &srq_events}, now());
    for (std::size_t i = 0; i < 2; ++i) {
      ConnectionSettings settings;
      settings.srq_b = srq;
      settings.pd_b = pd;
      settings.timeout = 10;
      settings.events_b = &events[i];
      ends[i] = connect(world, world.host(0), world.host(1), settings);
      source[i] = make_buffer(ends[i].a);
    }
    target = make_buffer(ends[0].b);
  }

  Time now() const { return world.now(); }
  driver::Engine& engine() { return world.host(1).engine(); }

  Buffer make_buffer(const Connection::End& end) {
    const VirtAddr start = end.host->allocate(kBufferBytes);
    end.host->fill(start, kBufferBytes, std::byte{0x11});
    const auto region =
        end.host->engine().register_memory(end.pd, start, kBufferBytes, {start.value},
                                           driver::AccessFlags::of_bits(kAllRights), now());
    return {end.host, start, region->key};
  }
  Result<void, trace::Reason> post_receive(std::uint64_t wr_id,
                                           std::uint32_t bytes = kReceiveBytes) {
    const std::array sges{target.sge(wr_id % 16 * kReceiveBytes, bytes)};
    return engine().post_receive(*srq, {wr_id, sges}, false, now());
  }
  void send(std::size_t from, std::uint32_t bytes = 8) {
    const std::array sges{source[from].sge(0, bytes)};
    driver::SendRequest request = remote_request(WorkOpcode::Send, sges, 0, {});
    request.flags |= driver::SendFlag::Signaled;
    ASSERT_TRUE(ends[from].a.host->engine().post_send(*ends[from].a.qp, request, false, now()));
  }
  std::vector<driver::Completion> received(std::size_t i) { return taken(*ends[i].b.cq); }
  std::vector<driver::Completion> sent(std::size_t i) { return taken(*ends[i].a.cq); }
  static std::vector<driver::Completion> taken(driver::CompletionQueue& cq) {
    std::vector<driver::Completion> all(64);
    all.resize(cq.poll(all));
    return all;
  }
  void to_error(std::size_t i) {
    transport::QpAttributes a;
    a.state = QpState::Error;
    ASSERT_TRUE(engine().modify_qp(*ends[i].b.qp, a, transport::QpAttributeMask(QpAttribute::State),
                                   now()));
  }
  static long count(const EventLog& log, AsyncEventType type) {
    return std::ranges::count(log.async, type, &EventLog::Async::type);
  }

  World world{WorldSettings{}};
  EventLog srq_events;
  EventLog events[2];
  std::uint32_t pd = 0;
  driver::SharedReceiveQueue* srq = nullptr;
  Connection ends[2];
  Buffer source[2];
  Buffer target;
};

TEST(SharedReceive, WhoeverReceivesTakesTheNextRequest) {
  Shared s;
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(s.post_receive(i));
  std::vector<std::uint64_t> taken;
  for (const std::size_t from : {1u, 0u, 0u, 1u}) {
    s.send(from, 100);
    s.world.pass(milliseconds(1));
    const auto done = s.received(from);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, Status::Success);
    EXPECT_EQ(done[0].qpn, s.ends[from].b.qp->qpn());
    EXPECT_EQ(done[0].byte_count, 100u);
    taken.push_back(done[0].wr_id);
  }
  EXPECT_EQ(taken, (std::vector<std::uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(s.srq->waiting(), 0u);
}

// A slot is free again as soon as the device has fetched it, long before its completion is polled.
TEST(SharedReceive, ASlotIsFreeOnceItsRequestIsTaken) {
  Shared s(2);
  ASSERT_EQ(s.srq->capacity().requests, 2u);
  for (std::uint64_t i = 0; i < 20; i += 2) {
    ASSERT_TRUE(s.post_receive(i));
    ASSERT_TRUE(s.post_receive(i + 1));
    const auto full = s.post_receive(99);
    ASSERT_FALSE(full);
    EXPECT_EQ(full.error().id, ReasonId::QueueFull);
    s.send(0);
    s.send(1);
    s.world.pass(milliseconds(1));
  }
  EXPECT_EQ(s.received(0).size() + s.received(1).size(), 20u);
}

TEST(SharedReceive, AnEmptyQueueMakesSendersWait) {
  Shared s;
  s.send(0);
  s.send(1);
  s.world.pass(milliseconds(5));
  EXPECT_TRUE(s.sent(0).empty());
  EXPECT_GT(s.world.host(1).counter(trace::Counter::RnrNaksSent), 1u);
  ASSERT_TRUE(s.post_receive(1));
  ASSERT_TRUE(s.post_receive(2));
  s.world.pass(seconds(1));
  EXPECT_EQ(s.received(0).size() + s.received(1).size(), 2u);
  EXPECT_EQ(s.sent(0).at(0).status, Status::Success);
  EXPECT_EQ(s.sent(1).at(0).status, Status::Success);
}

// CASES C71
TEST(SharedReceive, LastWqeReachedIsToldOncePerQueuePairThatFails) {
  Shared s;
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(s.post_receive(i));
  s.send(0);
  s.world.pass(milliseconds(1));
  s.to_error(0);
  s.world.pass(milliseconds(1));
  s.to_error(0);
  s.world.pass(milliseconds(1));
  EXPECT_EQ(Shared::count(s.events[0], AsyncEventType::LastWqeReached), 1);
  EXPECT_EQ(s.events[0].async.at(0).qp, s.ends[0].b.qp);
  EXPECT_TRUE(s.events[1].async.empty());
  EXPECT_EQ(s.received(0).size(), 1u);  // nothing of the shared queue is flushed
  EXPECT_EQ(s.srq->waiting(), 2u);
  s.send(1);
  s.world.pass(milliseconds(1));
  EXPECT_EQ(s.received(1).at(0).wr_id, 1u);
}

TEST(SharedReceive, AMessageThatIsCutOffComesBackFlushedBeforeTheLastWqeEvent) {
  Shared s;
  ASSERT_TRUE(s.post_receive(5, 4096));
  s.world.network().set_costs({.delay = microseconds(1), .ps_per_byte = 8000});
  s.send(0, 4096);
  // Its first packet has arrived, the others are on their way.
  const auto fetched = [&] { return s.srq->waiting() == 0; };
  ASSERT_TRUE(s.world.run_until(fetched, seconds(1)));
  s.to_error(0);
  ASSERT_TRUE(s.world.run_until([&] { return !s.events[0].async.empty(); }, seconds(1)));
  const auto done = s.received(0);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 5u);
  EXPECT_EQ(done[0].status, Status::Flushed);
  EXPECT_EQ(Shared::count(s.events[0], AsyncEventType::LastWqeReached), 1);
}

// IBTA 10.3.1: who destroys a queue pair without sending it to ERR first loses what it had taken.
TEST(SharedReceive, DestroyingAQueuePairInTheMiddleOfAMessageDropsThatReceiveOnly) {
  Shared s;
  ASSERT_TRUE(s.post_receive(5, 4096));
  ASSERT_TRUE(s.post_receive(6));
  s.world.network().set_costs({.delay = microseconds(1), .ps_per_byte = 8000});
  s.send(0, 4096);
  ASSERT_TRUE(s.world.run_until([&] { return s.srq->waiting() == 1; }, seconds(1)));
  ASSERT_TRUE(s.engine().destroy_qp(*s.ends[0].b.qp, s.now()));
  s.world.network().set_costs({});
  s.send(1);
  s.world.pass(seconds(1));
  EXPECT_TRUE(s.received(0).empty());
  EXPECT_EQ(s.received(1).at(0).wr_id, 6u);
}

TEST(SharedReceive, ALimitIsToldOfOnceAndThenNotArmedAnyMore) {
  Shared s;
  for (std::uint64_t i = 0; i < 6; ++i) ASSERT_TRUE(s.post_receive(i));
  ASSERT_TRUE(s.engine().arm_srq(*s.srq, 4, s.now()));
  EXPECT_EQ(s.srq->limit(), 4u);
  for (int i = 0; i < 2; ++i) s.send(0);
  s.world.pass(milliseconds(1));
  EXPECT_TRUE(s.srq_events.srqs.empty());  // four are left, which is not fewer
  for (int i = 0; i < 2; ++i) s.send(1);
  s.world.pass(milliseconds(1));
  ASSERT_EQ(s.srq_events.srqs.size(), 1u);
  EXPECT_EQ(s.srq_events.srqs[0].type, AsyncEventType::SrqLimitReached);
  EXPECT_EQ(s.srq_events.srqs[0].srq, s.srq);
  EXPECT_EQ(s.srq->limit(), 0u);
}

TEST(SharedReceive, ALimitAboveWhatIsThereIsToldOfAtOnce) {
  Shared s;
  ASSERT_TRUE(s.post_receive(0));
  ASSERT_TRUE(s.engine().arm_srq(*s.srq, 2, s.now()));
  s.world.pass(microseconds(1));
  EXPECT_EQ(s.srq_events.srqs.size(), 1u);
  const auto too_many = s.engine().arm_srq(*s.srq, 9, s.now());
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().id, ReasonId::SharedQueueTooSmall);
}

TEST(SharedReceive, GrowsAndShrinksWithWhatIsPosted) {
  Shared s(4);
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(s.post_receive(i));
  s.send(0);
  s.world.pass(milliseconds(1));
  ASSERT_TRUE(s.engine().resize_srq(*s.srq, 16, s.now()));
  EXPECT_EQ(s.srq->capacity().requests, 16u);
  for (std::uint64_t i = 3; i < 8; ++i) ASSERT_TRUE(s.post_receive(i));
  const auto too_small = s.engine().resize_srq(*s.srq, 4, s.now());  // seven are waiting
  ASSERT_FALSE(too_small);
  EXPECT_EQ(too_small.error().id, ReasonId::SharedQueueTooSmall);
  for (int i = 0; i < 5; ++i) s.send(1);
  s.world.pass(milliseconds(1));
  ASSERT_TRUE(s.engine().resize_srq(*s.srq, 2, s.now()));
  s.send(0);
  s.send(0);
  s.world.pass(milliseconds(1));
  std::vector<std::uint64_t> ids;
  for (const std::size_t end : {0u, 1u})
    for (const auto& done : s.received(end)) ids.push_back(done.wr_id);
  std::ranges::sort(ids);
  EXPECT_EQ(ids, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

// A queue that the device cannot read any more fails, and with it everybody who needs it.
TEST(SharedReceive, ARingThatIsGoneFailsTheQueueAndItsUsers) {
  Shared s;
  ASSERT_TRUE(s.post_receive(0));
  s.world.host(1).config().set_bus_master(false);
  s.send(0);
  s.world.pass(milliseconds(1));
  s.world.host(1).config().set_bus_master(true);
  s.send(1);
  s.world.pass(seconds(60));
  EXPECT_EQ(s.engine().query_qp(*s.ends[0].b.qp).state, QpState::Error);
  EXPECT_EQ(s.engine().query_qp(*s.ends[1].b.qp).state, QpState::Error);
  EXPECT_NE(s.sent(0).at(0).status, Status::Success);
  EXPECT_NE(s.sent(1).at(0).status, Status::Success);
}

// CASES C42, C70
TEST(SharedReceive, WhatDoesNotFitIsRefused) {
  Shared s;
  driver::Engine& engine = s.engine();
  EXPECT_EQ(engine.destroy_srq(*s.srq, s.now()).error().id, ReasonId::ObjectBusy);
  EXPECT_EQ(engine.dealloc_pd(s.pd).error().id, ReasonId::ObjectBusy);
  const std::array sges{s.target.sge(0, 8)};
  EXPECT_EQ(engine.post_receive(*s.ends[0].b.qp, {1, sges}, false, s.now()).error().id,
            ReasonId::ReceivesAreShared);
  const std::array three{sges[0], sges[0], sges[0]};
  EXPECT_EQ(engine.post_receive(*s.srq, {1, three}, false, s.now()).error().id,
            ReasonId::TooManySges);
  const auto other = engine.alloc_pd();
  driver::CompletionQueue* const cq = s.ends[0].b.cq;
  const auto mixed = engine.create_qp(
      {.pd = *other, .send_cq = cq, .receive_cq = cq, .srq = s.srq, .capacity = {1, 0, 1, 0, 0}},
      s.now());
  EXPECT_EQ(mixed.error().id, ReasonId::SharedQueueOtherDomain);
  for (const std::uint32_t bad : {0u, nic::kMaxQueueEntries + 1})
    EXPECT_FALSE(engine.create_srq({.pd = s.pd, .capacity = {bad, 1}}, s.now()));
  EXPECT_FALSE(engine.create_srq({.pd = s.pd, .capacity = {1, nic::kMaxSges + 1}}, s.now()));
}

// A key of another domain in a shared receive is found when it is taken.
TEST(SharedReceive, AForeignKeyFailsTheMessageThatTakesIt) {
  Shared s;
  const auto other = s.engine().alloc_pd();
  const VirtAddr start = s.world.host(1).allocate(kBufferBytes);
  const auto region = s.engine().register_memory(*other, start, kBufferBytes, {start.value},
                                                 driver::AccessFlags::of_bits(kAllRights), s.now());
  const std::array sges{driver::Sge{start.value, 64, region->key.value}};
  ASSERT_TRUE(s.engine().post_receive(*s.srq, {7, sges}, false, s.now()));
  s.send(0);
  s.world.pass(milliseconds(1));
  const auto done = s.received(0);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 7u);
  EXPECT_EQ(done[0].reason, ReasonId::KeyOtherDomain);
  EXPECT_EQ(s.sent(0).at(0).status, Status::RemoteOperation);
}

}  // namespace
}  // namespace softhca::sim
