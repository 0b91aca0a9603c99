// XRC: one connection, and as many shared receive queues behind it as each request names.
#include "pair.h"

namespace softhca::sim {
namespace {

using driver::AsyncEventType;
using driver::CompletionOpcode;
using trace::ReasonId;
using transport::QpAttribute;
using transport::QpState;
using transport::QpType;
using transport::Status;
using transport::WorkOpcode;
using Mask = transport::QpAttributeMask;

constexpr std::uint32_t kMtuBytes = 1024;

// A sending queue pair on host 0, a target on host 1, and two queues of its domain, each with a
// protection domain and a completion queue of its own.
struct Xrc {
  struct Queue {
    std::uint32_t pd{};
    driver::CompletionQueue* cq{};
    driver::SharedReceiveQueue* srq{};
    Buffer buffer;
  };

  explicit Xrc(std::uint32_t cq_entries = 64) {
    driver::Engine& engine = peer();
    xrcd = *engine.open_xrcd(std::nullopt, {});
    for (Queue& queue : queues) queue = make_queue(xrcd, cq_entries);
    target = *engine.create_qp(
        {.type = QpType::XrcReceive, .xrcd = xrcd, .capacity = {}, .events = &target_events},
        now());
    driver::Engine& own = world.host(0).engine();
    pd = *own.alloc_pd();
    cq = *own.create_cq(64, nullptr, now());
    sender = *own.create_qp({.pd = pd,
                             .type = QpType::XrcSend,
                             .send_cq = cq,
                             .capacity = {.send_requests = 32, .send_sges = 2}},
                            now());
    source = make_buffer(world.host(0), pd);
    bring_up(own, *sender, world.host(1), target->qpn());
    bring_up(engine, *target, world.host(0), sender->qpn());
  }

  Time now() const { return world.now(); }
  driver::Engine& peer() { return world.host(1).engine(); }

  Queue make_queue(std::uint32_t domain, std::uint32_t cq_entries = 64) {
    Queue queue;
    queue.pd = *peer().alloc_pd();
    queue.cq = *peer().create_cq(cq_entries, nullptr, now());
    queue.srq = *peer().create_srq({.pd = queue.pd,
                                    .xrcd = domain,
                                    .cq = queue.cq,
                                    .capacity = {8, 1},
                                    .events = &queue_events},
                                   now());
    queue.buffer = make_buffer(world.host(1), queue.pd);
    return queue;
  }
  Buffer make_buffer(Host& host, std::uint32_t of) {
    const VirtAddr start = host.allocate(kBufferBytes);
    host.fill(start, kBufferBytes, std::byte{0x11});
    const auto region = host.engine().register_memory(
        of, start, kBufferBytes, {start.value}, driver::AccessFlags::of_bits(kAllRights), now());
    return {&host, start, region->key};
  }
  void bring_up(driver::Engine& engine, driver::QueuePair& qp, Host& to, wire::Qpn dest) {
    const bool sends = qp.type() == QpType::XrcSend;
    transport::QpAttributes a;
    a.state = QpState::Init;
    a.port = 1;
    a.access_flags = 2 | 4 | 8;
    ASSERT_TRUE(engine.modify_qp(qp, a,
                                 Mask(QpAttribute::State) | QpAttribute::PkeyIndex |
                                     QpAttribute::Port | QpAttribute::AccessFlags,
                                 now()));
    a.state = QpState::Rtr;
    a.address.is_global = true;
    a.address.destination = to.gid();
    a.address.port = 1;
    a.path_mtu_bytes = kMtuBytes;
    a.dest_qpn = dest;
    a.rq_psn = a.sq_psn = {0xff'fffe};
    a.max_dest_reads = a.max_reads = 4;
    a.min_rnr_timer = 1;
    Mask mask = Mask(QpAttribute::State) | QpAttribute::AddressVector | QpAttribute::PathMtu |
                QpAttribute::DestQpn | QpAttribute::RqPsn;
    if (!sends) mask = mask | QpAttribute::MaxDestReads | QpAttribute::MinRnrTimer;
    ASSERT_TRUE(engine.modify_qp(qp, a, mask, now()));
    a.state = QpState::Rts;
    a.timeout = 10;
    a.retry_count = a.rnr_retry = 7;
    mask = Mask(QpAttribute::State) | QpAttribute::SqPsn | QpAttribute::Timeout;
    if (sends)
      mask = mask | QpAttribute::RetryCount | QpAttribute::RnrRetry | QpAttribute::MaxReads;
    ASSERT_TRUE(engine.modify_qp(qp, a, mask, now()));
  }

  void post_receive(Queue& queue, std::uint64_t wr_id, std::uint32_t bytes = 4096) {
    const std::array sges{queue.buffer.sge(0, bytes)};
    ASSERT_TRUE(peer().post_receive(*queue.srq, {wr_id, sges}, false, now()));
  }
  void post(WorkOpcode opcode, std::uint32_t srqn, const Buffer& to, std::uint32_t bytes) {
    const std::array sges{source.sge(0, bytes)};
    driver::SendRequest request = remote_request(opcode, sges, to.start.value, to.key);
    request.flags |= driver::SendFlag::Signaled;
    request.xrc_srqn = srqn;
    request.immediate = 0xabcd;
    request.swap_or_add = 5;
    ASSERT_TRUE(world.host(0).engine().post_send(*sender, request, false, now()));
  }
  std::vector<driver::Completion> run(WorkOpcode opcode, std::uint32_t srqn, const Buffer& to,
                                      std::uint32_t bytes) {
    post(opcode, srqn, to, bytes);
    world.pass(seconds(5));
    return taken(*cq);
  }
  static std::vector<driver::Completion> taken(driver::CompletionQueue& from) {
    std::vector<driver::Completion> all(64);
    all.resize(from.poll(all));
    return all;
  }
  bool is_filled(const Buffer& buffer, std::uint64_t bytes, std::byte with) {
    return std::ranges::all_of(buffer.host->load(buffer.start, bytes),
                               [&](std::byte x) { return x == with; });
  }

  World world{WorldSettings{}};
  EventLog target_events;
  EventLog queue_events;
  std::uint32_t xrcd = 0;
  std::array<Queue, 2> queues;
  driver::QueuePair* target = nullptr;
  std::uint32_t pd = 0;
  driver::CompletionQueue* cq = nullptr;
  driver::QueuePair* sender = nullptr;
  Buffer source;
};

TEST(Xrc, EachRequestNamesTheQueueThatReceivesIt) {
  Xrc x;
  for (const std::size_t i : {1u, 0u, 0u, 1u}) {
    Xrc::Queue& queue = x.queues[i];
    x.post_receive(queue, 10 + i);
    x.world.host(0).fill(x.source.start, 3000, std::byte{static_cast<unsigned char>(0x40 + i)});
    ASSERT_EQ(x.run(WorkOpcode::SendImm, queue.srq->srqn(), {}, 3000).at(0).status,
              Status::Success);
    const auto done = Xrc::taken(*queue.cq);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].wr_id, 10 + i);
    EXPECT_EQ(done[0].qpn, x.target->qpn());
    EXPECT_EQ(done[0].byte_count, 3000u);
    EXPECT_EQ(done[0].immediate, 0xabcdu);
    EXPECT_TRUE(x.is_filled(queue.buffer, 3000, std::byte{static_cast<unsigned char>(0x40 + i)}));
    EXPECT_TRUE(Xrc::taken(*x.queues[1 - i].cq).empty());
  }
}

// Annex A14: what the peer reaches is memory of the protection domain of the queue that it names.
TEST(Xrc, KeysAreThoseOfTheDomainOfTheQueueNamed) {
  for (const WorkOpcode opcode : {WorkOpcode::Write, WorkOpcode::Read, WorkOpcode::FetchAdd}) {
    const std::uint32_t bytes = opcode == WorkOpcode::FetchAdd ? 8 : 5000;
    Xrc x;
    for (const Xrc::Queue& queue : x.queues)
      EXPECT_EQ(x.run(opcode, queue.srq->srqn(), queue.buffer, bytes).at(0).status,
                Status::Success);
    EXPECT_EQ(x.run(opcode, x.queues[0].srq->srqn(), x.queues[1].buffer, bytes).at(0).status,
              Status::RemoteAccess);
  }
}

TEST(Xrc, AllOperationsDoWhatTheyDoOnAReliableConnection) {
  Xrc x;
  Xrc::Queue& queue = x.queues[1];
  const std::uint32_t srqn = queue.srq->srqn();
  x.world.host(0).fill(x.source.start, kBufferBytes, std::byte{0x22});
  ASSERT_EQ(x.run(WorkOpcode::Write, srqn, queue.buffer, 5000).at(0).status, Status::Success);
  EXPECT_TRUE(x.is_filled(queue.buffer, 5000, std::byte{0x22}));
  x.post_receive(queue, 3);
  ASSERT_EQ(x.run(WorkOpcode::WriteImm, srqn, queue.buffer, 6000).at(0).status, Status::Success);
  const auto told = Xrc::taken(*queue.cq);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].opcode, CompletionOpcode::ReceiveRdmaWithImmediate);
  EXPECT_EQ(told[0].byte_count, 6000u);
  x.world.host(1).fill(queue.buffer.start, kBufferBytes, std::byte{0x33});
  ASSERT_EQ(x.run(WorkOpcode::Read, srqn, queue.buffer, 7000).at(0).status, Status::Success);
  EXPECT_TRUE(x.is_filled(x.source, 7000, std::byte{0x33}));
  ASSERT_EQ(x.run(WorkOpcode::FetchAdd, srqn, queue.buffer, 8).at(0).status, Status::Success);
  const auto word = x.world.host(1).load(queue.buffer.start, 8);
  EXPECT_EQ(load_le<std::uint64_t>(word), 0x3333'3333'3333'3338u);
}

TEST(Xrc, AQueueThatIsNotThereOrOfAnotherDomainIsAnInvalidRequest) {
  for (const bool is_foreign : {false, true}) {
    Xrc x;
    const auto other = x.peer().open_xrcd(std::nullopt, {});
    const Xrc::Queue foreign = x.make_queue(*other);
    const std::uint32_t srqn = is_foreign ? foreign.srq->srqn() : 999;
    const auto done = x.run(WorkOpcode::Write, srqn, foreign.buffer, 100);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, Status::RemoteInvalidRequest);
    EXPECT_EQ(x.peer().query_qp(*x.target).state, QpState::Error);
    ASSERT_FALSE(x.target_events.async.empty());
    EXPECT_EQ(x.target_events.async[0].reason, ReasonId::XrcQueueUnknown);
    EXPECT_TRUE(x.is_filled(foreign.buffer, 100, std::byte{0x11}));
  }
}

TEST(Xrc, AQueueThatGoesInTheMiddleOfAMessageEndsTheMessage) {
  Xrc x;
  x.post_receive(x.queues[0], 1);
  x.world.network().set_costs({.delay = microseconds(1), .ps_per_byte = 8000});
  x.post(WorkOpcode::Send, x.queues[0].srq->srqn(), {}, 4096);
  ASSERT_TRUE(x.world.run_until([&] { return x.queues[0].srq->waiting() == 0; }, seconds(1)));
  ASSERT_TRUE(x.peer().destroy_srq(*x.queues[0].srq, x.now()));
  x.world.pass(seconds(1));
  EXPECT_EQ(Xrc::taken(*x.cq).at(0).status, Status::RemoteInvalidRequest);
}

TEST(Xrc, AnEmptyQueueMakesTheSenderWait) {
  Xrc x;
  EXPECT_TRUE(x.run(WorkOpcode::Send, x.queues[0].srq->srqn(), {}, 8).empty());
  x.post_receive(x.queues[1], 1);
  x.world.pass(seconds(1));
  EXPECT_TRUE(Xrc::taken(*x.cq).empty());  // that one is for others
  x.post_receive(x.queues[0], 2);
  x.world.pass(seconds(1));
  EXPECT_EQ(Xrc::taken(*x.cq).at(0).status, Status::Success);
  EXPECT_EQ(Xrc::taken(*x.queues[0].cq).at(0).wr_id, 2u);
}

TEST(Xrc, LosesNothingOnABadNetwork) {
  Xrc x;
  x.world.network().set_costs({.loss = 100, .duplication = 100, .reordering = 100});
  Xrc::Queue& queue = x.queues[0];
  for (int round = 0; round < 20; ++round) {
    x.post_receive(queue, static_cast<std::uint64_t>(round));
    ASSERT_EQ(x.run(WorkOpcode::Send, queue.srq->srqn(), {}, 4000).at(0).status, Status::Success);
    EXPECT_EQ(x.run(WorkOpcode::Read, queue.srq->srqn(), queue.buffer, 4000).at(0).status,
              Status::Success);
    ASSERT_EQ(x.run(WorkOpcode::FetchAdd, queue.srq->srqn(), queue.buffer, 8).at(0).status,
              Status::Success);
    EXPECT_EQ(Xrc::taken(*queue.cq).size(), 1u);
  }
}

TEST(Xrc, TheTargetIsSharedByWhoeverOpensIt) {
  Xrc x;
  EventLog second;
  EXPECT_EQ(x.peer().open_qp(x.xrcd + 1, x.target->qpn(), &second), nullptr);
  EXPECT_EQ(x.peer().open_qp(x.xrcd, {x.target->qpn().value + 1}, &second), nullptr);
  ASSERT_EQ(x.peer().open_qp(x.xrcd, x.target->qpn(), &second), x.target);
  transport::QpAttributes a;
  a.state = QpState::Error;
  ASSERT_TRUE(x.peer().modify_qp(*x.target, a, Mask(QpAttribute::State), x.now()));
  x.world.pass(microseconds(1));
  for (const EventLog* log : {&x.target_events, &second}) {
    ASSERT_EQ(log->async.size(), 1u);
    EXPECT_EQ(log->async[0].type, AsyncEventType::LastWqeReached);
  }
  ASSERT_TRUE(x.peer().close_qp(*x.target, &x.target_events, x.now()));
  EXPECT_EQ(x.peer().query_qp(*x.target).state, QpState::Error);  // it is still there
  EXPECT_EQ(x.peer().close_xrcd(x.xrcd).error().id, ReasonId::ObjectBusy);
  ASSERT_TRUE(x.peer().close_qp(*x.target, &second, x.now()));
  EXPECT_EQ(x.peer().close_xrcd(x.xrcd).error().id, ReasonId::ObjectBusy);  // two queues
  for (const Xrc::Queue& queue : x.queues) {
    EXPECT_EQ(x.peer().destroy_cq(*queue.cq, x.now()).error().id, ReasonId::ObjectBusy);
    ASSERT_TRUE(x.peer().destroy_srq(*queue.srq, x.now()));
  }
  EXPECT_TRUE(x.peer().close_xrcd(x.xrcd));
}

// The completion queue of a shared queue that overruns takes the shared queue with it: the device
// could not tell anybody of what it would receive.
TEST(Xrc, AnOverrunOfItsCompletionsFailsTheQueueAndNotTheOthers) {
  Xrc x(1);
  Xrc::Queue& queue = x.queues[0];
  for (std::uint64_t i = 0; i < 3; ++i) x.post_receive(queue, i);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(x.run(WorkOpcode::Send, queue.srq->srqn(), {}, 8).at(0).status, Status::Success);
  ASSERT_EQ(x.queue_events.srqs.size(), 1u);
  EXPECT_EQ(x.queue_events.srqs[0].type, AsyncEventType::SrqError);
  x.post_receive(x.queues[1], 7);
  EXPECT_EQ(x.run(WorkOpcode::Send, x.queues[1].srq->srqn(), {}, 8).at(0).status, Status::Success);
  EXPECT_EQ(x.run(WorkOpcode::Send, queue.srq->srqn(), {}, 8).at(0).status,
            Status::RemoteOperation);
}

TEST(Xrc, NeitherEndDoesTheOthersPart) {
  Xrc x;
  const std::array sges{x.queues[0].buffer.sge(0, 8)};
  EXPECT_EQ(x.peer().post_receive(*x.target, {1, sges}, false, x.now()).error().id,
            ReasonId::ReceivesAreShared);
  EXPECT_EQ(x.world.host(0).engine().post_receive(*x.sender, {1, sges}, false, x.now()).error().id,
            ReasonId::ReceivesAreShared);
  const driver::SendRequest request = remote_request(WorkOpcode::Send, sges, 0, {});
  EXPECT_EQ(x.peer().post_send(*x.target, request, false, x.now()).error().id,
            ReasonId::OpcodeNotSupported);
  driver::CompletionQueue* const any = x.queues[0].cq;
  EXPECT_EQ(x.peer()
                .create_qp({.pd = x.queues[0].pd,
                            .send_cq = any,
                            .receive_cq = any,
                            .srq = x.queues[0].srq,
                            .capacity = {}},
                           x.now())
                .error()
                .id,
            ReasonId::SharedQueueKind);
}

}  // namespace
}  // namespace softhca::sim
