// munmap, mprotect, MADV_DONTNEED and a new mapping under a live registration: the program lives,
// and gets a bounded status, the frame that was pinned, or what the address now holds, as
// ARCHITECTURE.md says for its mode ("The mover never faults the program").
//
// SOFTHCA_PIN, SOFTHCA_STRICT and SOFTHCA_MEMORY say which; each case runs in a process of its own.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include "endpoint.h"

namespace verbs_test {
namespace {

constexpr std::size_t kBytes = 16 * 4096;
// Where the kernel puts nothing by itself: what a test unmaps stays unmapped. (Sanitizers allow
// it.)
void* const kFarAway = reinterpret_cast<void*>(0x567f'0000'0000);
// trace/reason.h
constexpr std::uint32_t kFrameGone = 30, kFrameProtected = 31, kFrameReplaced = 32;

std::string env(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}
bool is_strict() { return env("SOFTHCA_STRICT") == "1"; }
// Strict and pinned by io_uring, or the device's own (docs/frames.md): the device reaches the
// frames, whatever the addresses say.
bool has_own_frames() { return env("SOFTHCA_MEMORY") == "frames"; }
bool keeps_frames() {
  return (is_strict() && env("SOFTHCA_PIN") == "io_uring") || has_own_frames();
}
bool is_locked() { return env("SOFTHCA_PIN") == "mlock" && !has_own_frames(); }
bool notices_replacement() { return is_strict() && is_locked(); }

class Mapping : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    connect(a, b);
    memory = map(kFarAway, MAP_FIXED_NOREPLACE);
    std::fill_n(memory, kBytes, static_cast<unsigned char>(0xab));
    source = ibv_reg_mr(a.pd, memory, kBytes, kAllAccess);
    target = ibv_reg_mr(b.pd, memory, kBytes, kAllAccess);
    ASSERT_TRUE(source != nullptr && target != nullptr);
  }
  void TearDown() override {
    EXPECT_TRUE(source == nullptr || ibv_dereg_mr(source) == 0);
    EXPECT_TRUE(target == nullptr || ibv_dereg_mr(target) == 0);
    munmap(memory, kBytes);
  }
  static unsigned char* map(void* at, int extra_flags) {
    void* got = mmap(at, kBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | extra_flags, -1, 0);
    EXPECT_NE(got, MAP_FAILED);
    return static_cast<unsigned char*>(got);
  }

  bool post_write(std::uint64_t from, std::uint32_t lkey, std::uint64_t to, std::uint32_t rkey,
                  std::uint32_t bytes) {
    ibv_sge sge{from, bytes, lkey};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = to;
    wr.wr.rdma.rkey = rkey;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(a.qp, &wr, &bad) == 0;
  }
  std::uint64_t at(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory) + offset;
  }

  // One WRITE out of the memory in question; its completion.
  ibv_wc write_from() {
    EXPECT_TRUE(post_write(at(4096), source->lkey, b.address(0), b.mr->rkey, 8192));
    return a.wait().value_or(ibv_wc{});
  }
  // One WRITE of 0x5a into it.
  ibv_wc write_into() {
    std::ranges::fill(a.buffer, static_cast<unsigned char>(0x5a));
    EXPECT_TRUE(post_write(a.address(0), a.mr->lkey, at(4096), target->rkey, 8192));
    return a.wait().value_or(ibv_wc{});
  }
  bool arrived(unsigned char value) const {
    return std::all_of(b.buffer.begin(), b.buffer.begin() + 8192,
                       [&](unsigned char x) { return x == value; });
  }

  Endpoint a;
  Endpoint b;
  unsigned char* memory = nullptr;
  ibv_mr* source = nullptr;
  ibv_mr* target = nullptr;
};

TEST_F(Mapping, AfterMunmapASourceIsTheFrameOrABoundedStatus) {
  munmap(memory, kBytes);
  const ibv_wc done = write_from();
  if (keeps_frames()) {
    EXPECT_EQ(done.status, IBV_WC_SUCCESS);
    EXPECT_TRUE(arrived(0xab));
  } else {
    EXPECT_EQ(done.status, IBV_WC_LOC_QP_OP_ERR);
    EXPECT_EQ(done.vendor_err, kFrameGone);
  }
}

TEST_F(Mapping, AfterMunmapATargetIsTheFrameOrABoundedStatus) {
  munmap(memory, kBytes);
  const ibv_wc done = write_into();
  EXPECT_EQ(done.status, keeps_frames() ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR);
}

TEST_F(Mapping, AfterMprotectASourceIsTheFrameOrABoundedStatus) {
  ASSERT_EQ(mprotect(memory, kBytes, PROT_NONE), 0);
  const ibv_wc done = write_from();
  if (keeps_frames()) {
    EXPECT_EQ(done.status, IBV_WC_SUCCESS);
  } else {
    EXPECT_EQ(done.status, IBV_WC_LOC_QP_OP_ERR);
    EXPECT_EQ(done.vendor_err, kFrameProtected);
  }
}

TEST_F(Mapping, AfterMprotectATargetIsTheFrameOrABoundedStatus) {
  ASSERT_EQ(mprotect(memory, kBytes, PROT_READ), 0);
  const ibv_wc done = write_into();
  EXPECT_EQ(done.status, keeps_frames() ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR);
  EXPECT_EQ(memory[4096], keeps_frames() ? 0x5a : 0xab);
}

TEST_F(Mapping, AfterDontneedTheDeviceSeesTheFrameOrFreshPages) {
  const int advised = madvise(memory, kBytes, MADV_DONTNEED);
  if (is_locked()) {
    EXPECT_EQ(advised, -1);  // locked pages are not given back
    EXPECT_EQ(write_from().status, IBV_WC_SUCCESS);
    EXPECT_TRUE(arrived(0xab));
    return;
  }
  ASSERT_EQ(advised, 0);
  EXPECT_EQ(write_from().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(arrived(keeps_frames() ? 0xab : 0));
}

TEST_F(Mapping, AfterANewMappingASourceIsTheFrameOrTheAddress) {
  munmap(memory, kBytes);
  map(memory, MAP_FIXED);
  std::fill_n(memory, kBytes, static_cast<unsigned char>(0xcd));
  const ibv_wc done = write_from();
  if (notices_replacement()) {
    EXPECT_EQ(done.status, IBV_WC_LOC_QP_OP_ERR);
    EXPECT_EQ(done.vendor_err, kFrameReplaced);
  } else {
    EXPECT_EQ(done.status, IBV_WC_SUCCESS);
    EXPECT_TRUE(arrived(keeps_frames() ? 0xab : 0xcd));
  }
}

// CASES C55
TEST_F(Mapping, AfterANewMappingATargetIsTheFrameOrTheAddress) {
  munmap(memory, kBytes);
  map(memory, MAP_FIXED);
  const ibv_wc done = write_into();
  EXPECT_EQ(done.status, notices_replacement() ? IBV_WC_REM_OP_ERR : IBV_WC_SUCCESS);
  const bool follows = !keeps_frames() && !notices_replacement();
  EXPECT_EQ(memory[4096], follows ? 0x5a : 0);
}

// The same while WRITEs are under way, from another thread: nothing hangs, nothing crashes.
TEST_F(Mapping, ChangesUnderTrafficEndWithinBoundsAndLeaveTheProgramAlive) {
  std::thread changer([&] {
    std::this_thread::yield();
    munmap(memory, kBytes);
    map(memory, MAP_FIXED);
    mprotect(memory, kBytes, PROT_NONE);
    munmap(memory, kBytes);
  });
  int posted = 0, completed = 0;
  while (completed < 400) {
    while (posted < 400 && posted - completed < 8) {
      const bool out = posted % 2 == 0;
      const bool ok =
          out ? post_write(at(0), source->lkey, b.address(0), b.mr->rkey, kBytes / 2)
              : post_write(a.address(0), a.mr->lkey, at(kBytes / 2), target->rkey, kBytes / 2);
      if (!ok) break;
      ++posted;
    }
    const auto done = a.wait();
    if (!done) break;
    ++completed;
  }
  changer.join();
  EXPECT_EQ(completed, 400);  // each exactly once, with success, the reason or as flushed
}

}  // namespace
}  // namespace verbs_test
