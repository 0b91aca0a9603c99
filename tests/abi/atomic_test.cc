// Atomics as a program sees them: numbers of this host go in, memory and completions hold them.
#include <array>
#include <span>

#include "endpoint.h"

namespace verbs_test {
namespace {

class AtomicVerbs : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    connect(a, b);
    set_word(b, 0, 41);
  }
  static void set_word(Endpoint& end, std::size_t offset, std::uint64_t value) {
    std::memcpy(end.buffer.data() + offset, &value, sizeof value);
  }
  static std::uint64_t word(const Endpoint& end, std::size_t offset) {
    std::uint64_t value = 0;
    std::memcpy(&value, end.buffer.data() + offset, sizeof value);
    return value;
  }
  static ibv_send_wr request(const Endpoint& target, ibv_wr_opcode opcode, std::uint64_t offset,
                             std::uint64_t compare_add, std::uint64_t swap = 0) {
    ibv_send_wr wr{};
    wr.wr_id = 5;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.atomic.remote_addr = target.address(offset);
    wr.wr.atomic.rkey = target.mr->rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    return wr;
  }
  int post(ibv_send_wr wr, std::span<ibv_sge> sges) {
    wr.sg_list = sges.data();
    wr.num_sge = static_cast<int>(sges.size());
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(a.qp, &wr, &bad);
  }
  ibv_wc_status run(const ibv_send_wr& wr, std::span<ibv_sge> sges) {
    EXPECT_EQ(post(wr, sges), 0);
    const auto done = a.wait();
    return done ? done->status : IBV_WC_GENERAL_ERR;
  }
  Endpoint a;
  Endpoint b;
};

TEST_F(AtomicVerbs, AddAndSwapNumbersOfThisHost) {
  std::array sges{a.sge(64, 8)};
  ASSERT_EQ(post(request(b, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0x0102), sges), 0);
  auto done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  EXPECT_EQ(done->opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(done->byte_len, 8u);
  EXPECT_EQ(word(a, 64), 41u);
  EXPECT_EQ(word(b, 0), 41u + 0x0102);
  ASSERT_EQ(post(request(b, IBV_WR_ATOMIC_CMP_AND_SWP, 0, 41 + 0x0102, 0x1122334455667788), sges),
            0);
  done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(done->byte_len, 8u);
  EXPECT_EQ(word(a, 64), 41u + 0x0102);
  EXPECT_EQ(word(b, 0), 0x1122334455667788u);
  // What does not compare equal is told and left.
  std::array halves{a.sge(64, 3), a.sge(80, 5)};
  EXPECT_EQ(run(request(b, IBV_WR_ATOMIC_CMP_AND_SWP, 0, 1, 2), halves), IBV_WC_SUCCESS);
  EXPECT_EQ(word(b, 0), 0x1122334455667788u);
  EXPECT_EQ(std::memcmp(a.buffer.data() + 64, b.buffer.data(), 3), 0);
  EXPECT_EQ(std::memcmp(a.buffer.data() + 80, b.buffer.data() + 3, 5), 0);
}

TEST_F(AtomicVerbs, AreBuiltCallByCallToo) {
  connect_extended(a, b, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
  if (HasFatalFailure()) return;
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(a.qp);
  ibv_wr_start(qp);
  qp->wr_flags = IBV_SEND_SIGNALED;
  qp->wr_id = 1;
  ibv_wr_atomic_fetch_add(qp, b.mr->rkey, b.address(0), 9);
  ibv_wr_set_sge(qp, a.mr->lkey, a.address(64), 8);
  qp->wr_id = 2;
  ibv_wr_atomic_cmp_swp(qp, b.mr->rkey, b.address(0), 50, 77);
  ibv_wr_set_sge(qp, a.mr->lkey, a.address(72), 8);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  for (const ibv_wc_opcode opcode : {IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP}) {
    const auto done = a.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    EXPECT_EQ(done->opcode, opcode);
  }
  EXPECT_EQ(word(a, 64), 41u);
  EXPECT_EQ(word(a, 72), 50u);
  EXPECT_EQ(word(b, 0), 77u);
}

// C63: the address is the peer's to refuse.
TEST_F(AtomicVerbs, RefusesAMisalignedWord) {
  std::array sges{a.sge(64, 8)};
  EXPECT_EQ(run(request(b, IBV_WR_ATOMIC_FETCH_AND_ADD, 4, 1), sges), IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(word(b, 0), 41u);
}

// C63: the original value is eight bytes, and they are never inline.
TEST_F(AtomicVerbs, RefusesABufferThatDoesNotHoldEightBytes) {
  std::array four{a.sge(64, 4)};
  ibv_send_wr wr = request(b, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1);
  wr.send_flags |= IBV_SEND_INLINE;
  EXPECT_EQ(post(wr, four), EINVAL);
  wr.send_flags = 0;
  EXPECT_EQ(run(wr, four), IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(word(b, 0), 41u);
}

// C62: checked before anything is sent.
TEST_F(AtomicVerbs, CompletesWithAnErrorWhereTheLocalKeyIsWrong) {
  std::array sges{a.sge(64, 8)};
  sges[0].lkey ^= 1;
  EXPECT_EQ(run(request(b, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1), sges), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(a.state(), IBV_QPS_ERR);
  EXPECT_EQ(word(b, 0), 41u);
  sges[0].lkey ^= 1;
  EXPECT_EQ(run(request(b, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1), sges), IBV_WC_WR_FLUSH_ERR);
}

TEST_F(AtomicVerbs, NeedTheRightOfTheRegion) {
  ASSERT_EQ(ibv_dereg_mr(b.mr), 0);
  b.mr = ibv_reg_mr(b.pd, b.buffer.data(), b.buffer.size(), kAllAccess & ~IBV_ACCESS_REMOTE_ATOMIC);
  ASSERT_NE(b.mr, nullptr);
  std::array sges{a.sge(64, 8)};
  EXPECT_EQ(run(request(b, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1), sges), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(word(b, 0), 41u);
}

}  // namespace
}  // namespace verbs_test
