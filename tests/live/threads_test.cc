// Many threads at once: objects of their own and shared ones, made, used and destroyed. For TSan,
// and for whatever locks may do to each other.
#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "endpoint.h"

namespace verbs_test {
namespace {

constexpr std::size_t kThreads = 8;
constexpr std::uint32_t kBytes = 4096;
constexpr std::uint32_t kWrites = 12;

int rounds() { return std::getenv("SOFTHCA_APPS_FULL") != nullptr ? 400 : 12; }

// What all threads use.
struct Shared {
  ibv_context* context = open_first();
  ibv_pd* pd = ibv_alloc_pd(context);
  ibv_cq* cq = ibv_create_cq(context, 4096, nullptr, nullptr, 0);
  std::vector<unsigned char> buffer = std::vector<unsigned char>(kThreads * kBytes);
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), kAllAccess);
  std::array<std::atomic<std::uint32_t>, kThreads> done{};  // completions seen, by whoever polled
  std::atomic<int> failures{0};

  ~Shared() {
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
  }
  // Takes completions, whosever they are.
  void poll() {
    std::array<ibv_wc, 8> found;
    const int count = ibv_poll_cq(cq, static_cast<int>(found.size()), found.data());
    if (count < 0) ++failures;
    for (int i = 0; i < count; ++i) {
      const ibv_wc& wc = found[static_cast<std::size_t>(i)];
      if (wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR) ++failures;
      if (wc.wr_id < kThreads) ++done[wc.wr_id];
    }
  }
};

ibv_qp* make_pair(ibv_pd* pd, ibv_cq* cq) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {kWrites, 4, 1, 1, 16};
  return ibv_create_qp(pd, &wanted);
}

bool connect_to(ibv_qp* qp, std::uint32_t peer, const ibv_gid& gid) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = kRemoteAccess;
  if (ibv_modify_qp(qp, &attr,
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0)
    return false;
  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = gid;
  if (ibv_modify_qp(qp, &attr,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0)
    return false;
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 18;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.max_rd_atomic = 4;
  return ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0;
}

bool post_write(ibv_qp* qp, const ibv_mr* from, std::uint64_t offset, const ibv_mr* to,
                std::uint64_t id) {
  ibv_sge sge{reinterpret_cast<std::uint64_t>(from->addr) + offset, kBytes, from->lkey};
  ibv_send_wr wr{};
  wr.wr_id = id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(to->addr);
  wr.wr.rdma.rkey = to->rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad) == 0;
}

// One life of two queue pairs on the shared domain and queue, writing from the shared buffer to one
// of this thread's own.
bool live_once(Shared& shared, std::size_t self, const ibv_gid& gid) {
  std::vector<unsigned char> own(kBytes);
  ibv_mr* mr = ibv_reg_mr(shared.pd, own.data(), own.size(),
                          kAllAccess | (self % 2 == 0 ? 0 : IBV_ACCESS_ON_DEMAND));
  ibv_qp* from = make_pair(shared.pd, shared.cq);
  ibv_qp* to = make_pair(shared.pd, shared.cq);
  bool good = mr != nullptr && from != nullptr && to != nullptr &&
              connect_to(from, to->qp_num, gid) && connect_to(to, from->qp_num, gid);
  const std::uint32_t before = shared.done[self].load();
  for (std::uint32_t i = 0; good && i < kWrites; ++i)
    good = post_write(from, shared.mr, self * kBytes, mr, self);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (good && shared.done[self].load() - before < kWrites) {
    shared.poll();
    good = std::chrono::steady_clock::now() < deadline;
  }
  good = good && own == std::vector<unsigned char>(kBytes, static_cast<unsigned char>(self + 1));
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  good = good && ibv_modify_qp(to, &attr, IBV_QP_STATE) == 0;
  if (to != nullptr) good = ibv_destroy_qp(to) == 0 && good;
  if (from != nullptr) good = ibv_destroy_qp(from) == 0 && good;
  if (mr != nullptr) good = ibv_dereg_mr(mr) == 0 && good;
  return good;
}

// Objects that nobody else sees: a context, a domain in a domain, device memory, a queue that is
// resized.
bool live_apart() {
  ibv_context* context = open_first();
  if (context == nullptr) return false;
  ibv_pd* pd = ibv_alloc_pd(context);
  ibv_parent_domain_init_attr within{};
  within.pd = pd;
  ibv_pd* parent = ibv_alloc_parent_domain(context, &within);
  ibv_cq* cq = ibv_create_cq(context, 16, nullptr, nullptr, 0);
  ibv_alloc_dm_attr wanted{};
  wanted.length = 256;
  ibv_dm* dm = ibv_alloc_dm(context, &wanted);
  std::uint64_t number = 42, seen = 0;
  ibv_device_attr_ex attr{};
  bool good = parent != nullptr && cq != nullptr && dm != nullptr &&
              ibv_memcpy_to_dm(dm, 0, &number, 8) == 0 &&
              ibv_memcpy_from_dm(&seen, dm, 0, 8) == 0 && seen == 42 &&
              ibv_resize_cq(cq, 100) == 0 && ibv_query_device_ex(context, nullptr, &attr) == 0;
  good = (dm == nullptr || ibv_free_dm(dm) == 0) && good;
  good = (cq == nullptr || ibv_destroy_cq(cq) == 0) && good;
  good = (parent == nullptr || ibv_dealloc_pd(parent) == 0) && good;
  good = ibv_dealloc_pd(pd) == 0 && good;
  return ibv_close_device(context) == 0 && good;
}

TEST(Threads, MakeUseAndDestroyObjectsAtOnce) {
  Shared shared;
  ASSERT_NE(shared.mr, nullptr);
  ibv_gid gid{};
  ASSERT_EQ(ibv_query_gid(shared.context, 1, 0, &gid), 0);
  for (std::size_t i = 0; i < kThreads; ++i)
    std::fill_n(shared.buffer.begin() + static_cast<std::ptrdiff_t>(i * kBytes), kBytes,
                static_cast<unsigned char>(i + 1));
  std::vector<std::thread> threads;
  for (std::size_t self = 0; self < kThreads; ++self)
    threads.emplace_back([&shared, self, gid] {
      for (int round = 0; round < rounds(); ++round)
        if (!live_once(shared, self, gid) || !live_apart()) ++shared.failures;
    });
  // Resizing takes nothing away from those who poll.
  for (int round = 0; round < rounds(); ++round)
    if (ibv_resize_cq(shared.cq, round % 2 == 0 ? 8192 : 4096) != 0) ++shared.failures;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared.failures.load(), 0);
}

}  // namespace
}  // namespace verbs_test
