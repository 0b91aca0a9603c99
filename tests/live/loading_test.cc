// A program that is not linked with libibverbs: it opens the library, uses it, closes it, with a
// device open or not, and opens it again, as plug-ins of UCX, libfabric and NCCL do.
//
// LIBRARY is the path of the one that was built.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>

#undef ibv_reg_mr

namespace {

// What dlsym gives, by the name that a program would ask for.
class Library {
 public:
  explicit Library(int flags) : opened_(dlopen(LIBRARY, flags)) {
    if (opened_ == nullptr) ADD_FAILURE() << dlerror();
  }
  ~Library() { close(); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  void close() {
    EXPECT_TRUE(opened_ == nullptr || dlclose(opened_) == 0);
    opened_ = nullptr;
  }
  template <class Function>
  Function* symbol(const char* name) const {
    void* const found = dlsym(opened_, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function*>(found);
  }

 private:
  void* opened_;
};
#define CALL(library, name) (library).symbol<decltype(::name)>(#name)

struct Open {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  ibv_qp* qp = nullptr;
};

std::array<unsigned char, 8192> g_buffer;

// A queue pair that is connected with itself.
Open open_device(const Library& library) {
  Open open;
  int count = 0;
  ibv_device** const list = CALL(library, ibv_get_device_list)(&count);
  if (list == nullptr || count == 0) return open;
  open.context = CALL(library, ibv_open_device)(list[0]);
  CALL(library, ibv_free_device_list)(list);
  open.pd = CALL(library, ibv_alloc_pd)(open.context);
  open.cq = CALL(library, ibv_create_cq)(open.context, 16, nullptr, nullptr, 0);
  open.mr = CALL(library, ibv_reg_mr)(open.pd, g_buffer.data(), g_buffer.size(),
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = open.cq;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {4, 4, 1, 1, 0};
  open.qp = CALL(library, ibv_create_qp)(open.pd, &wanted);
  ibv_gid gid{};
  EXPECT_EQ(CALL(library, ibv_query_gid)(open.context, 1, 0, &gid), 0);
  auto* const modify = CALL(library, ibv_modify_qp);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  EXPECT_EQ(
      modify(open.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
      0);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = open.qp->qp_num;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = gid;
  attr.ah_attr.grh.hop_limit = 1;
  EXPECT_EQ(modify(open.qp, &attr,
                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = 3;
  attr.max_rd_atomic = 1;
  EXPECT_EQ(modify(open.qp, &attr,
                   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
            0);
  return open;
}

// One WRITE from the first half of the buffer to the second.
bool works(const Open& open) {
  if (open.qp == nullptr || open.mr == nullptr) return false;
  const auto start = reinterpret_cast<std::uintptr_t>(g_buffer.data());
  g_buffer.fill(0);
  std::fill_n(g_buffer.begin(), 4096, static_cast<unsigned char>(0x42));
  ibv_sge sge{start, 4096, open.mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = start + 4096;
  wr.wr.rdma.rkey = open.mr->rkey;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(open.qp, &wr, &bad) != 0) return false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  ibv_wc wc{};
  while (std::chrono::steady_clock::now() < deadline)
    if (ibv_poll_cq(open.cq, 1, &wc) != 0)
      return wc.status == IBV_WC_SUCCESS && g_buffer[8191] == 0x42;
  return false;
}

void close_device(const Library& library, const Open& open) {
  EXPECT_EQ(CALL(library, ibv_destroy_qp)(open.qp), 0);
  EXPECT_EQ(CALL(library, ibv_dereg_mr)(open.mr), 0);
  EXPECT_EQ(CALL(library, ibv_destroy_cq)(open.cq), 0);
  EXPECT_EQ(CALL(library, ibv_dealloc_pd)(open.pd), 0);
  EXPECT_EQ(CALL(library, ibv_close_device)(open.context), 0);
}

class Loading : public ::testing::TestWithParam<int> {};

TEST_P(Loading, WorksIsClosedAndOpenedAgain) {
  for (int round = 0; round < 5; ++round) {
    Library library(GetParam());
    const Open open = open_device(library);
    EXPECT_TRUE(works(open));
    close_device(library, open);
  }
}

// UCX may do so while our thread runs: its code must stay.
TEST_P(Loading, IsClosedWithADeviceOpenAndTheProgramGoesOn) {
  Open open;
  {
    Library library(GetParam());
    open = open_device(library);
    EXPECT_TRUE(works(open));
  }
  EXPECT_TRUE(works(open));  // through pointers that the program still has
  Library again(GetParam());
  EXPECT_TRUE(works(open));
  const Open second = open_device(again);
  EXPECT_TRUE(works(second));
  close_device(again, second);
  close_device(again, open);
}

INSTANTIATE_TEST_SUITE_P(Flags, Loading,
                         ::testing::Values(RTLD_NOW | RTLD_LOCAL, RTLD_LAZY | RTLD_GLOBAL,
                                           RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND),
                         [](const auto& flags) {
                           return std::string(flags.param & RTLD_DEEPBIND ? "Deepbind"
                                              : flags.param & RTLD_GLOBAL ? "Global"
                                                                          : "Local");
                         });

}  // namespace

int main(int argc, char** argv) {
  ::setenv("SOFTHCA_NETDEV", "lo", 1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
