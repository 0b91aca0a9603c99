// XRC as a program uses it: domains of files, queues that requests name, targets that are shared.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

// A file without a name that anybody could find.
class File {
 public:
  File() : fd_(::memfd_create("xrc", MFD_CLOEXEC)) {}
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

ibv_xrcd* open_domain(ibv_context* context, int fd, int flags = O_CREAT) {
  ibv_xrcd_init_attr wanted{};
  wanted.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  wanted.fd = fd;
  wanted.oflags = flags;
  errno = 0;
  return ibv_open_xrcd(context, &wanted);
}

ibv_srq* create_xrc_queue(Endpoint& end, ibv_xrcd* domain) {
  ibv_srq_init_attr_ex wanted{};
  wanted.attr = {8, 1, 0};
  wanted.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  wanted.srq_type = IBV_SRQT_XRC;
  wanted.pd = end.pd;
  wanted.xrcd = domain;
  wanted.cq = end.cq;
  return ibv_create_srq_ex(end.context, &wanted);
}

ibv_qp* create_target(ibv_context* context, ibv_xrcd* domain, void* qp_context = nullptr) {
  ibv_qp_init_attr_ex wanted{};
  wanted.qp_context = qp_context;
  wanted.qp_type = IBV_QPT_XRC_RECV;
  wanted.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  wanted.xrcd = domain;
  return ibv_create_qp_ex(context, &wanted);
}

ibv_qp* create_sender(Endpoint& end, std::uint64_t operations = 0) {
  ibv_qp_init_attr_ex wanted{};
  wanted.send_cq = end.cq;
  wanted.qp_type = IBV_QPT_XRC_SEND;
  wanted.cap = {16, 5, 1, 5, 0};
  wanted.comp_mask = IBV_QP_INIT_ATTR_PD;
  if (operations != 0) wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  wanted.pd = end.pd;
  wanted.send_ops_flags = operations;
  ibv_qp* qp = ibv_create_qp_ex(end.context, &wanted);
  EXPECT_TRUE(qp == nullptr || wanted.cap.max_recv_wr == 0u);
  return qp;
}

TEST(XrcDomain, FollowsTheRulesOfFiles) {
  ibv_context* one = open_first();
  ibv_context* two = open_first();
  ASSERT_TRUE(one != nullptr && two != nullptr);
  const File file;
  EXPECT_EQ(open_domain(one, file.fd(), 0), nullptr);
  EXPECT_EQ(errno, EAGAIN);  // there is none yet
  ibv_xrcd* first = open_domain(one, file.fd(), O_CREAT | O_EXCL);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(open_domain(two, file.fd(), O_CREAT | O_EXCL), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_xrcd* second = open_domain(two, file.fd(), 0);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(open_domain(one, 12345), nullptr);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(open_domain(one, file.fd(), O_TRUNC), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_xrcd* unnamed = open_domain(one, -1);
  ASSERT_NE(unnamed, nullptr);
  EXPECT_EQ(ibv_close_xrcd(unnamed), 0);
  EXPECT_EQ(ibv_close_xrcd(first), 0);
  EXPECT_EQ(ibv_close_xrcd(second), 0);
  EXPECT_EQ(open_domain(one, file.fd(), 0), nullptr);  // gone with the last of them
  EXPECT_EQ(errno, EAGAIN);
  ibv_xrcd_init_attr half{};
  half.comp_mask = IBV_XRCD_INIT_ATTR_FD;
  errno = 0;
  EXPECT_EQ(ibv_open_xrcd(one, &half), nullptr);
  EXPECT_EQ(errno, EINVAL);
  half.comp_mask = IBV_XRCD_INIT_ATTR_RESERVED;
  errno = 0;
  EXPECT_EQ(ibv_open_xrcd(one, &half), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_close_device(one), 0);
  EXPECT_EQ(ibv_close_device(two), 0);
}

// Two processes have a device each: where the rules of hardware are asked for, the second is
// refused.
TEST(XrcDomain, OfAFileBelongsToOneProcessWhereRulesAreStrict) {
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  const File file;
  ibv_xrcd* domain = open_domain(context, file.fd());
  ASSERT_NE(domain, nullptr);
  for (const char* strict : {"0", "1"}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("SOFTHCA_STRICT", strict, 1);
      ::setenv("SOFTHCA_QUIET", "1", 1);
      ibv_context* own = open_first();
      ibv_xrcd* opened = own == nullptr ? nullptr : open_domain(own, file.fd());
      ::_exit(own == nullptr ? 1 : opened != nullptr ? 2 : errno == EOPNOTSUPP ? 3 : 4);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), *strict == '1' ? 3 : 2);
  }
  EXPECT_EQ(ibv_close_xrcd(domain), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

// Both ends of a connection in one direction: `a` sends, `b` has target and queue.
class XrcPair : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    domain = open_domain(b.context, -1);
    ASSERT_NE(domain, nullptr);
    srq = create_xrc_queue(b, domain);
    ASSERT_NE(srq, nullptr);
    ASSERT_EQ(ibv_get_srq_num(srq, &srqn), 0);
    for (Endpoint* end : {&a, &b}) {
      ASSERT_EQ(ibv_destroy_qp(end->qp), 0);
      end->qp = nullptr;
    }
    b.qp = create_target(b.context, domain, this);
    ASSERT_NE(b.qp, nullptr);
  }
  void connect_sender(std::uint64_t operations = 0) {
    a.qp = create_sender(a, operations);
    ASSERT_NE(a.qp, nullptr);
    ASSERT_EQ(a.to_init(), 0);
    ASSERT_EQ(b.to_init(), 0);
    ASSERT_EQ(a.to_rtr(b.gid(), b.qp->qp_num), 0);
    ASSERT_EQ(b.to_rtr(a.gid(), a.qp->qp_num), 0);
    ASSERT_EQ(a.to_rts(), 0);
    ASSERT_EQ(b.to_rts(), 0);
  }
  void TearDown() override {
    EXPECT_TRUE(b.qp == nullptr || ibv_destroy_qp(b.qp) == 0);
    b.qp = nullptr;
    EXPECT_TRUE(srq == nullptr || ibv_destroy_srq(srq) == 0);
    EXPECT_TRUE(domain == nullptr || ibv_close_xrcd(domain) == 0);
  }
  int post_receive(std::uint64_t wr_id) {
    ibv_sge sge = b.sge(0, 64);
    ibv_recv_wr receive{};
    receive.wr_id = wr_id;
    receive.sg_list = &sge;
    receive.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(srq, &receive, &bad);
  }
  Endpoint a;
  Endpoint b;
  ibv_xrcd* domain = nullptr;
  ibv_srq* srq = nullptr;
  std::uint32_t srqn = 0;
};

TEST_F(XrcPair, ARequestNamesTheQueueItIsFor) {
  connect_sender();
  EXPECT_EQ(b.qp->qp_context, this);
  EXPECT_EQ(b.qp->pd, nullptr);
  EXPECT_EQ(b.qp->send_cq, nullptr);
  ASSERT_EQ(post_receive(5), 0);
  a.buffer[3] = 0x5a;
  ibv_sge sge = a.sge(0, 32);
  ibv_send_wr send{};
  send.sg_list = &sge;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  send.qp_type.xrc.remote_srqn = srqn;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &send, &bad), 0);
  const auto wc = b.wait();
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc->wr_id, 5u);
  EXPECT_EQ(wc->qp_num, b.qp->qp_num);
  EXPECT_EQ(b.buffer[3], 0x5a);
  EXPECT_EQ(ibv_post_send(b.qp, &send, &bad), EOPNOTSUPP);
  EXPECT_EQ(bad, &send);
}

TEST_F(XrcPair, WritesReachTheQueuesProtectionDomain) {
  connect_sender();
  ibv_sge sge = a.sge(0, 4096);
  ibv_send_wr send{};
  send.sg_list = &sge;
  send.num_sge = 1;
  send.opcode = IBV_WR_RDMA_WRITE;
  send.send_flags = IBV_SEND_SIGNALED;
  send.wr.rdma.remote_addr = b.address(100);
  send.wr.rdma.rkey = b.mr->rkey;
  send.qp_type.xrc.remote_srqn = srqn;
  a.buffer[0] = 0x77;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &send, &bad), 0);
  auto wc = a.wait();
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
  EXPECT_EQ(b.buffer[100], 0x77);
  send.qp_type.xrc.remote_srqn = srqn + 1;
  ASSERT_EQ(ibv_post_send(a.qp, &send, &bad), 0);
  wc = a.wait();
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->status, IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(XrcPair, CallByCallNamesTheQueueToo) {
  connect_sender(IBV_QP_EX_WITH_SEND);
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(a.qp);
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(post_receive(6), 0);
  ibv_wr_start(qp);
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(qp);
  ibv_wr_set_sge(qp, a.mr->lkey, a.address(0), 16);
  EXPECT_EQ(ibv_wr_complete(qp), EINVAL);  // for no queue
  ibv_wr_start(qp);
  ibv_wr_send(qp);
  ibv_wr_set_xrc_srqn(qp, srqn);
  ibv_wr_set_sge(qp, a.mr->lkey, a.address(0), 16);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  const auto wc = b.wait();
  ASSERT_TRUE(wc);
  EXPECT_EQ(wc->wr_id, 6u);
}

TEST_F(XrcPair, TheTargetGoesWithItsLastHolder) {
  connect_sender();
  ibv_qp_open_attr wanted{};
  wanted.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE |
                     IBV_QP_OPEN_ATTR_CONTEXT;
  wanted.qp_num = b.qp->qp_num;
  wanted.xrcd = domain;
  wanted.qp_type = IBV_QPT_XRC_RECV;
  wanted.qp_context = &wanted;
  ibv_qp* second = ibv_open_qp(b.context, &wanted);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->qp_num, b.qp->qp_num);
  EXPECT_EQ(second->qp_context, &wanted);
  EXPECT_EQ(second->state, IBV_QPS_RTS);
  ASSERT_EQ(ibv_destroy_qp(b.qp), 0);
  b.qp = second;
  ASSERT_EQ(post_receive(9), 0);
  ibv_send_wr send{};
  send.opcode = IBV_WR_SEND;
  send.qp_type.xrc.remote_srqn = srqn;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &send, &bad), 0);
  ASSERT_TRUE(b.wait());
  wanted.qp_num += 1;
  errno = 0;
  EXPECT_EQ(ibv_open_qp(b.context, &wanted), nullptr);
  EXPECT_EQ(errno, EINVAL);
  wanted.comp_mask = IBV_QP_OPEN_ATTR_NUM;
  errno = 0;
  EXPECT_EQ(ibv_open_qp(b.context, &wanted), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

// CASES C70
TEST_F(XrcPair, ADomainStaysWhileItIsUsed) {
  EXPECT_EQ(ibv_close_xrcd(domain), EBUSY);
  ASSERT_EQ(ibv_destroy_qp(b.qp), 0);
  b.qp = nullptr;
  EXPECT_EQ(ibv_close_xrcd(domain), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(b.cq), EBUSY);
}

TEST_F(XrcPair, WhatIsMissingOrTooMuchIsRefused) {
  errno = 0;
  EXPECT_EQ(create_target(b.context, nullptr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_srq_init_attr_ex wanted{};
  wanted.attr = {8, 1, 0};
  wanted.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD;
  wanted.srq_type = IBV_SRQT_XRC;
  wanted.pd = b.pd;
  wanted.xrcd = domain;
  errno = 0;
  EXPECT_EQ(ibv_create_srq_ex(b.context, &wanted), nullptr);  // without a completion queue
  EXPECT_EQ(errno, EINVAL);
  ibv_qp_init_attr basic{};
  basic.send_cq = basic.recv_cq = b.cq;
  basic.srq = srq;
  basic.qp_type = IBV_QPT_RC;
  basic.cap = {1, 0, 1, 0, 0};
  errno = 0;
  EXPECT_EQ(ibv_create_qp(b.pd, &basic), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace verbs_test
