// What may be posted, in which state, and what becomes of a list with one bad request.
#include "pair.h"

namespace conformance {
namespace {

using Posting = Pair;

// CASES C67: receives from INIT on, sends from RTS on; in ERR both are taken, and flushed.
TEST(PostingState, DecidesWhatIsAccepted) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  EXPECT_GT(post_receive(end, 1), 0);
  EXPECT_GT(post(end, {}), 0);
  ASSERT_EQ(end.to_init(), 0);
  EXPECT_EQ(post_receive(end, 1), 0);
  EXPECT_GT(post(end, {}), 0);
  ASSERT_EQ(end.to_rtr(end.gid(), end.qp->qp_num), 0);
  EXPECT_EQ(post_receive(end, 2), 0);
  EXPECT_GT(post(end, {}), 0);
  ASSERT_EQ(move(end, IBV_QPS_ERR), 0);
  EXPECT_EQ(post_receive(end, 3), 0);
  EXPECT_EQ(post(end, {.id = 4}), 0);
  for (int i = 0; i < 4; ++i) {
    const auto done = end.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_WR_FLUSH_ERR);
  }
}

// CASES C38: those in front of the bad one are posted, that and those behind are not; the answer is
// a positive errno and the place.
TEST_F(Posting, AListIsPostedUpToTheBadOne) {
  std::vector<ibv_sge> sges(64, a.sge(0, 8));
  std::vector<ibv_send_wr> wrs(5);
  for (std::size_t i = 0; i < wrs.size(); ++i) {
    wrs[i] = {};
    wrs[i].wr_id = i;
    wrs[i].sg_list = sges.data();
    wrs[i].num_sge = 1;
    wrs[i].opcode = IBV_WR_RDMA_WRITE;
    wrs[i].send_flags = IBV_SEND_SIGNALED;
    wrs[i].wr.rdma.rkey = b.mr->rkey;
    wrs[i].wr.rdma.remote_addr = b.address(kReceiveAt);
    wrs[i].next = i + 1 < wrs.size() ? &wrs[i + 1] : nullptr;
  }
  wrs[2].num_sge = 64;  // more than was asked for
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a.qp, wrs.data(), &bad), EINVAL);
  EXPECT_EQ(bad, &wrs[2]);
  for (std::uint64_t id = 0; id < 2; ++id) {
    const auto done = a.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->wr_id, id);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  }
  wrs[2].num_sge = 1;
  EXPECT_EQ(ibv_post_send(a.qp, bad, &bad), 0);  // again, from there
  for (std::uint64_t id = 2; id < 5; ++id) {
    const auto done = a.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->wr_id, id);
  }
  EXPECT_TRUE(drain(a).empty());
}

// The queue is full: ENOMEM, and the place. Nothing is lost and nothing done twice.
TEST_F(Posting, AFullQueueTakesWhatStillFits) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(ibv_query_qp(b.qp, &attr, IBV_QP_CAP, &initial), 0);
  const std::uint32_t room = attr.cap.max_recv_wr;
  std::vector<ibv_recv_wr> wrs(room + 3);
  for (std::size_t i = 0; i < wrs.size(); ++i) {
    wrs[i] = {};
    wrs[i].wr_id = i;
    wrs[i].next = i + 1 < wrs.size() ? &wrs[i + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_recv(b.qp, wrs.data(), &bad), ENOMEM);
  EXPECT_EQ(bad, &wrs[room]);
  ASSERT_EQ(move(b, IBV_QPS_ERR), 0);
  for (std::uint64_t id = 0; id < room; ++id) {
    const auto done = b.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->wr_id, id);
  }
  EXPECT_TRUE(drain(b).empty());
}

// CASES C61
TEST_F(Posting, MoreEntriesThanTheQueuePairHasAreRefused) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(ibv_query_qp(a.qp, &attr, IBV_QP_CAP, &initial), 0);
  std::vector<ibv_sge> sges(4096, a.sge(0, 1));  // a device may look at as many as it could take
  for (const int count : {static_cast<int>(attr.cap.max_send_sge) + 1, 0x7fffffff, -1}) {
    ibv_send_wr wr{};
    wr.sg_list = sges.data();
    wr.num_sge = count;
    wr.opcode = IBV_WR_SEND;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(a.qp, &wr, &bad), EINVAL) << count;
    EXPECT_EQ(bad, &wr);
  }
  for (const int count : {static_cast<int>(attr.cap.max_recv_sge) + 1, 0x7fffffff, -1}) {
    ibv_recv_wr wr{};
    wr.sg_list = sges.data();
    wr.num_sge = count;
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_recv(a.qp, &wr, &bad), EINVAL) << count;
    EXPECT_EQ(bad, &wr);
  }
  EXPECT_TRUE(drain(a).empty());
}

// CASES C73: an opcode is refused when it is posted, or completes; silence is no answer.
TEST(PostingOpcode, IsRefusedOrCompletes) {
  for (unsigned opcode = 0; opcode < 64; ++opcode) {
    Endpoint from, to;
    ASSERT_TRUE(from.is_ready() && to.is_ready());
    verbs_test::connect(from, to);
    ASSERT_EQ(post_receive(to, 1), 0);
    ibv_sge piece = from.sge(0, 8);
    ibv_send_wr wr{};
    wr.sg_list = &piece;
    wr.num_sge = 1;
    std::memcpy(&wr.opcode, &opcode, sizeof opcode);
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.atomic.remote_addr = to.address(kReceiveAt);
    wr.wr.atomic.rkey = to.mr->rkey;
    if (opcode < IBV_WR_ATOMIC_CMP_AND_SWP) {
      wr.wr.rdma.remote_addr = to.address(kReceiveAt);
      wr.wr.rdma.rkey = to.mr->rkey;
    }
    ibv_send_wr* bad = nullptr;
    const int refused = ibv_post_send(from.qp, &wr, &bad);
    EXPECT_GE(refused, 0);
    if (refused != 0) {
      EXPECT_EQ(bad, &wr);
      EXPECT_GT(opcode, unsigned{IBV_WR_ATOMIC_FETCH_AND_ADD}) << "refused";
      continue;
    }
    const auto done = from.wait();
    ASSERT_TRUE(done) << "opcode " << opcode;
    if (opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD) {
      EXPECT_EQ(done->status, IBV_WC_SUCCESS) << opcode;
    }
  }
}

// CASES C60: both ways to post carry the same bytes from the same list, empty entries among them.
TEST(PostingList, IsTheSameThroughBothInterfaces) {
  Endpoint from, to;
  ASSERT_TRUE(from.is_ready() && to.is_ready());
  auto wanted = verbs_test::extended_attributes(from.pd, from.cq, IBV_QPT_RC, {16, 16, 4, 1, 64},
                                                IBV_QP_EX_WITH_RDMA_WRITE);
  ASSERT_EQ(ibv_destroy_qp(from.qp), 0);
  from.qp = ibv_create_qp_ex(from.context, &wanted);
  if (from.qp == nullptr) GTEST_SKIP() << "the device has no extended queue pairs";
  ibv_qp_ex* const extended = ibv_qp_to_qp_ex(from.qp);
  verbs_test::connect(from, to);
  for (std::size_t i = 0; i < from.buffer.size(); ++i)
    from.buffer[i] = static_cast<unsigned char>(i * 7 + i / 256);
  unsigned seed = 1;
  const auto next = [&seed](unsigned below) {
    seed = seed * 1103515245 + 12345;
    return seed / 65536 % below;
  };
  for (int round = 0; round < 50; ++round) {
    std::vector<ibv_sge> list(next(5));
    std::vector<unsigned char> expected;
    for (ibv_sge& piece : list) {
      const std::uint32_t at = next(4096), bytes = next(3) == 0 ? 0 : next(700);
      piece = from.sge(at, bytes);
      expected.insert(expected.end(), from.buffer.begin() + at, from.buffer.begin() + at + bytes);
    }
    for (const bool by_list : {true, false}) {
      std::fill(to.buffer.begin(), to.buffer.end(), static_cast<unsigned char>(0xee));
      if (by_list) {
        ibv_send_wr wr{};
        wr.sg_list = list.data();
        wr.num_sge = static_cast<int>(list.size());
        wr.opcode = IBV_WR_RDMA_WRITE;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.rdma.rkey = to.mr->rkey;
        wr.wr.rdma.remote_addr = to.address(kReceiveAt);
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(from.qp, &wr, &bad), 0);
      } else {
        ibv_wr_start(extended);
        extended->wr_id = 1;
        extended->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(extended, to.mr->rkey, to.address(kReceiveAt));
        ibv_wr_set_sge_list(extended, list.size(), list.data());
        ASSERT_EQ(ibv_wr_complete(extended), 0);
      }
      const auto done = from.wait();
      ASSERT_TRUE(done);
      ASSERT_EQ(done->status, IBV_WC_SUCCESS);
      const auto at = to.buffer.begin() + static_cast<std::ptrdiff_t>(kReceiveAt);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), at));
      EXPECT_EQ(*(at + static_cast<std::ptrdiff_t>(expected.size())), 0xee);
    }
  }
}

// CASES C59: what is inline is copied when it is posted, needs no key, and is bounded by its sum.
TEST(PostingInline, CopiesAtOnceNeedsNoKeyAndHasALimit) {
  Endpoint from, to;
  ASSERT_TRUE(from.is_ready() && to.is_ready());
  verbs_test::connect(from, to);
  ibv_qp_attr attr{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(ibv_query_qp(from.qp, &attr, IBV_QP_CAP, &initial), 0);
  const std::uint32_t most = attr.cap.max_inline_data;
  std::vector<unsigned char> local(most + 1, 0x11);
  const auto address = reinterpret_cast<std::uintptr_t>(local.data());
  ibv_sge pieces[2] = {{address, most - 1, 0xffffffff}, {address, 1, 0}};
  Send send = write_to(to, 1);
  ibv_send_wr wr{};
  wr.sg_list = pieces;
  wr.num_sge = 2;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
  wr.wr.rdma.rkey = send.rkey;
  wr.wr.rdma.remote_addr = send.remote;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(from.qp, &wr, &bad), 0);
  std::fill(local.begin(), local.end(), static_cast<unsigned char>(0x22));
  ASSERT_TRUE(from.wait());
  EXPECT_EQ(to.buffer[kReceiveAt], 0x11);
  EXPECT_EQ(to.buffer[kReceiveAt + most - 1], 0x11);
  pieces[1].length = 2;  // each fits, both do not
  EXPECT_GT(ibv_post_send(from.qp, &wr, &bad), 0);
  pieces[0].length = pieces[1].length = 0x80000000;  // nor if their sum wraps 32 bits
  EXPECT_GT(ibv_post_send(from.qp, &wr, &bad), 0);
  pieces[0].length = 4;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;  // nor where bytes come back
  EXPECT_GT(ibv_post_send(from.qp, &wr, &bad), 0);
  EXPECT_TRUE(drain(from).empty());
}

}  // namespace
}  // namespace conformance
