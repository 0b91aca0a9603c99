// One-sided requests between processes of one host, executed by the initiator in the target's
// memory: the target may be stopped, and whoever takes a right back, or dies, is waited for.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include "connected_child.h"

namespace verbs_test {
namespace {

TEST(Direct, RequestsCompleteAtOnceWhileTheirTargetIsStopped) {
  Talk talk;
  ForkedChild target = start_target(talk, [&](Endpoint& end) {
    HOLDS(talk.to_target.take());
    HOLDS(std::all_of(end.buffer.begin(), end.buffer.begin() + 5000,
                      [](unsigned char x) { return x == 7; }));
    std::uint64_t word = 0;
    std::memcpy(&word, end.buffer.data() + 8192, sizeof word);
    HOLDS(word == 10);
    return 0;
  });
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  const Address peer = connect_initiator(end, talk);
  stop(target.pid());
  std::fill_n(end.buffer.begin(), 5000, 7);
  ASSERT_TRUE(post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, 5000), peer.start, peer.rkey));
  EXPECT_EQ(status_now(end), IBV_WC_SUCCESS);
  ASSERT_TRUE(post_request(end, IBV_WR_RDMA_READ, end.sge(10'000, 5000), peer.start, peer.rkey));
  EXPECT_EQ(status_now(end), IBV_WC_SUCCESS);
  EXPECT_EQ(end.buffer[14'999], 7);
  for (std::uint64_t before : {0, 5}) {
    ASSERT_TRUE(post_request(end, IBV_WR_ATOMIC_FETCH_AND_ADD, end.sge(16, 8), peer.start + 8192,
                             peer.rkey));
    EXPECT_EQ(status_now(end), IBV_WC_SUCCESS);
    std::uint64_t found = 1;
    std::memcpy(&found, end.buffer.data() + 16, sizeof found);
    EXPECT_EQ(found, before);
  }
  kill(target.pid(), SIGCONT);
  talk.to_target.give();
  target.expect_exit(0);
}

TEST(Direct, RequestsThatAreNotAllowedFailAsPacketsDo) {
  Talk talk;
  ForkedChild target = start_target(talk, [&](Endpoint& end) {
    HOLDS(talk.to_target.take());
    HOLDS(end.state() == IBV_QPS_ERR);
    return 0;
  });
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  const Address peer = connect_initiator(end, talk);
  const std::uint64_t behind = peer.start + end.buffer.size() - 4;
  ASSERT_TRUE(post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, 8), behind, peer.rkey));
  const auto done = end.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(end.state(), IBV_QPS_ERR);
  talk.to_target.give();
  target.expect_exit(0);
}

TEST(Direct, RequestsKeepTheirPlaceBehindMessages) {
  constexpr int kMessages = 50;
  Talk talk;
  ForkedChild target = start_target(talk, [&](Endpoint& end) {
    for (std::uint32_t i = 1; i <= kMessages; ++i) {
      ibv_sge sge = end.sge(60'000, 64);
      ibv_recv_wr wr{};
      wr.sg_list = &sge;
      wr.num_sge = 1;
      ibv_recv_wr* bad = nullptr;
      HOLDS(ibv_post_recv(end.qp, &wr, &bad) == 0);
      if (i == 1) talk.to_initiator.give();
      const auto done = end.wait();
      HOLDS(done && done->status == IBV_WC_SUCCESS);
      // What was written before the message is there. What comes behind it may be.
      std::uint32_t seen = 0;
      std::memcpy(&seen, end.buffer.data() + 39'996, sizeof seen);
      HOLDS(seen >= i);
    }
    return 0;
  });
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  const Address peer = connect_initiator(end, talk);
  ASSERT_TRUE(talk.to_initiator.take());
  for (std::uint32_t i = 1; i <= kMessages; ++i) {
    std::memcpy(end.buffer.data() + 39'996, &i, sizeof i);
    ASSERT_TRUE(post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, 40'000), peer.start, peer.rkey));
    ASSERT_TRUE(post_request(end, IBV_WR_SEND, end.sge(0, 8), 0, 0));
    for (int completions = 0; completions < 2; ++completions) {
      const auto done = end.wait();
      ASSERT_TRUE(done);
      ASSERT_EQ(done->status, IBV_WC_SUCCESS) << "message " << i;
    }
  }
  target.expect_exit(0);
}

// Once deregistration has returned nothing is written any more, however many WRITEs are under way.
TEST(Direct, DeregistrationWaitsForWhoIsInside) {
  setenv("SOFTHCA_QUIET", "1", 1);
  constexpr int kRounds = 20;
  constexpr std::uint32_t kBytes = 240'000;  // one move takes longer than deregistration
  const Options options{.buffer_bytes = 256 * 1024};
  Talk talk;
  ForkedChild target([&] {
    Endpoint end(options);
    HOLDS(end.is_ready());
    for (int round = 0; round < kRounds; ++round) {
      std::fill(end.buffer.begin(), end.buffer.end(), 0);
      ibv_mr* const region = ibv_reg_mr(end.pd, end.buffer.data(), kBytes, kAllAccess);
      HOLDS(region != nullptr);
      Address self = address_of(end);
      self.rkey = region->rkey;
      HOLDS(connect_target(end, talk, self));
      auto* const last = reinterpret_cast<volatile unsigned char*>(&end.buffer[kBytes - 1]);
      while (*last == 0) {
      }
      HOLDS(ibv_dereg_mr(region) == 0);
      std::fill(end.buffer.begin(), end.buffer.end(), 0x5a);
      HOLDS(talk.to_target.take());
      HOLDS(std::all_of(end.buffer.begin(), end.buffer.end(),
                        [](unsigned char x) { return x == 0x5a; }));
    }
    return 0;
  });
  Endpoint end(options);
  ASSERT_TRUE(end.is_ready());
  std::fill(end.buffer.begin(), end.buffer.end(), 1);
  for (int round = 0; round < kRounds; ++round) {
    const Address peer = connect_initiator(end, talk);
    std::optional<ibv_wc> done;
    do {
      ASSERT_TRUE(post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, kBytes), peer.start, peer.rkey));
      done = end.wait();
    } while (done && done->status == IBV_WC_SUCCESS);
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_REM_ACCESS_ERR);
    talk.to_target.give();
  }
  target.expect_exit(0);
}

void spin(std::minstd_rand& random) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 3000);
  while (std::chrono::steady_clock::now() < until) {
  }
}

// Requests of every kind, for as long as they succeed.
ibv_wc_status write_until_it_fails(Endpoint& end, const Address& peer, std::uint32_t bytes) {
  for (;;)
    for (const auto& [opcode, size] : {std::pair{IBV_WR_RDMA_WRITE, bytes},
                                       {IBV_WR_RDMA_READ, 4096u},
                                       {IBV_WR_ATOMIC_FETCH_AND_ADD, 8u}}) {
      const std::uint64_t to = (peer.start + 7) / 8 * 8;
      if (!post_request(end, opcode, end.sge(0, size), to, peer.rkey)) return IBV_WC_GENERAL_ERR;
      const auto done = end.wait();
      if (!done) return IBV_WC_GENERAL_ERR;
      if (done->status != IBV_WC_SUCCESS) return done->status;
    }
}

constexpr std::size_t kRegionAt = 4096, kRegionBytes = 32'768;

// The region lies between bytes that nobody may touch.
int be_target_of_the_dead(Talk& talk) {
  Endpoint end;
  HOLDS(end.is_ready());
  std::fill(end.buffer.begin(), end.buffer.end(), 0x5a);
  ibv_mr* const region =
      ibv_reg_mr(end.pd, end.buffer.data() + kRegionAt, kRegionBytes, kAllAccess);
  HOLDS(region != nullptr);
  Address self = address_of(end);
  self.rkey = region->rkey;
  self.start += kRegionAt;
  HOLDS(connect_target(end, talk, self));
  HOLDS(talk.to_target.take());
  HOLDS(ibv_dereg_mr(region) == 0);
  for (std::size_t i = 0; i < end.buffer.size(); ++i)
    if (i < kRegionAt || i >= kRegionAt + kRegionBytes) HOLDS(end.buffer[i] == 0x5a);
  return 0;
}

TEST(Direct, AnInitiatorThatIsKilledLeavesTheTargetAsItWas) {
  std::minstd_rand random(5);
  for (int round = 0; round < rounds_wanted(10); ++round) {
    Talk talk;
    Signal begins;
    ForkedChild target([&] { return be_target_of_the_dead(talk); });
    {
      ForkedChild initiator([&] {
        Endpoint end;
        HOLDS(end.is_ready());
        const Address peer = connect_initiator(end, talk);
        begins.give();
        return static_cast<int>(write_until_it_fails(end, peer, 30'000));
      });
      ASSERT_TRUE(begins.take());
      spin(random);
      kill(initiator.pid(), SIGKILL);
      EXPECT_TRUE(WIFSIGNALED(initiator.wait()));
    }
    talk.to_target.give();
    target.expect_exit(0);
  }
}

TEST(Direct, AnInitiatorHearsThatItsTargetWasKilled) {
  std::minstd_rand random(6);
  for (int round = 0; round < rounds_wanted(3); ++round) {
    Talk talk;
    Signal begins;
    ForkedChild target = start_target(talk, [&](Endpoint&) {
      talk.to_target.take();
      return 1;
    });
    ForkedChild initiator([&] {
      Endpoint end;
      HOLDS(end.is_ready());
      const Address peer = connect_initiator(end, talk);
      begins.give();
      HOLDS(write_until_it_fails(end, peer, 30'000) == IBV_WC_RETRY_EXC_ERR);
      return 0;
    });
    ASSERT_TRUE(begins.take());
    spin(random);
    kill(target.pid(), SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(target.wait()));
    initiator.expect_exit(0);
  }
}

// Adds of several processes and of the target's own device meet in one word.
TEST(Direct, AtomicsOfSeveralProcessesLoseNothing) {
  constexpr int kProcesses = 3, kAdds = 400;
  Talk talks[kProcesses];
  Signal finish;
  ForkedChild target([&] {
    std::vector<std::unique_ptr<Endpoint>> ends;
    for (Talk& talk : talks) {
      ends.push_back(std::make_unique<Endpoint>());
      Address self = address_of(*ends.front());
      self.qpn = ends.back()->qp->qp_num;
      // One word for all: the first endpoint's region has to be of everybody's domain.
      ibv_mr* const shared =
          ibv_reg_mr(ends.back()->pd, ends.front()->buffer.data(), 4096, kAllAccess);
      HOLDS(shared != nullptr);
      self.rkey = shared->rkey;
      HOLDS(connect_target(*ends.back(), talk, self));
    }
    HOLDS(finish.take());
    std::uint64_t sum = 0;
    std::memcpy(&sum, ends.front()->buffer.data(), sizeof sum);
    HOLDS(sum == 5ull * kProcesses * kAdds);
    _exit(0);
  });
  std::vector<std::unique_ptr<ForkedChild>> initiators;
  for (int i = 0; i < kProcesses; ++i)
    initiators.push_back(std::make_unique<ForkedChild>([&talks, i] {
      if (i == 0) setenv("SOFTHCA_LOCAL", "off", 1);  // the target's own device adds for it
      Endpoint end;
      HOLDS(end.is_ready());
      const Address peer = connect_initiator(end, talks[i]);
      for (int add = 0; add < kAdds; ++add) {
        HOLDS(post_request(end, IBV_WR_ATOMIC_FETCH_AND_ADD, end.sge(0, 8), peer.start, peer.rkey));
        const auto done = end.wait();
        HOLDS(done && done->status == IBV_WC_SUCCESS);
      }
      return 0;
    }));
  for (auto& initiator : initiators) initiator->expect_exit(0);
  finish.give();
  target.expect_exit(0);
}

TEST(Direct, IsOffWhereTheUserWantsPackets) {
  Talk talk;
  Signal connected;
  Signal stopped;
  ForkedChild target = start_target(talk, [&](Endpoint&) {
    talk.to_target.take();
    return 0;
  });
  ForkedChild initiator([&] {
    setenv("SOFTHCA_LOCAL", "off", 1);
    Endpoint end;
    HOLDS(end.is_ready());
    const Address peer = connect_initiator(end, talk);
    connected.give();
    HOLDS(stopped.take());
    HOLDS(post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, 8), peer.start, peer.rkey));
    const auto done = end.wait();
    HOLDS(done && done->status == IBV_WC_RETRY_EXC_ERR);
    return 0;
  });
  run_while_stopped(target, talk, initiator, connected, stopped);
}

}  // namespace
}  // namespace verbs_test
