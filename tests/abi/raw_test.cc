// Raw packet queue pairs and flow rules, as a verbs program uses them.
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

constexpr unsigned kNetRaw = 13;
constexpr std::size_t kFrameAt = 8192;

// Sets or clears CAP_NET_RAW among this thread's effective capabilities. False if it cannot.
bool set_net_raw(bool on) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};
  if (::syscall(SYS_capget, &header, sets) != 0) return false;
  if (on)
    sets[0].effective |= 1u << kNetRaw;
  else
    sets[0].effective &= ~(1u << kNetRaw);
  return ::syscall(SYS_capset, &header, sets) == 0;
}

// An endpoint whose queue pair is one of raw packets, in RTS.
struct RawEnd : Endpoint {
  RawEnd() {
    if (!is_ready()) return;
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq;
    wanted.qp_type = IBV_QPT_RAW_PACKET;
    wanted.cap = {16, 16, 2, 2, 64};
    qp = ibv_create_qp(pd, &wanted);
    if (qp == nullptr) return;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT), 0);
    for (const auto state : {IBV_QPS_RTR, IBV_QPS_RTS}) {
      attr.qp_state = state;
      EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    }
  }

  void receive(std::uint64_t id, std::uint32_t room = 4096) {
    ibv_sge piece = sge(kFrameAt, room);
    ibv_recv_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
  }
  // A frame for `destination` whose last bytes are `mark`; waits until it has left.
  void send(std::uint8_t destination, std::uint8_t mark, std::uint32_t bytes = 100) {
    std::fill_n(buffer.begin(), bytes, mark);
    std::fill_n(buffer.begin(), 14, std::uint8_t{2});
    buffer[5] = destination;
    buffer[12] = 0x88;
    buffer[13] = 0xb5;  // IEEE 802: for local experiments
    ibv_sge piece = sge(0, bytes);
    ibv_send_wr wr{};
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
    const auto done = wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
    EXPECT_EQ(done->opcode, IBV_WC_SEND);
  }
  bool has_received() {
    ibv_wc wc{};
    return ibv_poll_cq(cq, 1, &wc) == 1;
  }

  // A rule on the last byte of the destination address.
  ibv_flow* steer(std::uint8_t destination, std::uint16_t priority = 0, std::uint32_t flags = 0) {
    struct {
      ibv_flow_attr attr{};
      ibv_flow_spec_eth eth{};
    } rule;
    rule.attr.size = sizeof rule;
    rule.attr.priority = priority;
    rule.attr.num_of_specs = 1;
    rule.attr.port = 1;
    rule.attr.flags = flags;
    rule.eth.type = IBV_FLOW_SPEC_ETH;
    rule.eth.size = sizeof rule.eth;
    rule.eth.val.dst_mac[5] = destination;
    rule.eth.mask.dst_mac[5] = 0xff;
    return ibv_create_flow(qp, &rule.attr);
  }
  ibv_flow* steer_all(ibv_flow_attr_type type) {
    ibv_flow_attr attr{};
    attr.type = type;
    attr.size = sizeof attr;
    attr.port = 1;
    return ibv_create_flow(qp, &attr);
  }
};

class Raw : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!set_net_raw(true)) GTEST_SKIP() << "needs CAP_NET_RAW: run as root or under unshare -Ur";
    ASSERT_TRUE(a.is_ready() && b.is_ready() && c.is_ready());
  }
  RawEnd a, b, c;
};

TEST_F(Raw, AFrameComesWholeToWhomARuleSteersIt) {
  ibv_flow* const flow = b.steer(7);
  ASSERT_NE(flow, nullptr);
  b.receive(5);
  c.receive(6);
  a.send(7, 0x5a);
  const auto got = b.wait();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->status, IBV_WC_SUCCESS);
  EXPECT_EQ(got->opcode, IBV_WC_RECV);
  EXPECT_EQ(got->wr_id, 5u);
  EXPECT_EQ(got->byte_len, 100u);
  EXPECT_EQ(got->wc_flags & IBV_WC_GRH, 0u);
  EXPECT_TRUE(std::equal(a.buffer.begin(), a.buffer.begin() + 100,
                         b.buffer.begin() + static_cast<std::ptrdiff_t>(kFrameAt)));
  a.send(8, 0x5b);  // nobody's
  EXPECT_FALSE(b.has_received() || c.has_received());
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  a.send(7, 0x5c);  // nobody's any more
  EXPECT_FALSE(b.has_received() || c.has_received());
}

// man ibv_create_flow: a lower number goes first; DONT_TRAP lets the next rule see the frame too.
TEST_F(Raw, RulesAreAskedByPriority) {
  ibv_flow* const low = b.steer(7, 5);
  ibv_flow* high = c.steer(7, 1);
  ASSERT_TRUE(low != nullptr && high != nullptr);
  for (RawEnd* end : {&b, &c})
    for (const std::uint64_t id : {1, 2}) end->receive(id);
  a.send(7, 1);
  EXPECT_TRUE(c.has_received());
  EXPECT_FALSE(b.has_received());
  EXPECT_EQ(ibv_destroy_flow(high), 0);
  high = c.steer(7, 1, IBV_FLOW_ATTR_FLAGS_DONT_TRAP);
  ASSERT_NE(high, nullptr);
  a.send(7, 2);
  EXPECT_TRUE(c.has_received());
  EXPECT_TRUE(b.has_received());
  EXPECT_EQ(ibv_destroy_flow(high), 0);
  EXPECT_EQ(ibv_destroy_flow(low), 0);
}

TEST_F(Raw, DefaultRulesGetWhatNobodyTookAndSniffersEverything) {
  ibv_flow* const normal = a.steer(7);
  ibv_flow* const rest = b.steer_all(IBV_FLOW_ATTR_ALL_DEFAULT);
  ibv_flow* const sniffer = c.steer_all(IBV_FLOW_ATTR_SNIFFER);
  ASSERT_TRUE(normal != nullptr && rest != nullptr && sniffer != nullptr);
  for (RawEnd* end : {&b, &c})
    for (const std::uint64_t id : {1, 2}) end->receive(id);
  a.send(7, 1);  // its own, for which it has posted no receive: dropped there
  EXPECT_FALSE(b.has_received());
  EXPECT_TRUE(c.has_received());
  a.send(8, 2);
  EXPECT_TRUE(b.has_received());
  EXPECT_TRUE(c.has_received());
  for (ibv_flow* flow : {normal, rest, sniffer}) EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

// A frame without a receive, or one too small for it, is lost; the queue pair goes on.
TEST_F(Raw, WhatCannotBeReceivedIsDropped) {
  ibv_flow* const flow = b.steer(7);
  ASSERT_NE(flow, nullptr);
  a.send(7, 1);
  b.receive(1, 99);
  a.send(7, 2);
  EXPECT_FALSE(b.has_received());
  a.send(7, 3, 99);
  const auto got = b.wait();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->byte_len, 99u);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

TEST_F(Raw, AFrameIsNotLongerThanTheInterfaceCarries) {
  // Loopback carries 65,536 bytes behind a header of 14 and a tag of 4. The buffer is as long.
  ibv_sge pieces[2] = {a.sge(0, 65536), a.sge(0, 19)};
  ibv_send_wr wr{};
  wr.sg_list = pieces;
  wr.num_sge = 2;
  wr.opcode = IBV_WR_SEND;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  const auto done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(a.state(), IBV_QPS_SQE);
}

TEST_F(Raw, RefusesWhatItDoesNotKnow) {
  struct {
    ibv_flow_attr attr{};
    ibv_flow_spec_tunnel tunnel{};
  } rule;
  rule.attr.num_of_specs = 1;
  rule.attr.port = 1;
  rule.tunnel.type = IBV_FLOW_SPEC_VXLAN_TUNNEL;
  rule.tunnel.size = sizeof rule.tunnel;
  EXPECT_EQ(ibv_create_flow(b.qp, &rule.attr), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  rule.tunnel.type = IBV_FLOW_SPEC_ETH;  // larger than it says
  EXPECT_EQ(ibv_create_flow(b.qp, &rule.attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  rule.attr.port = 2;
  EXPECT_EQ(ibv_create_flow(b.qp, &rule.attr), nullptr);
  EXPECT_EQ(errno, EINVAL);

  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a.qp, &wr, &bad), EOPNOTSUPP);
}

// CASES C70: a queue pair with rules stays.
TEST_F(Raw, AQueuePairWithRulesIsBusy) {
  ibv_flow* const flow = b.steer(7);
  ASSERT_NE(flow, nullptr);
  EXPECT_EQ(ibv_destroy_qp(b.qp), EBUSY);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

// A rule only makes sense where frames arrive.
TEST(RawRights, FlowsAreForRawPacketsOnly) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ibv_flow_attr attr{};
  attr.port = 1;
  EXPECT_EQ(ibv_create_flow(end.qp, &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

// As in the kernel: whole frames are for those who have CAP_NET_RAW.
TEST(RawRights, OrdinaryUsersAreRefused) {
  Endpoint end;
  ASSERT_TRUE(end.is_ready());
  ASSERT_TRUE(set_net_raw(false));
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = end.cq;
  wanted.qp_type = IBV_QPT_RAW_PACKET;
  wanted.cap = {1, 1, 1, 1, 0};
  errno = 0;
  EXPECT_EQ(ibv_create_qp(end.pd, &wanted), nullptr);
  EXPECT_EQ(errno, EPERM);
  set_net_raw(true);  // back, where it was permitted
}

}  // namespace
}  // namespace verbs_test
