// Matching of tags: messages that take the receive that waits for their tag.
#include <infiniband/tm_types.h>

#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

__be64 big_endian(std::uint64_t value) { return __builtin_bswap64(value); }

// `a` sends; `b` receives by tags.
class Tags : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    ibv_cq_init_attr_ex with_tags{};
    with_tags.cqe = 64;
    with_tags.wc_flags = std::uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_TM_INFO;
    cq = ibv_create_cq_ex(b.context, &with_tags);
    ASSERT_NE(cq, nullptr);
    srq = create(4, 8);
    ASSERT_NE(srq, nullptr);
    ASSERT_EQ(ibv_destroy_qp(b.qp), 0);
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = b.cq;
    wanted.srq = srq;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {1, 0, 1, 0, 0};
    b.qp = ibv_create_qp(b.pd, &wanted);
    ASSERT_NE(b.qp, nullptr);
    connect(a, b);
  }
  void TearDown() override {
    EXPECT_TRUE(b.qp == nullptr || ibv_destroy_qp(b.qp) == 0);
    b.qp = nullptr;
    EXPECT_TRUE(srq == nullptr || ibv_destroy_srq(srq) == 0);
    EXPECT_TRUE(cq == nullptr || ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
  }
  ibv_srq* create(std::uint32_t tags, std::uint32_t operations) {
    ibv_srq_init_attr_ex wanted{};
    wanted.attr = {8, 1, 0};
    wanted.comp_mask =
        IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
    wanted.srq_type = IBV_SRQT_TM;
    wanted.pd = b.pd;
    wanted.cq = ibv_cq_ex_to_cq(cq);
    wanted.tm_cap = {tags, operations};
    errno = 0;
    return ibv_create_srq_ex(b.context, &wanted);
  }
  int post(ibv_ops_wr& wr) {
    ibv_ops_wr* bad = nullptr;
    const int code = ibv_post_srq_ops(srq, &wr, &bad);
    EXPECT_EQ(bad, code == 0 ? nullptr : &wr);
    return code;
  }
  ibv_ops_wr adding(std::uint64_t tag, ibv_sge& sge) {
    ibv_ops_wr wr{};
    wr.wr_id = tag + 1000;
    wr.opcode = IBV_WR_TAG_ADD;
    wr.flags = IBV_OPS_SIGNALED;
    wr.tm.unexpected_cnt = unexpected;
    wr.tm.add.recv_wr_id = tag;
    wr.tm.add.sg_list = &sge;
    wr.tm.add.num_sge = 1;
    wr.tm.add.tag = tag;
    wr.tm.add.mask = 0xffff;
    return wr;
  }
  int send(std::uint64_t tag, std::uint32_t bytes) {
    ibv_tmh header{};
    header.opcode = IBV_TMH_EAGER;
    header.app_ctx = __builtin_bswap32(0x0708);
    header.tag = big_endian(tag);
    std::memcpy(a.buffer.data(), &header, sizeof header);
    ibv_sge sge = a.sge(0, static_cast<std::uint32_t>(sizeof header) + bytes);
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(a.qp, &wr, &bad);
  }
  struct Completion {
    std::uint64_t wr_id{};
    ibv_wc_status status{};
    ibv_wc_opcode opcode{};
    unsigned flags{};
    std::uint32_t bytes{};
    ibv_wc_tm_info tag{};
  };
  // The next completion of the queue that matches; nothing after ten seconds.
  std::optional<Completion> wait() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    ibv_poll_cq_attr attributes{};
    while (std::chrono::steady_clock::now() < deadline) {
      if (ibv_start_poll(cq, &attributes) != 0) continue;
      Completion done{cq->wr_id,
                      cq->status,
                      ibv_wc_read_opcode(cq),
                      ibv_wc_read_wc_flags(cq),
                      ibv_wc_read_byte_len(cq),
                      {}};
      ibv_wc_read_tm_info(cq, &done.tag);
      ibv_end_poll(cq);
      return done;
    }
    ADD_FAILURE() << "no completion";
    return std::nullopt;
  }

  Endpoint a;
  Endpoint b;
  ibv_cq_ex* cq = nullptr;
  ibv_srq* srq = nullptr;
  std::uint32_t unexpected = 0;
};

TEST_F(Tags, AMessageTakesTheReceiveThatWaitsForItsTag) {
  ibv_sge first = b.sge(1000, 4000);
  ibv_sge second = b.sge(10000, 4000);
  for (const auto& [tag, sge] : {std::pair{7u, &first}, {9u, &second}}) {
    ibv_ops_wr wr = adding(tag, *sge);
    ASSERT_EQ(post(wr), 0);
    const auto added = wait();
    ASSERT_TRUE(added);
    EXPECT_EQ(added->opcode, IBV_WC_TM_ADD);
    EXPECT_EQ(added->wr_id, tag + 1000);
    EXPECT_EQ(added->flags, 0u);
  }
  std::memset(a.buffer.data() + 16, 0x4d, 3000);
  ASSERT_EQ(send(0xff0009, 3000), 0);
  const auto done = wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  EXPECT_EQ(done->opcode, IBV_WC_TM_RECV);
  EXPECT_EQ(done->wr_id, 9u);
  EXPECT_EQ(done->flags, static_cast<unsigned>(IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID));
  EXPECT_EQ(done->bytes, 3000u);
  EXPECT_EQ(done->tag.tag, 0xff0009u);
  EXPECT_EQ(done->tag.priv, 0x0708u);
  EXPECT_EQ(b.buffer[10000], 0x4d);
  EXPECT_EQ(b.buffer[12999], 0x4d);
  EXPECT_EQ(b.buffer[13000], 0);
  EXPECT_EQ(b.buffer[1000], 0);
}

TEST_F(Tags, ATagAddedBehindAnUnexpectedMessageWaitsForTheProgramToSeeIt) {
  ibv_sge sge = b.sge(0, 100);
  ibv_recv_wr receive{};
  receive.wr_id = 55;
  receive.sg_list = &sge;
  receive.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_srq_recv(srq, &receive, &bad), 0);
  ASSERT_EQ(ibv_post_srq_recv(srq, &receive, &bad), 0);
  ASSERT_EQ(send(3, 20), 0);
  auto done = wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->opcode, IBV_WC_TM_RECV);
  EXPECT_EQ(done->wr_id, 55u);
  EXPECT_EQ(done->flags, 0u);
  EXPECT_EQ(done->bytes, 36u);  // its header is there for the program to read
  ibv_sge tagged = b.sge(1000, 100);
  ibv_ops_wr add = adding(3, tagged);
  ASSERT_EQ(post(add), 0);
  done = wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->flags, static_cast<unsigned>(IBV_WC_TM_SYNC_REQ));
  ibv_ops_wr sync{};
  sync.opcode = IBV_WR_TAG_SYNC;
  sync.flags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC;
  sync.tm.unexpected_cnt = 1;
  ASSERT_EQ(post(sync), 0);
  done = wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->opcode, IBV_WC_TM_SYNC);
  EXPECT_EQ(done->flags, 0u);
  ASSERT_EQ(send(3, 20), 0);
  done = wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->wr_id, 3u);
}

TEST_F(Tags, ATagThatIsRemovedIsNotMatchedAndCannotBeRemovedAgain) {
  ibv_sge sge = b.sge(1000, 100);
  ibv_ops_wr add = adding(3, sge);
  ASSERT_EQ(post(add), 0);
  ASSERT_TRUE(wait());
  ibv_ops_wr remove{};
  remove.wr_id = 4;
  remove.opcode = IBV_WR_TAG_DEL;
  remove.flags = IBV_OPS_SIGNALED;
  remove.tm.handle = add.tm.handle;
  ASSERT_EQ(post(remove), 0);
  auto done = wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->opcode, IBV_WC_TM_DEL);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  ASSERT_EQ(post(remove), 0);
  done = wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->wr_id, 4u);
  EXPECT_EQ(done->status, IBV_WC_TM_ERR);
}

TEST_F(Tags, WhatTheListDoesNotTakeIsRefused) {
  ibv_sge sge = b.sge(0, 8);
  for (std::uint64_t tag = 0; tag < 4; ++tag) {
    ibv_ops_wr add = adding(tag, sge);
    ASSERT_EQ(post(add), 0);
  }
  ibv_ops_wr add = adding(4, sge);
  EXPECT_EQ(post(add), ENOMEM);
  add.flags = 8;
  EXPECT_EQ(post(add), EINVAL);
  add.flags = 0;
  add.opcode = static_cast<ibv_ops_wr_opcode>(3);
  EXPECT_EQ(post(add), EOPNOTSUPP);
  ibv_device_attr_ex device{};
  ASSERT_EQ(ibv_query_device_ex(b.context, nullptr, &device), 0);
  EXPECT_EQ(create(device.tm_caps.max_num_tags + 1, 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(create(1, device.tm_caps.max_ops + 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(create(0, 1), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_srq* most = create(device.tm_caps.max_num_tags, device.tm_caps.max_ops);
  ASSERT_NE(most, nullptr);
  EXPECT_EQ(ibv_destroy_srq(most), 0);
}

}  // namespace
}  // namespace verbs_test
