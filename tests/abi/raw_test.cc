// Raw packet queue pairs and flow rules, as a verbs program uses them.
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

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

// Where frames of others would come too, the tests go to a loopback interface of their own: default
// rules and sniffers hear everybody.
void go_where_it_is_quiet() {
  const int packets = ::socket(AF_PACKET, SOCK_RAW, 0);
  if (packets < 0) return;
  ::close(packets);
  if (::unshare(CLONE_NEWNET) != 0) return;
  const int any = ::socket(AF_INET, SOCK_DGRAM, 0);
  ifreq lo{};
  std::strcpy(lo.ifr_name, "lo");
  lo.ifr_flags = IFF_UP;
  EXPECT_EQ(::ioctl(any, SIOCSIFFLAGS, &lo), 0);
  ::close(any);
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

  // A rule on the destination address: such frames stay in the device.
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
    std::fill_n(rule.eth.val.dst_mac, 5, std::uint8_t{2});
    rule.eth.val.dst_mac[5] = destination;
    std::fill_n(rule.eth.mask.dst_mac, 6, std::uint8_t{0xff});
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
  static void SetUpTestSuite() { go_where_it_is_quiet(); }
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
  a.send(8, 2);  // goes out, where that is allowed, and loopback brings it back
  EXPECT_TRUE(b.wait());
  EXPECT_TRUE(c.wait());
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

// Two completion queues, two receive work queues on each, and a queue pair that spreads its frames
// over them.
struct SpreadingEnd : Endpoint {
  SpreadingEnd() {
    if (!is_ready()) return;
    for (ibv_cq*& queue : cqs) queue = ibv_create_cq(context, 64, nullptr, nullptr, 0);
    for (std::size_t i = 0; i < wqs.size(); ++i) {
      ibv_wq_init_attr wanted{};
      wanted.wq_type = IBV_WQT_RQ;
      wanted.max_wr = 16;
      wanted.max_sge = 1;
      wanted.pd = pd;
      wanted.cq = cqs[i % cqs.size()];
      wqs[i] = ibv_create_wq(context, &wanted);
      if (wqs[i] == nullptr) return;
      EXPECT_EQ(move(i, IBV_WQS_RDY), 0);
    }
    ibv_rwq_ind_table_init_attr wanted{};
    wanted.log_ind_tbl_size = 2;
    wanted.ind_tbl = wqs.data();
    table = ibv_create_rwq_ind_table(context, &wanted);
    if (table != nullptr) spreading = create_qp(40);
  }
  ~SpreadingEnd() {
    EXPECT_TRUE(spreading == nullptr || ibv_destroy_qp(spreading) == 0);
    EXPECT_TRUE(table == nullptr || ibv_destroy_rwq_ind_table(table) == 0);
    for (ibv_wq* wq : wqs) EXPECT_TRUE(wq == nullptr || ibv_destroy_wq(wq) == 0);
    for (ibv_cq* queue : cqs) EXPECT_EQ(ibv_destroy_cq(queue), 0);
  }

  ibv_qp* create_qp(std::uint8_t key_bytes, std::uint32_t more = 0) {
    ibv_qp_init_attr_ex attributes{};
    attributes.qp_type = IBV_QPT_RAW_PACKET;
    attributes.comp_mask =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH | more;
    attributes.pd = pd;
    attributes.rwq_ind_tbl = table;
    attributes.rx_hash_conf = {IBV_RX_HASH_FUNC_TOEPLITZ, key_bytes, key.data(),
                               IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4};
    return ibv_create_qp_ex(context, &attributes);
  }
  int move(std::size_t index, ibv_wq_state state) {
    ibv_wq_attr change{};
    change.attr_mask = IBV_WQ_ATTR_STATE;
    change.wq_state = state;
    return ibv_modify_wq(wqs[index], &change);
  }
  int post(std::size_t index, std::uint64_t id) {
    ibv_sge piece = sge(kFrameAt + 256 * index, 256);
    ibv_recv_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_wq_recv(wqs[index], &wr, &bad);
  }

  std::array<ibv_cq*, 2> cqs{};
  std::array<ibv_wq*, 4> wqs{};
  ibv_rwq_ind_table* table = nullptr;
  ibv_qp* spreading = nullptr;
  std::array<std::uint8_t, 40> key{0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67};
};

TEST_F(Raw, FramesAreSpreadOverWorkQueuesByTheirAddresses) {
  SpreadingEnd server;
  ASSERT_NE(server.spreading, nullptr);
  ibv_flow_attr all{};
  all.type = IBV_FLOW_ATTR_ALL_DEFAULT;
  all.port = 1;
  ibv_flow* const flow = ibv_create_flow(server.spreading, &all);
  ASSERT_NE(flow, nullptr);
  for (std::size_t i = 0; i < server.wqs.size(); ++i)
    for (std::uint64_t id = 0; id < 16; ++id) ASSERT_EQ(server.post(i, id), 0);
  constexpr int kFrames = 16;
  for (int i = 0; i < kFrames; ++i) {
    unsigned char* const frame = a.buffer.data();
    std::fill_n(frame, 60, std::uint8_t{0});
    frame[12] = 0x08;  // IPv4
    frame[14] = 0x45;
    frame[29] = static_cast<unsigned char>(i);  // source 0.0.0.i
    ibv_sge piece = a.sge(0, 60);
    ibv_send_wr wr{};
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
    ASSERT_TRUE(a.wait());
  }
  std::array<int, 2> got{};
  std::array<int, 4> by_queue{};
  // They go out, where that is allowed, and loopback brings them back.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (std::size_t turn = 0; got[0] + got[1] < kFrames && std::chrono::steady_clock::now() < until;
       ++turn) {
    const std::size_t i = turn % server.cqs.size();
    ibv_wc wc{};
    while (ibv_poll_cq(server.cqs[i], 1, &wc) == 1) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.byte_len, 60u);
      ++got[i];
      for (std::size_t q = 0; q < by_queue.size(); ++q)
        if (server.wqs[q]->wq_num == wc.qp_num) ++by_queue[q];
    }
  }
  EXPECT_EQ(got[0] + got[1], kFrames);
  EXPECT_GT(got[0], 0);
  EXPECT_GT(got[1], 0);
  EXPECT_EQ(by_queue[0] + by_queue[2], got[0]);
  EXPECT_EQ(by_queue[1] + by_queue[3], got[1]);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

TEST_F(Raw, AWorkQueueFlushesWhenItFails) {
  SpreadingEnd server;
  ASSERT_NE(server.spreading, nullptr);
  ASSERT_EQ(server.post(0, 5), 0);
  EXPECT_EQ(server.move(0, IBV_WQS_ERR), 0);
  EXPECT_EQ(server.wqs[0]->state, IBV_WQS_ERR);
  ibv_wc wc{};
  ASSERT_EQ(ibv_poll_cq(server.cqs[0], 1, &wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(server.move(0, IBV_WQS_RDY), EINVAL);
  EXPECT_EQ(server.move(0, IBV_WQS_RESET), 0);
  EXPECT_NE(server.post(0, 6), 0);
  EXPECT_EQ(server.move(0, IBV_WQS_RDY), 0);
  EXPECT_EQ(server.post(0, 6), 0);
}

// CASES C70, for work queues and their tables.
TEST_F(Raw, WhatIsUsedStays) {
  SpreadingEnd server;
  ASSERT_NE(server.spreading, nullptr);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(server.table), EBUSY);
  EXPECT_EQ(ibv_destroy_wq(server.wqs[0]), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(server.cqs[0]), EBUSY);
  errno = 0;
  EXPECT_EQ(server.create_qp(39), nullptr);  // a key of another length
  for (const std::uint32_t more : {IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD}) {
    errno = 0;
    EXPECT_EQ(server.create_qp(40, more), nullptr) << "it sends nothing, and is of no XRC domain";
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(errno, EINVAL);
  ibv_send_wr wr{};
  ibv_send_wr* bad = nullptr;
  EXPECT_NE(ibv_post_send(server.spreading, &wr, &bad), 0);
}

// How many packet sockets this process has.
std::size_t packet_sockets() {
  std::ifstream list("/proc/self/net/packet");
  const std::string all(std::istreambuf_iterator<char>(list), {});
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string link = std::filesystem::read_symlink(entry, gone).string();
    if (!link.starts_with("socket:[")) continue;
    const std::string inode = link.substr(8, link.size() - 9);
    if (all.find(' ' + inode + ' ') != std::string::npos ||
        all.find(' ' + inode + '\n') != std::string::npos)
      ++count;
  }
  return count;
}

TEST(RawInterface, IsOpenWhileThereIsAUseAndNotInAChild) {
  if (!set_net_raw(true)) GTEST_SKIP() << "needs CAP_NET_RAW: run as root or under unshare -Urn";
  {
    Endpoint plain;
    ASSERT_TRUE(plain.is_ready());
    EXPECT_EQ(packet_sockets(), 0u);
  }
  {
    RawEnd end;
    ASSERT_TRUE(end.is_ready());
    if (packet_sockets() == 0) GTEST_SKIP() << "no packet socket in this network namespace";
    EXPECT_EQ(packet_sockets(), 1u);
    ibv_flow* const flow = end.steer(7);
    ASSERT_NE(flow, nullptr);
    EXPECT_EQ(packet_sockets(), 1u);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(packet_sockets() == 0 ? 0 : 1);
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    end.receive(5);
    end.send(7, 0x5a);
    EXPECT_TRUE(end.wait()) << "the parent goes on";
    EXPECT_EQ(ibv_destroy_flow(flow), 0);
    EXPECT_EQ(packet_sockets(), 1u);
  }
  EXPECT_EQ(packet_sockets(), 0u);
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
