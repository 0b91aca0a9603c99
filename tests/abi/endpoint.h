// Endpoint: a context with a protection domain, a completion queue, a buffer and an RC queue pair,
// as an ordinary verbs program sets them up.
#pragma once
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <vector>

namespace verbs_test {

inline constexpr int kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                                  IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
inline constexpr int kRemoteAccess = kAllAccess & ~IBV_ACCESS_LOCAL_WRITE;

inline ibv_context* open_first() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ibv_context* context = list != nullptr && count > 0 ? ibv_open_device(list[0]) : nullptr;
  ibv_free_device_list(list);
  return context;
}

// Whole pages, as programs have them that care: a device may want to keep them (docs/frames.md).
template <class T>
struct PageAllocator {
  using value_type = T;
  static constexpr std::align_val_t kPage{4096};
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kPage));
  }
  void deallocate(T* at, std::size_t) { ::operator delete(at, kPage); }
  friend bool operator==(const PageAllocator&, const PageAllocator&) { return true; }
};
using Buffer = std::vector<unsigned char, PageAllocator<unsigned char>>;

struct Options {
  std::uint32_t requests = 16;
  std::uint32_t sges = 4;
  std::uint32_t inline_bytes = 64;
  std::size_t buffer_bytes = 64 * 1024;
  bool with_channel = false;
  bool shares_receives = false;   // a shared receive queue instead of its own
  ibv_qp_type type = IBV_QPT_RC;  // or UC
  int region_access = kAllAccess;
};

class Endpoint {
 public:
  explicit Endpoint(const Options& options = {})
      : buffer(options.buffer_bytes), is_reliable_(options.type == IBV_QPT_RC) {
    context = open_first();
    if (context == nullptr) return;
    pd = ibv_alloc_pd(context);
    if (options.with_channel) channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, static_cast<int>(2 * options.requests), this, channel, 0);
    mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), options.region_access);
    if (options.shares_receives) {
      ibv_srq_init_attr of_queue{};
      of_queue.attr = {options.requests, options.sges, 0};
      srq = ibv_create_srq(pd, &of_queue);
      if (srq == nullptr) return;
    }
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq;
    wanted.srq = srq;
    wanted.qp_type = options.type;
    wanted.cap = {options.requests, options.requests, options.sges, options.sges,
                  options.inline_bytes};
    qp = ibv_create_qp(pd, &wanted);
  }
  ~Endpoint() {
    EXPECT_TRUE(qp == nullptr || ibv_destroy_qp(qp) == 0);
    EXPECT_TRUE(srq == nullptr || ibv_destroy_srq(srq) == 0);
    EXPECT_TRUE(mr == nullptr || ibv_dereg_mr(mr) == 0);
    EXPECT_TRUE(cq == nullptr || ibv_destroy_cq(cq) == 0);
    EXPECT_TRUE(channel == nullptr || ibv_destroy_comp_channel(channel) == 0);
    EXPECT_TRUE(pd == nullptr || ibv_dealloc_pd(pd) == 0);
    EXPECT_TRUE(context == nullptr || ibv_close_device(context) == 0);
  }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  bool is_ready() const { return qp != nullptr && mr != nullptr; }

  int to_init(int access = kRemoteAccess) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = static_cast<unsigned>(access);
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }
  int to_rtr(const ibv_gid& destination, std::uint32_t dest_qpn) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = dest_qpn;
    attr.rq_psn = 100;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = destination;
    attr.ah_attr.grh.hop_limit = 64;
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (is_reliable_) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return ibv_modify_qp(qp, &attr, mask);
  }
  int to_rts() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 3;
    attr.rnr_retry = 7;
    attr.sq_psn = 100;
    attr.max_rd_atomic = 4;
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (is_reliable_)
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    return ibv_modify_qp(qp, &attr, mask);
  }

  ibv_gid gid() const {
    ibv_gid first{};
    EXPECT_EQ(ibv_query_gid(context, 1, 0, &first), 0);
    return first;
  }
  ibv_sge sge(std::size_t offset, std::uint32_t length) {
    return {reinterpret_cast<std::uintptr_t>(buffer.data()) + offset, length, mr->lkey};
  }
  std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(buffer.data()) + offset;
  }
  ibv_qp_state state() const {
    ibv_qp_attr attr{};
    ibv_qp_init_attr initial{};
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &initial), 0);
    return attr.qp_state;
  }

  // The next completion; nothing after ten seconds.
  std::optional<ibv_wc> wait() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    ibv_wc wc{};
    while (std::chrono::steady_clock::now() < deadline) {
      const int found = ibv_poll_cq(cq, 1, &wc);
      if (found == 1) return wc;
      if (found < 0) break;
    }
    ADD_FAILURE() << "no completion";
    return std::nullopt;
  }

  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  ibv_srq* srq = nullptr;
  ibv_qp* qp = nullptr;
  Buffer buffer;

 private:
  bool is_reliable_;
};

// A request by one piece to `to`, with the key of whoever has the bytes there. A fetch-and-add adds
// 5, a compare-and-swap makes 1000 of 5.
inline bool post_request(Endpoint& end, ibv_wr_opcode opcode, ibv_sge sge, std::uint64_t to,
                         std::uint32_t rkey, unsigned flags = 0) {
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED | flags;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    wr.wr.atomic.remote_addr = to;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = 5;
    wr.wr.atomic.swap = 1000;
  } else {
    wr.wr.rdma.remote_addr = to;
    wr.wr.rdma.rkey = rkey;
  }
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(end.qp, &wr, &bad) == 0;
}

// A WRITE to the start of the peer's buffer.
inline ibv_send_wr write_to(const Endpoint& peer, ibv_sge& sge, unsigned flags) {
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = flags;
  wr.wr.rdma.remote_addr = peer.address(0);
  wr.wr.rdma.rkey = peer.mr->rkey;
  return wr;
}

inline void connect(Endpoint& a, Endpoint& b) {
  ASSERT_EQ(a.to_init(), 0);
  ASSERT_EQ(b.to_init(), 0);
  ASSERT_EQ(a.to_rtr(b.gid(), b.qp->qp_num), 0);
  ASSERT_EQ(b.to_rtr(a.gid(), a.qp->qp_num), 0);
  ASSERT_EQ(a.to_rts(), 0);
  ASSERT_EQ(b.to_rts(), 0);
}

// For a queue pair that is posted to call by call.
inline ibv_qp_init_attr_ex extended_attributes(ibv_pd* pd, ibv_cq* cq, ibv_qp_type type,
                                               const ibv_qp_cap& cap, std::uint64_t operations) {
  ibv_qp_init_attr_ex wanted{};
  wanted.send_cq = wanted.recv_cq = cq;
  wanted.qp_type = type;
  wanted.cap = cap;
  wanted.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  wanted.pd = pd;
  wanted.send_ops_flags = operations;
  return wanted;
}

// Gives `a` such a queue pair instead of its own, and connects the two anew.
inline void connect_extended(Endpoint& a, Endpoint& b, std::uint64_t operations) {
  ASSERT_EQ(ibv_destroy_qp(a.qp), 0);
  auto wanted = extended_attributes(a.pd, a.cq, IBV_QPT_RC, {16, 16, 2, 1, 64}, operations);
  a.qp = ibv_create_qp_ex(a.context, &wanted);
  ASSERT_NE(a.qp, nullptr);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE), 0);
  connect(a, b);
}

}  // namespace verbs_test
