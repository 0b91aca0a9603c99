// Memory windows and invalidation, as a verbs program uses them.
#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

constexpr std::size_t kAt = 4096;

class MemoryWindow : public ::testing::Test {
 protected:
  static Options bindable() {
    Options options;
    options.region_access = kAllAccess | IBV_ACCESS_MW_BIND;
    return options;
  }
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    connect(a, b);
  }
  ibv_mw_bind_info open(std::uint64_t length, unsigned access = kRemoteAccess) {
    return {b.mr, b.address(kAt), length, access};
  }
  // b opens `length` bytes by a work request.
  int bind(ibv_mw* mw, std::uint32_t key, const ibv_mw_bind_info& what) {
    ibv_send_wr wr{};
    wr.wr_id = 2;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.bind_mw = {mw, key, what};
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(b.qp, &wr, &bad);
  }
  void expect(Endpoint& end, ibv_wc_opcode opcode) {
    const auto done = end.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    EXPECT_EQ(done->opcode, opcode);
  }
  ibv_wc_status write(std::uint32_t rkey, std::uint64_t address, std::uint32_t length = 8) {
    ibv_sge sge = a.sge(0, length);
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {address, rkey};
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
    const auto done = a.wait();
    return done ? done->status : IBV_WC_GENERAL_ERR;
  }
  int invalidate(Endpoint& by, ibv_wr_opcode opcode, std::uint32_t key) {
    ibv_send_wr wr{};
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.invalidate_rkey = key;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(by.qp, &wr, &bad);
  }
  Endpoint a;
  Endpoint b{bindable()};
};

// ibv_bind_mw gives the window a new key; no bytes unbind it. C45: its region stays meanwhile.
TEST_F(MemoryWindow, OfType1IsBoundByItsOwnCall) {
  ibv_mw* mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1);
  ASSERT_NE(mw, nullptr);
  EXPECT_EQ(mw->type, IBV_MW_TYPE_1);
  const std::uint32_t first = mw->rkey;
  ibv_mw_bind wanted{5, IBV_SEND_SIGNALED, open(100)};
  ASSERT_EQ(ibv_bind_mw(b.qp, mw, &wanted), 0);
  EXPECT_EQ(mw->rkey, ibv_inc_rkey(first));
  expect(b, IBV_WC_BIND_MW);
  a.buffer[0] = 0x5a;
  EXPECT_EQ(write(mw->rkey, b.address(kAt)), IBV_WC_SUCCESS);
  EXPECT_EQ(b.buffer[kAt], 0x5a);
  EXPECT_EQ(ibv_dereg_mr(b.mr), EBUSY);
  EXPECT_EQ(ibv_rereg_mr(b.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kAllAccess),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EBUSY);
  wanted.bind_info = {nullptr, 0, 0, 0};
  ASSERT_EQ(ibv_bind_mw(b.qp, mw, &wanted), 0);
  expect(b, IBV_WC_BIND_MW);
  EXPECT_EQ(write(mw->rkey, b.address(kAt)), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

TEST_F(MemoryWindow, OfType2IsInvalidatedByEitherSide) {
  ibv_mw* mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
  ASSERT_NE(mw, nullptr);
  std::uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(bind(mw, key, open(8)), 0);
  expect(b, IBV_WC_BIND_MW);
  EXPECT_EQ(write(key, b.address(kAt)), IBV_WC_SUCCESS);
  ASSERT_EQ(invalidate(b, IBV_WR_LOCAL_INV, key), 0);
  expect(b, IBV_WC_LOCAL_INV);
  ASSERT_EQ(bind(mw, key, open(8)), 0) << "C44: the same key again";
  expect(b, IBV_WC_BIND_MW);
  EXPECT_EQ(write(key, b.address(kAt)), IBV_WC_SUCCESS);
  ibv_recv_wr receive{};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(b.qp, &receive, &bad), 0);
  ASSERT_EQ(invalidate(a, IBV_WR_SEND_WITH_INV, key), 0);
  expect(a, IBV_WC_SEND);
  const auto received = b.wait();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->opcode, IBV_WC_RECV);
  EXPECT_EQ(received->wc_flags, unsigned{IBV_WC_WITH_INV});
  EXPECT_EQ(received->invalidated_rkey, key);
  EXPECT_EQ(write(key, b.address(kAt)), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

// C43: the region of `a` does not allow windows.
TEST_F(MemoryWindow, ARefusedBindCompletesWithItsOwnStatus) {
  ibv_mw* mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
  ASSERT_NE(mw, nullptr);
  ibv_mw_bind_info too_long = open(b.buffer.size());
  ASSERT_EQ(bind(mw, ibv_inc_rkey(mw->rkey), too_long), 0);
  const auto done = b.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_MW_BIND_ERR);
  EXPECT_NE(done->vendor_err, 0u);
  EXPECT_EQ(b.state(), IBV_QPS_ERR);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

TEST_F(MemoryWindow, IsRefusedAtOnceWhereItMakesNoSense) {
  errno = 0;
  EXPECT_EQ(ibv_alloc_mw(b.pd, static_cast<ibv_mw_type>(3)), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_mw* one = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1);
  ibv_mw* two = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
  ASSERT_TRUE(one != nullptr && two != nullptr);
  EXPECT_EQ(bind(nullptr, 0, open(8)), EINVAL);
  EXPECT_EQ(bind(one, ibv_inc_rkey(one->rkey), open(8)), EINVAL);
  EXPECT_EQ(bind(two, two->rkey + 0x100, open(8)), EINVAL);
  EXPECT_EQ(bind(two, two->rkey, open(8, IBV_ACCESS_ON_DEMAND)), EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(b.pd), EBUSY);
  EXPECT_EQ(ibv_dealloc_mw(one), 0);
  EXPECT_EQ(ibv_dealloc_mw(two), 0);
}

// Built call by call; the window counts from zero.
TEST_F(MemoryWindow, IsBoundCallByCallToo) {
  connect_extended(
      b, a, IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV);
  if (HasFatalFailure()) return;
  ibv_mw* mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
  ASSERT_NE(mw, nullptr);
  const std::uint32_t key = ibv_inc_rkey(mw->rkey);
  const ibv_mw_bind_info what = open(8, kRemoteAccess | IBV_ACCESS_ZERO_BASED);
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(b.qp);
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_start(qp);
  ibv_wr_bind_mw(qp, mw, key, &what);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  expect(b, IBV_WC_BIND_MW);
  a.buffer[7] = 0x77;
  EXPECT_EQ(write(key, 0), IBV_WC_SUCCESS);
  EXPECT_EQ(b.buffer[kAt + 7], 0x77);
  ibv_wr_start(qp);
  ibv_wr_local_inv(qp, key);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  expect(b, IBV_WC_LOCAL_INV);
  EXPECT_EQ(write(key, 0), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

// C74: as many as are said to be, and no more; a context takes with it what is left.
TEST_F(MemoryWindow, ThereAreAsManyAsAdvertised) {
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  ibv_device_attr attr{};
  ASSERT_EQ(ibv_query_device(context, &attr), 0);
  ibv_pd* pd = ibv_alloc_pd(context);
  ASSERT_NE(pd, nullptr);
  int count = 0;
  while (ibv_alloc_mw(pd, IBV_MW_TYPE_1) != nullptr) ++count;
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(count, attr.max_mw);
  EXPECT_EQ(ibv_close_device(context), 0);
  ibv_mw* mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1);
  EXPECT_NE(mw, nullptr);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

// A program that closes its device with everything in place leaves nothing behind.
TEST(MemoryWindowAtClose, GoesWithTheContextWhateverCameFirst) {
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  ibv_pd* pd = ibv_alloc_pd(context);
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);  // before its region
  static char memory[4096];
  ibv_mr* mr = ibv_reg_mr(pd, memory, sizeof memory, kAllAccess | IBV_ACCESS_MW_BIND);
  ibv_cq* cq = ibv_create_cq(context, 4, nullptr, nullptr, 0);
  ASSERT_TRUE(mw != nullptr && mr != nullptr && cq != nullptr);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(MemoryWindow, AnAtomicWriteIsEightBytes) {
  ibv_sge sge = a.sge(0, 8);
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_ATOMIC_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {b.address(kAt), b.mr->rkey};
  ibv_send_wr* bad = nullptr;
  std::memset(a.buffer.data(), 0x3c, 16);
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  expect(a, IBV_WC_ATOMIC_WRITE);
  EXPECT_EQ(std::memcmp(b.buffer.data() + kAt, a.buffer.data(), 8), 0);
  EXPECT_EQ(b.buffer[kAt + 8], 0);
  connect_extended(a, b, IBV_QP_EX_WITH_ATOMIC_WRITE);
  if (HasFatalFailure()) return;
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(a.qp);
  qp->wr_flags = IBV_SEND_SIGNALED;
  std::uint64_t word = 0x0102030405060708;
  ibv_wr_start(qp);
  qp->wr_atomic_write(qp, b.mr->rkey, b.address(kAt + 8), &word);
  word = 0;  // taken when the call was made
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  expect(a, IBV_WC_ATOMIC_WRITE);
  word = 0x0102030405060708;
  EXPECT_EQ(std::memcmp(b.buffer.data() + kAt + 8, &word, 8), 0);
}

}  // namespace
}  // namespace verbs_test
