// What receives are told: lengths, immediate data, solicited events, and what happens without one.
#include "pair.h"

namespace softhca::sim {
namespace {

using driver::CompletionOpcode;
using trace::ReasonId;
using transport::QpState;
using transport::Status;
using transport::WorkOpcode;

driver::SendRequest request(WorkOpcode opcode, std::span<const driver::Sge> sges,
                            const Buffer& to) {
  driver::SendRequest made = remote_request(opcode, sges, to.start.value, to.key);
  made.immediate = 0xa1b2c3d4;
  return made;
}

// C31: byte_len of a WRITE with immediate is what was written; the receive's own buffer is
// untouched.
TEST(Receive, AWriteWithImmediateReportsItsLengthAndLeavesTheReceiveBufferAlone) {
  for (const std::uint32_t bytes : {0u, 1u, 4097u}) {
    Pair pair;
    const Buffer unused = pair.make_buffer(pair.connection.b, kAllRights);
    std::array receive{unused.sge(0, 64)};
    pair.post_receive(pair.connection.b, 7, receive);
    pair.world.host(0).fill(pair.a.start, kBufferBytes, std::byte{0x77});
    std::array sges{pair.a.sge(0, bytes)};
    pair.post(pair.connection.a, request(WorkOpcode::WriteImm, sges, pair.b));
    pair.settle();
    const auto done = pair.completions(pair.connection.b);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].wr_id, 7u);
    EXPECT_EQ(done[0].status, Status::Success);
    EXPECT_EQ(done[0].opcode, CompletionOpcode::ReceiveRdmaWithImmediate);
    EXPECT_EQ(done[0].byte_count, bytes);
    EXPECT_TRUE(done[0].with_immediate);
    EXPECT_EQ(done[0].immediate, 0xa1b2c3d4u);
    EXPECT_TRUE(pair.is_filled(unused, 0, kBufferBytes, std::byte{0x11}));
    EXPECT_TRUE(pair.is_filled(pair.b, 0, bytes, std::byte{0x77}));
    EXPECT_TRUE(pair.is_filled(pair.b, bytes, kBufferBytes - bytes, std::byte{0x11}));
  }
}

TEST(Receive, ASendIsScatteredOverItsSegments) {
  Pair pair;
  std::vector<std::byte> source(kBufferBytes);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7);
  pair.world.host(0).store(pair.a.start, source);
  std::array receive{pair.b.sge(4000, 1000), pair.b.sge(0, 0), pair.b.sge(0, 3000),
                     pair.b.sge(6000, 2000)};
  pair.post_receive(pair.connection.b, 7, receive);
  std::array sges{pair.a.sge(0, 1), pair.a.sge(100, 2999), pair.a.sge(4000, 2000)};
  pair.post(pair.connection.a, request(WorkOpcode::Send, sges, pair.b));
  pair.settle();
  ASSERT_EQ(pair.completions(pair.connection.b).at(0).byte_count, 5000u);
  std::vector<std::byte> sent;
  for (const driver::Sge& s : sges) {
    const auto part = pair.world.host(0).load({s.address}, s.length);
    sent.insert(sent.end(), part.begin(), part.end());
  }
  std::vector<std::byte> received;
  for (const driver::Sge& s : receive) {
    const auto part = pair.world.host(1).load({s.address}, s.length);
    received.insert(received.end(), part.begin(), part.end());
  }
  received.resize(5000);
  EXPECT_EQ(received, sent);
}

// C9-105, MECHANISMS 4: LOC_LEN_ERR here, REM_INV_REQ_ERR there.
TEST(Receive, AReceiveThatIsTooSmallFailsBothSides) {
  Pair pair;
  std::array small{pair.b.sge(0, 1500)};
  pair.post_receive(pair.connection.b, 7, small);
  pair.post_receive(pair.connection.b, 8, small);
  std::array sges{pair.a.sge(0, 1501)};
  pair.post(pair.connection.a, request(WorkOpcode::Send, sges, pair.b));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::RemoteInvalidRequest);
  const auto done = pair.completions(pair.connection.b);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::LocalLength);
  EXPECT_EQ(done[0].reason, ReasonId::ReceiveTooSmall);
  EXPECT_EQ(done[1].status, Status::Flushed);
  EXPECT_EQ(pair.connection.b.qp->state(), QpState::Error);
  EXPECT_TRUE(pair.is_filled(pair.b, 1500, kBufferBytes - 1500, std::byte{0x11}));
}

// C29: every receive completes once, also one that the first packet of a message has taken.
TEST(Receive, AReceiveThatIsHalfFilledIsFlushedWhenItsQueuePairFails) {
  ConnectionSettings settings;
  settings.mtu = 1024;
  WorldSettings world;
  world.network.ps_per_byte = 80'000;
  Pair pair(settings, world);
  for (const std::uint64_t id : {7u, 8u}) {
    std::array receive{pair.b.sge(0, 4096)};
    pair.post_receive(pair.connection.b, id, receive);
  }
  std::array sges{pair.a.sge(0, 4096)};
  pair.post(pair.connection.a, request(WorkOpcode::Send, sges, pair.b));
  const auto& b = pair.world.host(1);
  ASSERT_TRUE(pair.world.run_until([&] { return b.counter(trace::Counter::PacketsReceived) == 2; },
                                   seconds(1)));
  transport::QpAttributes error;
  error.state = QpState::Error;
  ASSERT_TRUE(pair.world.host(1).engine().modify_qp(
      *pair.connection.b.qp, error, transport::QpAttribute::State, pair.world.now()));
  pair.settle();
  const auto done = pair.completions(pair.connection.b);
  ASSERT_EQ(done.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(done[i].wr_id, 7 + i);
    EXPECT_EQ(done[i].status, Status::Flushed);
  }
}

// C15: rnr_retry counts; the first attempt is not a retry.
TEST(Receive, WithoutAReceiveTheSenderGivesUpAfterItsRetries) {
  for (const std::uint8_t retries : {std::uint8_t{0}, std::uint8_t{3}}) {
    ConnectionSettings settings;
    settings.rnr_retry = retries;
    Pair pair(settings);
    std::array sges{pair.a.sge(0, 64)};
    pair.post(pair.connection.a, request(WorkOpcode::Send, sges, pair.b));
    pair.settle();
    const auto done = pair.completions(pair.connection.a);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, Status::RnrRetriesExceeded);
    EXPECT_EQ(pair.world.host(0).counter(trace::Counter::RnrNaksReceived), retries + 1u);
    EXPECT_EQ(pair.connection.b.qp->state(), QpState::Rts);
  }
}

// C15: 7 means for ever; then the receive comes and the message arrives.
TEST(Receive, RnrRetrySevenWaitsForEver) {
  Pair pair;
  std::array sges{pair.a.sge(0, 64)};
  pair.post(pair.connection.a, request(WorkOpcode::Send, sges, pair.b));
  pair.settle(milliseconds(300));
  EXPECT_TRUE(pair.completions(pair.connection.a).empty());
  EXPECT_GT(pair.world.host(0).counter(trace::Counter::RnrNaksReceived), 1000u);
  std::array receive{pair.b.sge(0, 64)};
  pair.post_receive(pair.connection.b, 7, receive);
  pair.settle(milliseconds(300));
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::Success);
  EXPECT_EQ(pair.completions(pair.connection.b).at(0).status, Status::Success);
}

// C49: the error of a WRITE with immediate rides on its receive.
TEST(Receive, ABadWriteWithImmediateFailsItsReceive) {
  Pair pair;
  std::array receive{pair.b.sge(0, 64)};
  pair.post_receive(pair.connection.b, 7, receive);
  std::array sges{pair.a.sge(0, 64)};
  driver::SendRequest bad = request(WorkOpcode::WriteImm, sges, pair.b);
  bad.remote_address += kBufferBytes;
  pair.post(pair.connection.a, bad);
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::RemoteAccess);
  const auto done = pair.completions(pair.connection.b);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::LocalAccess);
  EXPECT_TRUE(pair.events_b.async.empty());
}

// C37: solicited-only arming, and the stronger of two armings.
TEST(Receive, SolicitedArmingHearsOnlyWhatIsSolicitedOrFailed) {
  Pair pair;
  driver::Engine& engine = pair.world.host(1).engine();
  driver::CompletionQueue& cq = *pair.connection.b.cq;
  std::array receive{pair.b.sge(0, 64)};
  std::array sges{pair.a.sge(0, 64)};
  const auto send = [&](bool solicited) {
    pair.post_receive(pair.connection.b, 7, receive);
    driver::SendRequest r = request(WorkOpcode::Send, sges, pair.b);
    if (solicited) r.flags |= driver::SendFlag::Solicited;
    pair.post(pair.connection.a, r);
    pair.settle();
  };
  engine.arm_cq(cq, true, pair.world.now());
  send(false);
  EXPECT_EQ(pair.events_b.completions, 0);
  send(true);
  EXPECT_EQ(pair.events_b.completions, 1);
  send(true);  // armed once, heard once
  EXPECT_EQ(pair.events_b.completions, 1);
  engine.arm_cq(cq, false, pair.world.now());
  engine.arm_cq(cq, true, pair.world.now());
  send(false);
  EXPECT_EQ(pair.events_b.completions, 2);
}

// C59: inline data is taken when it is posted; its key does not matter.
TEST(Receive, InlineDataIsCopiedAtOnceAndNeedsNoKey) {
  Pair pair;
  std::array receive{pair.b.sge(0, 64)};
  pair.post_receive(pair.connection.b, 7, receive);
  std::array<std::byte, 40> data;
  data.fill(std::byte{0x42});
  std::array sges{driver::Sge{reinterpret_cast<std::uint64_t>(data.data()), 40, 0xffff'ffff}};
  driver::SendRequest r = request(WorkOpcode::Send, sges, pair.b);
  r.flags |= driver::SendFlag::Inline;
  pair.post(pair.connection.a, r);
  data.fill(std::byte{0});
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::Success);
  EXPECT_TRUE(pair.is_filled(pair.b, 0, 40, std::byte{0x42}));
}

// C36: never silent, and both sides of the story are told.
driver::QueuePair* queue_pair_of(Pair& pair, driver::CompletionQueue& sends,
                                 driver::CompletionQueue& receives, EventLog& events) {
  const auto qp = pair.world.host(0).engine().create_qp({.pd = pair.connection.a.pd,
                                                         .type = transport::QpType::Rc,
                                                         .send_cq = &sends,
                                                         .receive_cq = &receives,
                                                         .capacity = {.send_requests = 8,
                                                                      .receive_requests = 8,
                                                                      .send_sges = 1,
                                                                      .receive_sges = 1,
                                                                      .inline_bytes = 0},
                                                         .signal_all = true,
                                                         .events = &events},
                                                        pair.world.now());
  return qp ? *qp : nullptr;
}

// Fails the queue pair, and posts receives that are flushed at once.
void flush_receives(Pair& pair, driver::QueuePair& qp, std::uint64_t count) {
  driver::Engine& engine = pair.world.host(0).engine();
  transport::QpAttributes attributes;
  attributes.state = QpState::Error;
  ASSERT_TRUE(engine.modify_qp(qp, attributes, transport::QpAttribute::State, pair.world.now()));
  for (std::uint64_t i = 0; i < count; ++i)
    ASSERT_TRUE(engine.post_receive(qp, {i, {}}, false, pair.world.now()));
}

TEST(Receive, AnOverrunCompletionQueueFailsWithItsQueuePairs) {
  Pair pair;
  EventLog events;
  const auto cq = pair.world.host(0).engine().create_cq(4, &events, pair.world.now());
  ASSERT_TRUE(cq);
  ASSERT_EQ((*cq)->capacity(), 4u);
  driver::QueuePair* const qp = queue_pair_of(pair, **cq, **cq, events);
  ASSERT_NE(qp, nullptr);
  flush_receives(pair, *qp, 6);
  ASSERT_EQ(events.async.size(), 1u);
  EXPECT_EQ(events.async[0].type, driver::AsyncEventType::CqError);
}

// Of two queues only one has failed: what is flushed reaches the other.
TEST(Receive, AQueuePairOfAnOverrunQueueFlushesItsReceivesToTheOther) {
  Pair pair;
  EventLog events;
  driver::Engine& engine = pair.world.host(0).engine();
  const auto overrun = engine.create_cq(4, &events, pair.world.now());
  const auto other = engine.create_cq(4, &events, pair.world.now());
  ASSERT_TRUE(overrun && other);
  driver::QueuePair* const victim = queue_pair_of(pair, **overrun, **other, events);
  driver::QueuePair* const culprit = queue_pair_of(pair, **overrun, **overrun, events);
  ASSERT_TRUE(victim != nullptr && culprit != nullptr);
  transport::QpAttributes init;
  init.state = QpState::Init;
  init.port = 1;
  using Mask = transport::QpAttributeMask;
  ASSERT_TRUE(
      engine.modify_qp(*victim, init,
                       Mask(transport::QpAttribute::State) | transport::QpAttribute::PkeyIndex |
                           transport::QpAttribute::Port | transport::QpAttribute::AccessFlags,
                       pair.world.now()));
  for (const std::uint64_t id : {7u, 8u})
    ASSERT_TRUE(engine.post_receive(*victim, {id, {}}, false, pair.world.now()));
  flush_receives(pair, *culprit, 6);
  EXPECT_EQ(victim->state(), QpState::Error);
  std::array<driver::Completion, 4> done;
  ASSERT_EQ((*other)->poll(done), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(done[i].wr_id, 7 + i);
    EXPECT_EQ(done[i].status, Status::Flushed);
  }
}

// A caller who polls is given what has arrived before anything is sent; the acknowledgement leaves
// behind his answer, with his next call that finds nothing, or with a call that does not come back.
TEST(Receive, WhoComesBackIsServedBeforeTheAcknowledgementLeaves) {
  enum class Next { Answer, EmptyPoll, Leave, Destroy };
  for (const Next next : {Next::Answer, Next::EmptyPoll, Next::Leave, Next::Destroy}) {
    Pair pair;
    driver::Engine& target = pair.world.host(1).engine();
    const auto sent = [&] { return pair.world.host(1).counter(trace::Counter::PacketsSent); };
    std::array receive{pair.b.sge(0, 64)};
    pair.post_receive(pair.connection.b, 7, receive);
    std::array sges{pair.a.sge(0, 8)};
    pair.post(pair.connection.a, request(WorkOpcode::Send, sges, pair.b));
    const Time now = pair.world.now();
    EXPECT_TRUE(target.progress(now, nic::Caller::ComesBack));
    EXPECT_EQ(pair.completions(pair.connection.b).size(), 1u);
    EXPECT_EQ(sent(), 0u);
    EXPECT_LE(target.next_deadline(), now + milliseconds(2));

    if (next == Next::Answer) {
      std::array answer{pair.b.sge(0, 8)};
      pair.post(pair.connection.b, request(WorkOpcode::Write, answer, pair.a));
      EXPECT_EQ(sent(), 2u);
    } else if (next == Next::EmptyPoll) {
      target.progress(now, nic::Caller::ComesBack);
    } else if (next == Next::Leave) {
      target.send_owed(now);
    } else {
      ASSERT_TRUE(target.destroy_qp(*pair.connection.b.qp, now));
    }
    EXPECT_GE(sent(), 1u);
    pair.settle();
    const auto done = pair.completions(pair.connection.a);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, Status::Success);
  }
}

}  // namespace
}  // namespace softhca::sim
