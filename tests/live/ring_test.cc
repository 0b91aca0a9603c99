// Packets between processes of one host, which go through the memory of the one that receives
// them: whoever sleeps is woken, and who stops or dies harms nobody. Messages to those who share
// their receives are always packets.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "connected_child.h"

namespace verbs_test {
namespace {

constexpr Options kPackets{.shares_receives = true};

bool post_receive(Endpoint& end, std::uint64_t id, std::uint32_t bytes) {
  ibv_sge sge = end.sge(0, bytes);
  ibv_recv_wr wr{};
  wr.wr_id = id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return (end.srq != nullptr ? ibv_post_srq_recv(end.srq, &wr, &bad)
                             : ibv_post_recv(end.qp, &wr, &bad)) == 0;
}

bool post_send(Endpoint& end, std::uint32_t bytes, ibv_wr_opcode opcode = IBV_WR_SEND,
               std::uint64_t to = 0, std::uint32_t rkey = 0) {
  ibv_sge sge = end.sge(32'768, bytes);
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = 77;
  wr.wr.rdma.remote_addr = to;
  wr.wr.rdma.rkey = rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(end.qp, &wr, &bad) == 0;
}

bool succeeds(Endpoint& end) {
  const auto done = end.wait();
  return done && done->status == IBV_WC_SUCCESS;
}

// What the devices that this process has had and closed counted.
class Ledger {
 public:
  Ledger() {
    const int file = mkstemp(name_.data());
    EXPECT_GE(file, 0);
    close(file);
    setenv("SOFTHCA_LEDGER", name_.c_str(), 1);
  }
  ~Ledger() {
    unsetenv("SOFTHCA_LEDGER");
    unlink(name_.c_str());
  }
  std::uint64_t of(const std::string& counter) const {
    const std::string own = "{\"pid\":" + std::to_string(getpid()) + ",";
    const std::string key = "\"" + counter + "\":";
    std::ifstream lines(name_);
    std::uint64_t sum = 0;
    for (std::string line; std::getline(lines, line);) {
      const std::size_t at = line.find(key);
      if (line.starts_with(own) && at != std::string::npos)
        sum += std::stoull(line.substr(at + key.size()));
    }
    return sum;
  }

 private:
  std::string name_ = "/tmp/softhca-ring-test-XXXXXX";
};

constexpr std::uint32_t kSizes[] = {1, 8, 4096, 4097, 20'000};

// Receives `rounds` messages of each size and answers each.
int answer(Endpoint& end, Talk& talk, int rounds) {
  for (int round = 0; round < rounds; ++round)
    for (const std::uint32_t bytes : kSizes) {
      HOLDS(post_receive(end, 1, bytes));
      talk.to_initiator.give();
      HOLDS(succeeds(end));
      HOLDS(std::all_of(end.buffer.begin(), end.buffer.begin() + bytes,
                        [&](unsigned char x) { return x == static_cast<unsigned char>(round); }));
      std::copy_n(end.buffer.begin(), bytes, end.buffer.begin() + 32'768);
      HOLDS(post_send(end, bytes));
      HOLDS(succeeds(end));
    }
  return 0;
}

void ask(Endpoint& end, Talk& talk, int rounds) {
  for (int round = 0; round < rounds; ++round)
    for (const std::uint32_t bytes : kSizes) {
      std::fill_n(end.buffer.begin() + 32'768, bytes, static_cast<unsigned char>(round));
      std::fill_n(end.buffer.begin(), bytes, 0xee);
      ASSERT_TRUE(post_receive(end, 2, bytes));
      ASSERT_TRUE(talk.to_initiator.take());
      ASSERT_TRUE(post_send(end, bytes));
      ASSERT_TRUE(succeeds(end) && succeeds(end)) << "round " << round << ", " << bytes;
      ASSERT_TRUE(std::all_of(end.buffer.begin(), end.buffer.begin() + bytes, [&](unsigned char x) {
        return x == static_cast<unsigned char>(round);
      }));
    }
}

TEST(Rings, MessagesOfEverySizeArriveWhole) {
  Ledger ledger;
  Talk talk;
  ForkedChild target = start_target(
      talk, [&](Endpoint& end) { return answer(end, talk, 20); }, kPackets);
  std::optional<Endpoint> held(std::in_place, kPackets);
  Endpoint& end = *held;
  ASSERT_TRUE(end.is_ready());
  connect_initiator(end, talk);
  ask(end, talk, 20);
  held.reset();
  EXPECT_GE(ledger.of("ring_packets_sent"), 20u);
  EXPECT_GE(ledger.of("ring_packets_received"), 20u);
  target.expect_exit(0);
}

TEST(Rings, ImmediatesComeThroughThemToo) {
  Ledger ledger;
  Talk talk;
  ForkedChild target = start_target(
      talk,
      [&](Endpoint& end) {
        HOLDS(post_receive(end, 1, 0));
        talk.to_initiator.give();
        const auto done = end.wait();
        HOLDS(done && done->status == IBV_WC_SUCCESS && done->opcode == IBV_WC_RECV_RDMA_WITH_IMM);
        HOLDS(done->imm_data == 77 && end.buffer[0] == 9 && end.buffer[4999] == 9);
        return 0;
      },
      kPackets);
  std::optional<Endpoint> held(std::in_place, kPackets);
  Endpoint& end = *held;
  ASSERT_TRUE(end.is_ready());
  const Address peer = connect_initiator(end, talk);
  ASSERT_TRUE(talk.to_initiator.take());
  std::fill_n(end.buffer.begin() + 32'768, 5000, 9);
  ASSERT_TRUE(post_send(end, 5000, IBV_WR_RDMA_WRITE_WITH_IMM, peer.start, peer.rkey));
  ASSERT_TRUE(succeeds(end));
  held.reset();
  EXPECT_GE(ledger.of("ring_packets_sent"), 2u);
  target.expect_exit(0);
}

// The receiver sleeps on its completion channel, and nobody polls for it.
TEST(Rings, ASleeperIsWoken) {
  constexpr int kMessages = 30;
  Ledger ledger;
  Talk talk;
  ForkedChild target([&] {
    Endpoint end(Options{.with_channel = true, .shares_receives = true});
    HOLDS(end.is_ready() && connect_target(end, talk, address_of(end)));
    for (int i = 0; i < kMessages; ++i) {
      HOLDS(post_receive(end, 1, 8));
      HOLDS(ibv_req_notify_cq(end.cq, 0) == 0);
      talk.to_initiator.give();
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      HOLDS(ibv_get_cq_event(end.channel, &cq, &context) == 0);
      ibv_ack_cq_events(cq, 1);
      HOLDS(succeeds(end));
    }
    return 0;
  });
  std::optional<Endpoint> held(std::in_place, kPackets);
  Endpoint& end = *held;
  ASSERT_TRUE(end.is_ready());
  connect_initiator(end, talk);
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(talk.to_initiator.take());
    if (i % 3 == 0) usleep(5000);  // it is surely asleep
    ASSERT_TRUE(post_send(end, 8));
    ASSERT_TRUE(succeeds(end)) << i;
  }
  held.reset();
  EXPECT_GE(ledger.of("ring_packets_sent"), static_cast<std::uint64_t>(kMessages));
  target.expect_exit(0);
}

TEST(Rings, AReceiverThatIsStoppedGoesOnWhereItWas) {
  Talk talk;
  ForkedChild target = start_target(
      talk, [&](Endpoint& end) { return answer(end, talk, 4); }, kPackets);
  Endpoint end(kPackets);
  ASSERT_TRUE(end.is_ready());
  connect_initiator(end, talk);
  stop(target.pid());
  ForkedChild again([&] {
    usleep(150'000);
    kill(target.pid(), SIGCONT);
    return 0;
  });
  ask(end, talk, 4);
  again.expect_exit(0);
  target.expect_exit(0);
}

// More than the ring holds lies there before the receiver goes on.
TEST(Rings, AFullRingLosesNothing) {
  constexpr int kMessages = 100;
  constexpr std::uint32_t kBytes = 20'000;
  const Options many{.requests = kMessages + 8, .shares_receives = true};
  Ledger ledger;
  Talk talk;
  ForkedChild target([&] {
    Endpoint end(many);
    HOLDS(end.is_ready() && connect_target(end, talk, address_of(end)));
    for (int i = 0; i < kMessages; ++i) HOLDS(post_receive(end, 1, kBytes));
    talk.to_initiator.give();
    for (int i = 0; i < kMessages; ++i) HOLDS(succeeds(end));
    return 0;
  });
  std::optional<Endpoint> held(std::in_place, many);
  Endpoint& end = *held;
  ASSERT_TRUE(end.is_ready());
  connect_initiator(end, talk);
  ASSERT_TRUE(talk.to_initiator.take());
  stop(target.pid());
  for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(post_send(end, kBytes));
  kill(target.pid(), SIGCONT);
  for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(succeeds(end)) << i;
  held.reset();
  EXPECT_EQ(ledger.of("send_errors"), 0u);
  target.expect_exit(0);
}

TEST(Rings, ASenderHearsThatItsReceiverWasKilled) {
  Talk talk;
  ForkedChild target = start_target(
      talk,
      [&](Endpoint& end) {
        answer(end, talk, 1);
        talk.to_target.take();
        return 1;
      },
      kPackets);
  Endpoint end(kPackets);
  ASSERT_TRUE(end.is_ready());
  connect_initiator(end, talk);
  ask(end, talk, 1);
  kill(target.pid(), SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(target.wait()));
  ASSERT_TRUE(post_send(end, 8));
  const auto done = end.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_RETRY_EXC_ERR);
}

// One receiver, whose senders die in the middle of what they send, and the next take their places.
TEST(Rings, SendersThatAreKilledLeaveTheReceiverAsItWas) {
  const int rounds = rounds_wanted(8);
  Ledger ledger;
  std::optional<Endpoint> held(std::in_place, kPackets);
  Endpoint& steady = *held;
  ASSERT_TRUE(steady.is_ready());
  for (int round = 0; round < rounds; ++round) {
    Talk talk;
    Signal begins;
    ForkedChild sender([&] {
      Endpoint end(kPackets);
      HOLDS(end.is_ready());
      connect_initiator(end, talk);
      begins.give();
      while (post_send(end, 20'000) && end.wait()) {
      }
      return 0;
    });
    ASSERT_TRUE(connect_target(steady, talk, address_of(steady)));
    ASSERT_TRUE(begins.take());
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(post_receive(steady, 1, 20'000));
      ASSERT_TRUE(succeeds(steady)) << i;
    }
    kill(sender.pid(), SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(sender.wait()));
  }
  held.reset();
  EXPECT_GE(ledger.of("ring_packets_received"), 100u);
}

// Of how many packets through rings a SEND and its answer are, with these settings of the two.
std::uint64_t through_rings(const char* of_target, const char* of_initiator) {
  Talk talk;
  ForkedChild target([&] {
    setenv("SOFTHCA_LOCAL", of_target, 1);
    Endpoint end(kPackets);
    HOLDS(end.is_ready() && connect_target(end, talk, address_of(end)));
    const int status = answer(end, talk, 2);
    talk.to_initiator.give();
    return status;
  });
  ForkedChild initiator([&] {
    setenv("SOFTHCA_LOCAL", of_initiator, 1);
    const Ledger ledger;
    {
      Endpoint end(kPackets);
      HOLDS(end.is_ready());
      connect_initiator(end, talk);
      ask(end, talk, 2);
      HOLDS(talk.to_initiator.take());  // the peer's last message is acknowledged
    }
    HOLDS(!testing::Test::HasFailure());
    const std::uint64_t packets =
        ledger.of("ring_packets_sent") + ledger.of("ring_packets_received");
    talk.to_target.send(packets);
    return 0;
  });
  std::uint64_t packets = UINT64_MAX;
  initiator.expect_exit(0);
  EXPECT_TRUE(talk.to_target.receive(packets));
  target.expect_exit(0);
  return packets;
}

TEST(Rings, AreForThoseWhoBothWantThem) {
  EXPECT_EQ(through_rings("off", "on"), 0u);
  EXPECT_EQ(through_rings("on", "off"), 0u);
  EXPECT_EQ(through_rings("direct", "on"), 0u);
  EXPECT_GE(through_rings("on", "on"), 8u);
}

// Another user's process is reached as before.
TEST(Rings, AnotherUsersMessagesAreUdp) {
  Ledger ledger;
  if (getuid() != 0) GTEST_SKIP() << "only root can be two users";
  Talk talk;
  ForkedChild target([&] {
    HOLDS(setresuid(65534, 65534, 65534) == 0);
    Endpoint end(kPackets);
    HOLDS(end.is_ready() && connect_target(end, talk, address_of(end)));
    const int status = answer(end, talk, 2);
    talk.to_initiator.give();
    return status;
  });
  ForkedChild initiator([&] {
    {
      Endpoint end(kPackets);
      HOLDS(end.is_ready());
      connect_initiator(end, talk);
      ask(end, talk, 2);
      HOLDS(talk.to_initiator.take());  // the peer's last message is acknowledged
    }
    HOLDS(!testing::Test::HasFailure());
    HOLDS(ledger.of("ring_packets_sent") == 0);
    return 0;
  });
  initiator.expect_exit(0);
  target.expect_exit(0);
}

}  // namespace
}  // namespace verbs_test
