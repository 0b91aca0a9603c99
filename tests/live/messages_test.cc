// Messages between processes of one host, which the sender's device puts into the receives that the
// other one has posted: those are filled whoever sleeps, complete in order with everything else,
// and none that was filled is lost.
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "connected_child.h"

namespace verbs_test {
namespace {

bool post_receive(Endpoint& end, std::uint64_t id, std::vector<ibv_sge> pieces) {
  ibv_recv_wr wr{};
  wr.wr_id = id;
  wr.sg_list = pieces.data();
  wr.num_sge = static_cast<int>(pieces.size());
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(end.qp, &wr, &bad) == 0;
}

bool post_message(Endpoint& end, ibv_sge sge) { return post_request(end, IBV_WR_SEND, sge, 0, 0); }

bool has(const Endpoint& end, std::size_t from, std::size_t bytes, unsigned char value) {
  const auto start = end.buffer.begin() + static_cast<std::ptrdiff_t>(from);
  return std::all_of(start, start + static_cast<std::ptrdiff_t>(bytes),
                     [=](unsigned char x) { return x == value; });
}

void fill(Endpoint& end, std::size_t bytes, unsigned char value) {
  std::fill_n(end.buffer.begin(), bytes, value);
}

TEST(Messages, AreInPlaceBeforeAReceiverThatIsStoppedGoesOn) {
  Talk talk;
  ForkedChild target = start_target(talk, [&](Endpoint& end) {
    HOLDS(post_receive(end, 1, {end.sge(0, 8)}));
    HOLDS(post_receive(end, 2, {end.sge(1000, 100), end.sge(2000, 0), end.sge(3000, 6000)}));
    HOLDS(post_receive(end, 3, {}));
    talk.to_initiator.give();
    HOLDS(talk.to_target.take());
    for (std::uint64_t id = 1; id <= 3; ++id) {
      const auto done = end.wait();
      HOLDS(done && done->status == IBV_WC_SUCCESS && done->wr_id == id);
      HOLDS(done->opcode == IBV_WC_RECV);
      HOLDS(done->byte_len == (id == 1 ? 8u : id == 2 ? 5000u : 0u));
    }
    HOLDS(has(end, 0, 8, 1) && has(end, 1000, 100, 2) && has(end, 3000, 4900, 2));
    HOLDS(!has(end, 7900, 1, 2));
    return 0;
  });
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  connect_initiator(end, talk);
  ASSERT_TRUE(talk.to_initiator.take());
  stop(target.pid());
  const std::uint32_t lengths[] = {8, 5000, 0};
  for (unsigned i = 0; i < 3; ++i) {
    fill(end, 5000, static_cast<unsigned char>(i + 1));
    ASSERT_TRUE(post_message(end, end.sge(0, lengths[i])));
    EXPECT_EQ(status_now(end), IBV_WC_SUCCESS) << i;
  }
  kill(target.pid(), SIGCONT);
  talk.to_target.give();
  target.expect_exit(0);
}

// Sleeps until the armed completion queue tells; false after ten seconds.
bool sleeps_until_told(Endpoint& end) {
  pollfd what{end.channel->fd, POLLIN, 0};
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  if (poll(&what, 1, 10'000) != 1 || ibv_get_cq_event(end.channel, &cq, &context) != 0)
    return false;
  ibv_ack_cq_events(cq, 1);
  return true;
}

// Nobody polls, whoever drives the device else; and what is flushed is told, too.
TEST(Messages, WakeASleeper) {
  constexpr int kMessages = 20;
  for (const char* engine : {"auto", "inline", "thread"}) {
    Talk talk;
    ForkedChild target([&] {
      setenv("SOFTHCA_ENGINE", engine, 1);
      Endpoint end(Options{.with_channel = true});
      HOLDS(end.is_ready() && connect_target(end, talk, address_of(end)));
      for (int i = 0; i <= kMessages; ++i) {
        HOLDS(post_receive(end, 1, {end.sge(0, 8)}));
        HOLDS(ibv_req_notify_cq(end.cq, 0) == 0);
        if (i < kMessages) {
          talk.to_initiator.give();
        } else {
          ibv_qp_attr attr{};
          attr.qp_state = IBV_QPS_ERR;
          HOLDS(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE) == 0);
        }
        HOLDS(sleeps_until_told(end));
        const auto done = end.wait();
        HOLDS(done && done->status == (i < kMessages ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR));
      }
      return 0;
    });
    Endpoint end;
    ASSERT_TRUE(end.is_ready());
    connect_initiator(end, talk);
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(talk.to_initiator.take());
      if (i % 4 == 0) usleep(5000);  // it is surely asleep
      ASSERT_TRUE(post_message(end, end.sge(0, 8)));
      EXPECT_EQ(status_now(end), IBV_WC_SUCCESS) << engine << " " << i;
    }
    target.expect_exit(0);
  }
}

// The receiver shuts its queue pair down without having looked: the sender was told that they are
// there, so they are not flushed.
TEST(Messages, ThatWereReceivedAreNotFlushed) {
  Talk talk;
  ForkedChild target([&] {
    setenv("SOFTHCA_ENGINE", "inline", 1);  // nobody looks while this program does not
    Endpoint end;
    HOLDS(end.is_ready() && connect_target(end, talk, address_of(end)));
    for (std::uint64_t id = 0; id < 5; ++id) HOLDS(post_receive(end, id, {end.sge(id * 64, 64)}));
    talk.to_initiator.give();
    HOLDS(talk.to_target.take());
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    HOLDS(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE) == 0);
    HOLDS(post_receive(end, 5, {end.sge(0, 64)}));
    for (std::uint64_t id = 0; id < 6; ++id) {
      const auto done = end.wait();
      HOLDS(done && done->wr_id == id);
      HOLDS(done->status == (id < 3 ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR));
    }
    HOLDS(has(end, 0, 8, 9) && has(end, 128, 8, 9) && !has(end, 192, 1, 9));
    return 0;
  });
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  connect_initiator(end, talk);
  ASSERT_TRUE(talk.to_initiator.take());
  fill(end, 8, 9);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(post_message(end, end.sge(0, 8)));
    EXPECT_EQ(status_now(end), IBV_WC_SUCCESS);
  }
  talk.to_target.give();
  target.expect_exit(0);
}

// What it was told of before it began anew is of a receive that it has forgotten.
TEST(Messages, DoNotReachAConnectionThatIsNewer) {
  Talk talk;
  ForkedChild target([&] {
    setenv("SOFTHCA_ENGINE", "inline", 1);  // nobody looks while this program does not
    Endpoint end;
    HOLDS(end.is_ready() && connect_target(end, talk, address_of(end)));
    HOLDS(post_receive(end, 1, {end.sge(0, 64)}));
    talk.to_initiator.give();
    HOLDS(talk.to_target.take());
    HOLDS(connect_target(end, talk, address_of(end)));
    HOLDS(post_receive(end, 2, {end.sge(64, 64)}));
    ibv_wc none{};
    HOLDS(ibv_poll_cq(end.cq, 1, &none) == 0);
    talk.to_initiator.give();
    const auto done = end.wait();
    HOLDS(done && done->status == IBV_WC_SUCCESS && done->wr_id == 2);
    HOLDS(done->byte_len == 16 && has(end, 64, 16, 5));
    return 0;
  });
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  connect_initiator(end, talk);
  ASSERT_TRUE(talk.to_initiator.take());
  fill(end, 16, 4);
  ASSERT_TRUE(post_message(end, end.sge(0, 8)));
  EXPECT_EQ(status_now(end), IBV_WC_SUCCESS);
  talk.to_target.give();
  connect_initiator(end, talk);
  ASSERT_TRUE(talk.to_initiator.take());
  fill(end, 16, 5);
  ASSERT_TRUE(post_message(end, end.sge(0, 16)));
  EXPECT_EQ(status_now(end), IBV_WC_SUCCESS);
  target.expect_exit(0);
}

TEST(Messages, ThatAreTooLongFailAtBothEnds) {
  Talk talk;
  ForkedChild target = start_target(talk, [&](Endpoint& end) {
    HOLDS(post_receive(end, 1, {end.sge(0, 64)}));
    talk.to_initiator.give();
    const auto done = end.wait();
    HOLDS(done && done->status == IBV_WC_LOC_LEN_ERR);
    HOLDS(has(end, 64, 1000, 0));
    return 0;
  });
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  connect_initiator(end, talk);
  ASSERT_TRUE(talk.to_initiator.take());
  fill(end, 1000, 5);
  ASSERT_TRUE(post_message(end, end.sge(0, 65)));
  const auto done = end.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_REM_INV_REQ_ERR);
  target.expect_exit(0);
}

TEST(Messages, IntoMemoryThatIsNotTheReceiversFail) {
  setenv("SOFTHCA_QUIET", "1", 1);
  Talk talk;
  ForkedChild target = start_target(talk, [&](Endpoint& end) {
    ibv_sge wrong = end.sge(0, 64);
    wrong.lkey ^= 1;
    HOLDS(post_receive(end, 1, {wrong}));
    talk.to_initiator.give();
    const auto done = end.wait();
    HOLDS(done && done->status == IBV_WC_LOC_PROT_ERR);
    HOLDS(has(end, 0, 64, 0));
    return 0;
  });
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  connect_initiator(end, talk);
  ASSERT_TRUE(talk.to_initiator.take());
  fill(end, 64, 5);
  ASSERT_TRUE(post_message(end, end.sge(0, 64)));
  const auto done = end.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_REM_OP_ERR);
  target.expect_exit(0);
}

// What both ends of a conversation agree on beforehand.
struct Step {
  ibv_wr_opcode opcode;
  std::uint32_t bytes;
};
constexpr std::uint32_t kMost = 12'000;
constexpr std::size_t kWritten = 40'000;  // where WRITEs go

std::vector<Step> conversation(unsigned seed, int steps) {
  std::minstd_rand random(seed);
  constexpr ibv_wr_opcode kinds[] = {IBV_WR_SEND,       IBV_WR_SEND,
                                     IBV_WR_SEND,       IBV_WR_SEND_WITH_IMM,
                                     IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM};
  std::vector<Step> out;
  for (int i = 0; i < steps; ++i)
    out.push_back(
        {kinds[random() % std::size(kinds)],
         static_cast<std::uint32_t>(random() % 3 == 0 ? random() % kMost : random() % 64)});
  return out;
}

bool is_write(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

// Receives are posted one or several at a time, now and then too late: some of the messages are
// placed, others go as packets.
int listen(Endpoint& end, const std::vector<Step>& steps, unsigned seed) {
  std::minstd_rand random(seed);
  std::size_t posted = 0;
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i].opcode != IBV_WR_RDMA_WRITE) wanted.push_back(i);
  for (std::size_t next = 0; next < wanted.size(); ++next) {
    const std::size_t more = posted == next || random() % 4 == 0 ? 1 + random() % 3 : 0;
    const std::size_t until = std::min({posted + more, next + 3, wanted.size()});
    for (; posted < until; ++posted)
      HOLDS(post_receive(end, posted, {end.sge(posted % 3 * kMost, kMost)}));
    const auto done = end.wait();
    const Step& step = steps[wanted[next]];
    HOLDS(done && done->status == IBV_WC_SUCCESS && done->wr_id == next);
    const auto value = static_cast<unsigned char>(wanted[next] % 251);
    if (step.opcode == IBV_WR_SEND_WITH_IMM || step.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
      HOLDS((done->wc_flags & IBV_WC_WITH_IMM) != 0 && done->imm_data == wanted[next]);
    if (is_write(step.opcode)) continue;
    HOLDS(done->byte_len == step.bytes && has(end, next % 3 * kMost, step.bytes, value));
    // What was written before it is there.
    std::uint32_t last = 0;
    for (std::size_t i = 0; i < wanted[next]; ++i)
      if (is_write(steps[i].opcode) && steps[i].bytes >= 4)
        last = static_cast<std::uint32_t>(i + 1);
    std::uint32_t seen = 0;
    std::memcpy(&seen, end.buffer.data() + kWritten, sizeof seen);
    HOLDS(seen >= last);
  }
  return 0;
}

bool post_step(Endpoint& end, const Step& step, std::size_t number, const Address& peer) {
  const std::size_t from = number % 4 * kMost;
  const auto start = end.buffer.begin() + static_cast<std::ptrdiff_t>(from);
  std::fill_n(start, step.bytes, static_cast<unsigned char>(number % 251));
  const auto mark = static_cast<std::uint32_t>(number + 1);
  if (is_write(step.opcode) && step.bytes >= 4)
    std::memcpy(end.buffer.data() + from, &mark, sizeof mark);
  ibv_sge sge = end.sge(from, step.bytes);
  ibv_send_wr wr{};
  wr.wr_id = number;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = step.opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = static_cast<std::uint32_t>(number);
  wr.wr.rdma.remote_addr = peer.start + kWritten;
  wr.wr.rdma.rkey = peer.rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(end.qp, &wr, &bad) == 0;
}

TEST(Messages, KeepTheirOrderAmongRequestsOfEveryKind) {
  constexpr int kSteps = 600;
  for (unsigned seed = 1; seed <= 5; ++seed) {
    const std::vector<Step> steps = conversation(seed, kSteps);
    Talk talk;
    ForkedChild target =
        start_target(talk, [&](Endpoint& end) { return listen(end, steps, seed); });
    Endpoint end;
    ASSERT_TRUE(end.is_ready());
    const Address peer = connect_initiator(end, talk);
    std::size_t done = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      ASSERT_TRUE(post_step(end, steps[i], i, peer));
      while (i + 1 - done >= 4 || (i + 1 == steps.size() && done <= i)) {
        const auto completion = end.wait();
        ASSERT_TRUE(completion);
        ASSERT_EQ(completion->status, IBV_WC_SUCCESS) << "seed " << seed << ", step " << done;
        ASSERT_EQ(completion->wr_id, done++);
      }
    }
    target.expect_exit(0);
  }
}

// One receiver, whose senders die in the middle of what they place, and the next take their places.
TEST(Messages, OfSendersThatAreKilledAreWholeOrNotThere) {
  const int rounds = rounds_wanted(8);
  Endpoint steady;
  ASSERT_TRUE(steady.is_ready());
  for (int round = 0; round < rounds; ++round) {
    Talk talk;
    Signal begins;
    ForkedChild sender([&] {
      Endpoint end;
      HOLDS(end.is_ready());
      const Address peer = connect_initiator(end, talk);
      begins.give();
      for (unsigned i = 0;; ++i) {
        fill(end, 20'000, static_cast<unsigned char>(i % 251));
        const ibv_wr_opcode opcode = i % 2 == 0 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM;
        HOLDS(post_request(end, opcode, end.sge(0, 20'000), peer.start + 32'768, peer.rkey));
        HOLDS(end.wait());
      }
    });
    ASSERT_TRUE(connect_target(steady, talk, address_of(steady)));
    ASSERT_TRUE(begins.take());
    for (unsigned i = 0; i < 20; ++i) {
      ASSERT_TRUE(post_receive(steady, i, {steady.sge(0, 20'000)}));
      const auto done = steady.wait();
      ASSERT_TRUE(done);
      ASSERT_EQ(done->status, IBV_WC_SUCCESS) << i;
      ASSERT_EQ(done->wr_id, i);
      const auto value = static_cast<unsigned char>(i % 251);
      ASSERT_TRUE(i % 2 != 0 || has(steady, 0, 20'000, value)) << i;
    }
    kill(sender.pid(), SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(sender.wait()));
  }
}

// Its own receives, through its own tables.
TEST(Messages, OfAProcessToItselfArePlacedToo) {
  Pair pair;
  ASSERT_TRUE(pair.is_connected());
  for (int round = 0; round < 50; ++round) {
    ASSERT_TRUE(post_receive(pair.b, 7, {pair.b.sge(0, 8)}));
    fill(pair.a, 8, static_cast<unsigned char>(round + 1));
    ASSERT_TRUE(post_message(pair.a, pair.a.sge(0, 8)));
    EXPECT_EQ(status_now(pair.a), IBV_WC_SUCCESS);
    const auto done = pair.b.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    EXPECT_TRUE(has(pair.b, 0, 8, static_cast<unsigned char>(round + 1)));
  }
}

}  // namespace
}  // namespace verbs_test
