// SOFTHCA_PROFILE: what the device of a profile has not is neither told nor given.
#include <fcntl.h>

#include <cerrno>
#include <string>

#include "endpoint.h"

namespace verbs_test {
namespace {

class Profile : public ::testing::Test {
 protected:
  void choose(const char* name) { ::setenv("SOFTHCA_PROFILE", name, 1); }
  void TearDown() override { ::unsetenv("SOFTHCA_PROFILE"); }
};

// Posts WRITEs until one is refused; how many were taken, and why it was refused.
std::pair<int, int> post_until_full(Endpoint& from, const Endpoint& to, unsigned flags) {
  ibv_sge sge = from.sge(0, 8);
  ibv_send_wr* bad = nullptr;
  for (int taken = 0; taken < 1000; ++taken) {
    ibv_send_wr wr = write_to(to, sge, flags);
    if (const int error = ibv_post_send(from.qp, &wr, &bad)) return {taken, error};
  }
  return {1000, 0};
}

// A connected pair, as rings of 16 and a completion queue of 32 go.
struct Connected {
  Endpoint a, b;
  bool is_ready() {
    if (!a.is_ready() || !b.is_ready()) return false;
    connect(a, b);
    return a.state() == IBV_QPS_RTS && b.state() == IBV_QPS_RTS;
  }
};

TEST_F(Profile, WhoNeverSignalsFillsTheQueueForGoodWhereSlotsAreFreedByPolling) {
  for (const char* name : {"strict", "mlx5"}) {
    choose(name);
    Connected pair;
    ASSERT_TRUE(pair.is_ready());
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(post_until_full(pair.a, pair.b, 0), std::make_pair(16, ENOMEM)) << name;
    const std::string line = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(line.find("slots_never_free"), std::string::npos) << line;
    EXPECT_NE(line.find("IBV_SEND_SIGNALED"), std::string::npos) << line;
  }
}

TEST_F(Profile, APolledCompletionFreesItsSlotAndThoseBefore) {
  choose("strict");
  Connected pair;
  ASSERT_TRUE(pair.is_ready());
  ibv_sge sge = pair.a.sge(0, 8);
  ibv_send_wr* bad = nullptr;
  const auto post = [&](unsigned flags) {
    ibv_send_wr wr = write_to(pair.b, sge, flags);
    return ibv_post_send(pair.a.qp, &wr, &bad);
  };
  for (int i = 0; i < 9; ++i) ASSERT_EQ(post(0), 0);
  ASSERT_EQ(post(IBV_SEND_SIGNALED), 0);
  for (int i = 10; i < 16; ++i) ASSERT_EQ(post(0), 0);
  EXPECT_EQ(post(0), ENOMEM);
  const auto done = pair.a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(post(IBV_SEND_SIGNALED), 0) << i;
  EXPECT_EQ(post(IBV_SEND_SIGNALED), ENOMEM);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(pair.a.wait());
  EXPECT_EQ(post_until_full(pair.a, pair.b, 0).first, 16);
}

TEST_F(Profile, WhereSlotsAreFreedByTheDeviceNobodyHasToSignal) {
  for (const char* name : {"softhca", "rxe"}) {
    choose(name);
    Connected pair;
    ASSERT_TRUE(pair.is_ready());
    int posted = 0;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (posted < 100 && std::chrono::steady_clock::now() < deadline) {
      posted += post_until_full(pair.a, pair.b, 0).first;
      ibv_wc none;
      EXPECT_EQ(ibv_poll_cq(pair.a.cq, 1, &none), 0);
    }
    EXPECT_GE(posted, 100) << name;
  }
}

TEST_F(Profile, AReceiveIsFreeWhenItsCompletionIsPolled) {
  choose("strict");
  Connected pair;
  ASSERT_TRUE(pair.is_ready());
  ibv_sge from = pair.a.sge(0, 8), to = pair.b.sge(0, 8);
  ibv_recv_wr receive{};
  receive.sg_list = &to;
  receive.num_sge = 1;
  ibv_recv_wr* bad_receive = nullptr;
  for (int i = 0; i < 16; ++i) ASSERT_EQ(ibv_post_recv(pair.b.qp, &receive, &bad_receive), 0);
  ibv_send_wr send{};
  send.sg_list = &from;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(pair.a.qp, &send, &bad), 0);
  ASSERT_TRUE(pair.a.wait());
  EXPECT_EQ(ibv_post_recv(pair.b.qp, &receive, &bad_receive), ENOMEM) << "it has not been polled";
  ASSERT_TRUE(pair.b.wait());
  EXPECT_EQ(ibv_post_recv(pair.b.qp, &receive, &bad_receive), 0);
}

TEST_F(Profile, WhatItsDeviceHasNotIsNeitherToldNorGiven) {
  choose("rxe");
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &attr), 0);
  EXPECT_EQ(attr.orig_attr.device_cap_flags & IBV_DEVICE_XRC, 0u);
  EXPECT_EQ(attr.orig_attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING, 0u);
  EXPECT_EQ(attr.orig_attr.max_cqe, 32767);
  EXPECT_EQ(attr.orig_attr.max_srq_sge, 27);
  EXPECT_EQ(attr.odp_caps.general_caps, 0u);
  EXPECT_EQ(attr.max_dm_size, 0u);
  EXPECT_EQ(attr.tm_caps.max_num_tags, 0u);
  EXPECT_EQ(attr.rss_caps.supported_qpts, 0u);

  ::testing::internal::CaptureStderr();
  ibv_xrcd_init_attr domain{};
  domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  domain.fd = -1;
  domain.oflags = O_CREAT;
  errno = 0;
  EXPECT_EQ(ibv_open_xrcd(context, &domain), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_alloc_dm_attr memory{};
  memory.length = 64;
  errno = 0;
  EXPECT_EQ(ibv_alloc_dm(context, &memory), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_pd* pd = ibv_alloc_pd(context);
  ASSERT_NE(pd, nullptr);
  std::vector<unsigned char> buffer(4096);
  errno = 0;
  EXPECT_EQ(
      ibv_reg_mr(pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND),
      nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  errno = 0;
  EXPECT_EQ(ibv_create_cq(context, 32768, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_cq* cq = ibv_create_cq(context, 32767, nullptr, nullptr, 0);
  ASSERT_NE(cq, nullptr);
  ibv_qp_init_attr raw{};
  raw.send_cq = raw.recv_cq = cq;
  raw.qp_type = IBV_QPT_RAW_PACKET;
  raw.cap = {1, 1, 1, 1, 0};
  errno = 0;
  EXPECT_EQ(ibv_create_qp(pd, &raw), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(lines.find("not_in_profile"), std::string::npos) << lines;
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(Profile, ThatNobodyKnowsOpensNoDevice) {
  choose("mlx6");
  ::testing::internal::CaptureStderr();
  errno = 0;
  EXPECT_EQ(open_first(), nullptr);
  EXPECT_EQ(errno, EINVAL);
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find("softhca, strict, rxe and mlx5"), std::string::npos) << line;
}

}  // namespace
}  // namespace verbs_test
