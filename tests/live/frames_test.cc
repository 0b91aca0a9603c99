// Registered memory in frames of the device (docs/frames.md): peers of this host reach it by loads
// and stores, and it is the region's whatever the program does to its own mappings.
#include <sys/mman.h>

#include <cstdlib>
#include <functional>

#include "connected_child.h"
#include "forbid_copies.h"

namespace verbs_test {
namespace {

constexpr std::size_t kBytes = 16 * 4096;

ForkedChild start_target_in_frames(Talk& talk, const std::function<int(Endpoint&)>& act) {
  setenv("SOFTHCA_MEMORY", "frames", 1);
  return start_target(talk, act);
}

std::uint64_t word_at(const Endpoint& end, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, end.buffer.data() + at, sizeof word);
  return word;
}

int reach_a_stopped_target(Talk& talk, Signal& connected, Signal& stopped) {
  Endpoint end;
  HOLDS(end.is_ready());
  const Address peer = connect_initiator(end, talk);
  // The first request finds the peer.
  HOLDS(post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, 8), peer.start, peer.rkey));
  const auto found = end.wait();
  HOLDS(found && found->status == IBV_WC_SUCCESS);
  connected.give();
  HOLDS(stopped.take() && forbid_copies());
  std::fill_n(end.buffer.begin(), 9000, 7);
  HOLDS(post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, 9000), peer.start + 100, peer.rkey));
  HOLDS(status_now(end) == IBV_WC_SUCCESS);
  HOLDS(post_request(end, IBV_WR_RDMA_READ, end.sge(20'001, 9000), peer.start + 100, peer.rkey));
  HOLDS(status_now(end) == IBV_WC_SUCCESS && end.buffer[20'001] == 7 && end.buffer[29'000] == 7);
  for (const std::uint64_t before : {0u, 5u}) {
    HOLDS(post_request(end, IBV_WR_ATOMIC_FETCH_AND_ADD, end.sge(16, 8), peer.start + 40'000,
                       peer.rkey));
    HOLDS(status_now(end) == IBV_WC_SUCCESS && word_at(end, 16) == before);
  }
  // It is 10 by now, and not 5.
  HOLDS(
      post_request(end, IBV_WR_ATOMIC_CMP_AND_SWP, end.sge(16, 8), peer.start + 40'000, peer.rkey));
  HOLDS(status_now(end) == IBV_WC_SUCCESS && word_at(end, 16) == 10);
  // Inline bytes may lie anywhere.
  unsigned char bytes[32] = {1, 2, 3};
  const ibv_sge from{reinterpret_cast<std::uintptr_t>(bytes), sizeof bytes, 0};
  HOLDS(
      post_request(end, IBV_WR_RDMA_WRITE, from, peer.start + 50'000, peer.rkey, IBV_SEND_INLINE));
  HOLDS(status_now(end) == IBV_WC_SUCCESS);
  return 0;
}

TEST(Frames, RequestsToAStoppedTargetNeedNoCopyByTheKernel) {
  Talk talk;
  Signal connected, stopped;
  ForkedChild target = start_target_in_frames(talk, [&](Endpoint& end) {
    HOLDS(talk.to_target.take());
    HOLDS(std::all_of(end.buffer.begin() + 100, end.buffer.begin() + 9100,
                      [](unsigned char x) { return x == 7; }));
    HOLDS(word_at(end, 40'000) == 10 && end.buffer[50'002] == 3);
    return 0;
  });
  ForkedChild initiator([&] { return reach_a_stopped_target(talk, connected, stopped); });
  run_while_stopped(target, talk, initiator, connected, stopped);
}

// Both ends are of one process, and its device is looked for in it as in others: what it has mapped
// for that is not taken for memory of the program, of which a part may have been unmapped.
TEST(Frames, OfAProcessThatReachesItselfAreReachedAfterOthersAreGone) {
  setenv("SOFTHCA_MEMORY", "frames", 1);
  ForkedChild both([] {
    Pair pair;
    HOLDS(pair.is_connected());
    for (unsigned char round = 1; round <= 3; ++round) {
      void* const pages =
          mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      HOLDS(pages != MAP_FAILED);
      ibv_mr* const region = ibv_reg_mr(pair.b.pd, pages, kBytes, kAllAccess);
      HOLDS(region != nullptr);
      const auto start = reinterpret_cast<std::uintptr_t>(pages);
      pair.a.buffer[0] = round;
      HOLDS(post_request(pair.a, IBV_WR_RDMA_WRITE, pair.a.sge(0, 1), start, region->rkey));
      const auto done = pair.a.wait();
      HOLDS(done && done->status == IBV_WC_SUCCESS);
      HOLDS(*static_cast<volatile unsigned char*>(pages) == round);
      HOLDS(munmap(static_cast<char*>(pages) + kBytes / 2, kBytes / 2) == 0);
      HOLDS(ibv_dereg_mr(region) == 0);
      HOLDS(munmap(pages, kBytes / 2) == 0);
    }
    return 0;
  });
  both.expect_exit(0);
}

// Adds of peers and of the program's own processor meet in one word.
TEST(Frames, AtomicsOfPeersAreAtomicForTheProgramToo) {
  constexpr std::uint64_t kAdds = 5000;
  Talk talk;
  ForkedChild target = start_target_in_frames(talk, [&](Endpoint& end) {
    auto* const word = reinterpret_cast<std::uint64_t*>(end.buffer.data());
    for (std::uint64_t i = 0; i < kAdds; ++i) __atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
    HOLDS(talk.to_target.take());
    HOLDS(word_at(end, 0) == 6 * kAdds);
    return 0;
  });
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  const Address peer = connect_initiator(end, talk);
  for (std::uint64_t i = 0; i < kAdds; ++i) {
    ASSERT_TRUE(
        post_request(end, IBV_WR_ATOMIC_FETCH_AND_ADD, end.sge(8, 8), peer.start, peer.rkey));
    const auto done = end.wait();
    ASSERT_TRUE(done && done->status == IBV_WC_SUCCESS);
  }
  talk.to_target.give();
  target.expect_exit(0);
}

// What a peer still writes goes to the frame of the region, not to what lies at its address now.
TEST(Frames, MemoryThatWasMappedAnewIsNotThePeersTarget) {
  Talk talk;
  ForkedChild target = start_target_in_frames(talk, [&](Endpoint& end) {
    void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    HOLDS(memory != MAP_FAILED);
    ibv_mr* const region = ibv_reg_mr(end.pd, memory, kBytes, kAllAccess);
    HOLDS(region != nullptr);
    const auto start = reinterpret_cast<std::uintptr_t>(memory);
    talk.to_initiator.send(Address{.gid = {}, .qpn = 0, .rkey = region->rkey, .start = start});
    HOLDS(mmap(memory, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == memory);
    std::memset(memory, 0x5a, kBytes);
    talk.to_initiator.give();
    HOLDS(talk.to_target.take());
    const auto* const bytes = static_cast<const unsigned char*>(memory);
    HOLDS(std::all_of(bytes, bytes + kBytes, [](unsigned char x) { return x == 0x5a; }));
    HOLDS(ibv_dereg_mr(region) == 0);
    HOLDS(std::all_of(bytes, bytes + kBytes, [](unsigned char x) { return x == 0x5a; }));
    return munmap(memory, kBytes);
  });
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  connect_initiator(end, talk);
  Address region{};
  ASSERT_TRUE(talk.to_initiator.receive(region));
  ASSERT_TRUE(talk.to_initiator.take());
  std::fill_n(end.buffer.begin(), 8192, 7);
  ASSERT_TRUE(post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, 8192), region.start, region.rkey));
  ASSERT_TRUE(
      post_request(end, IBV_WR_RDMA_READ, end.sge(20'000, 8192), region.start, region.rkey));
  for (int i = 0; i < 2; ++i) {
    const auto done = end.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(end.buffer[28'191], 7);
  talk.to_target.give();
  target.expect_exit(0);
}

TEST(Frames, AChildOfTheTargetKeepsItsBytesWhileAPeerWrites) {
  Talk talk;
  ForkedChild target = start_target_in_frames(talk, [&](Endpoint& end) {
    std::fill(end.buffer.begin(), end.buffer.end(), 1);
    Signal written;
    ForkedChild child([&] {
      HOLDS(written.take());
      const bool same =
          std::all_of(end.buffer.begin(), end.buffer.end(), [](unsigned char x) { return x == 1; });
      std::fill(end.buffer.begin(), end.buffer.end(), 3);
      return same ? 0 : 2;
    });
    talk.to_initiator.give();
    HOLDS(talk.to_target.take());
    written.give();
    HOLDS(child.wait() == 0);
    HOLDS(std::all_of(end.buffer.begin(), end.buffer.begin() + 9000,
                      [](unsigned char x) { return x == 7; }));
    HOLDS(end.buffer[9000] == 1);
    return 0;
  });
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  const Address peer = connect_initiator(end, talk);
  ASSERT_TRUE(talk.to_initiator.take());
  std::fill_n(end.buffer.begin(), 9000, 7);
  ASSERT_TRUE(post_request(end, IBV_WR_RDMA_WRITE, end.sge(0, 9000), peer.start, peer.rkey));
  const auto done = end.wait();
  ASSERT_TRUE(done && done->status == IBV_WC_SUCCESS);
  talk.to_target.give();
  target.expect_exit(0);
}

// Packets, too, land in frames.
TEST(Frames, TakeWhatArrivesAsPackets) {
  setenv("SOFTHCA_MEMORY", "frames", 1);
  setenv("SOFTHCA_LOCAL", "off", 1);
  Pair pair;
  EXPECT_TRUE(pair.works());
}

}  // namespace
}  // namespace verbs_test
