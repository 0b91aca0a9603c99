// Memory on the device: allocated, copied to and from, and worked on by peers.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

constexpr unsigned kOnDevice = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE |
                               IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                               IBV_ACCESS_REMOTE_ATOMIC;

class DeviceMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    connect(a, b);
    ibv_device_attr_ex attr{};
    ASSERT_EQ(ibv_query_device_ex(a.context, nullptr, &attr), 0);
    most = attr.max_dm_size;
  }
  ibv_dm* alloc(std::size_t bytes) {
    ibv_alloc_dm_attr wanted{};
    wanted.length = bytes;
    return ibv_alloc_dm(b.context, &wanted);
  }
  ibv_wc_status transfer(ibv_wr_opcode opcode, std::uint64_t remote, std::uint32_t rkey,
                         std::uint32_t bytes) {
    if (!post_request(a, opcode, a.sge(0, bytes), remote, rkey)) return IBV_WC_GENERAL_ERR;
    const auto done = a.wait();
    return done ? done->status : IBV_WC_GENERAL_ERR;
  }
  Endpoint a;
  Endpoint b;
  std::uint64_t most = 0;
};

TEST_F(DeviceMemory, IsReachedByPeersToTheByte) {
  ibv_dm* dm = alloc(100);
  ASSERT_NE(dm, nullptr);
  ibv_mr* mr = ibv_reg_dm_mr(b.pd, dm, 8, 64, kOnDevice);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->addr, nullptr);
  EXPECT_EQ(mr->length, 64u);
  for (std::size_t i = 0; i < 64; ++i) a.buffer[i] = static_cast<unsigned char>(i + 1);
  EXPECT_EQ(transfer(IBV_WR_RDMA_WRITE, 0, mr->rkey, 64), IBV_WC_SUCCESS);
  std::array<unsigned char, 100> seen{};
  ASSERT_EQ(ibv_memcpy_from_dm(seen.data(), dm, 0, 100), 0);
  for (std::size_t i = 0; i < 100; ++i)
    EXPECT_EQ(seen[i], i >= 8 && i < 72 ? static_cast<unsigned char>(i - 7) : 0) << i;

  const std::uint64_t number = 37;
  ASSERT_EQ(ibv_memcpy_to_dm(dm, 16, &number, 8), 0);
  EXPECT_EQ(transfer(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, mr->rkey, 8), IBV_WC_SUCCESS);
  std::uint64_t found = 0;
  std::memcpy(&found, a.buffer.data(), 8);
  EXPECT_EQ(found, 37u);
  EXPECT_EQ(transfer(IBV_WR_RDMA_READ, 8, mr->rkey, 8), IBV_WC_SUCCESS);
  std::memcpy(&found, a.buffer.data(), 8);
  EXPECT_EQ(found, 42u);

  EXPECT_EQ(transfer(IBV_WR_RDMA_WRITE, 1, mr->rkey, 64), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_free_dm(dm), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

TEST_F(DeviceMemory, IsWhereSendsComeFromAndReceivesGo) {
  ibv_dm* dm = alloc(64);
  ASSERT_NE(dm, nullptr);
  ibv_mr* mr = ibv_reg_dm_mr(b.pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
  ASSERT_NE(mr, nullptr);
  ibv_sge into{4, 12, mr->lkey};
  ibv_recv_wr receive{};
  receive.sg_list = &into;
  receive.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(b.qp, &receive, &bad), 0);
  std::memcpy(a.buffer.data(), "twelve bytes", 12);
  ASSERT_EQ(transfer(IBV_WR_SEND, 0, 0, 12), IBV_WC_SUCCESS);
  ASSERT_TRUE(b.wait());
  char seen[12];
  ASSERT_EQ(ibv_memcpy_from_dm(seen, dm, 4, 12), 0);
  EXPECT_EQ(std::memcmp(seen, "twelve bytes", 12), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

TEST_F(DeviceMemory, ReachesItsMaximumAndNotOneByteMore) {
  errno = 0;
  EXPECT_EQ(alloc(most + 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  errno = 0;
  EXPECT_EQ(alloc(0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_dm* all = alloc(most);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(alloc(4), nullptr);
  EXPECT_EQ(ibv_free_dm(all), 0);
}

TEST_F(DeviceMemory, RefusesWhatLiesOutsideOrIsNotAligned) {
  ibv_dm* dm = alloc(100);
  ASSERT_NE(dm, nullptr);
  char bytes[128] = {};
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 1, bytes, 4), EINVAL);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 0, bytes, 3), EINVAL);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 100, bytes, 4), EINVAL);
  EXPECT_EQ(ibv_memcpy_from_dm(bytes, dm, 0, 104), EINVAL);
  EXPECT_EQ(ibv_memcpy_from_dm(bytes, dm, ~std::uint64_t{3}, 8), EINVAL);
  EXPECT_EQ(ibv_reg_dm_mr(b.pd, dm, 0, 104, kOnDevice), nullptr);
  ibv_mr* empty = ibv_reg_dm_mr(b.pd, dm, 100, 0, kOnDevice);
  ASSERT_NE(empty, nullptr);
  EXPECT_EQ(transfer(IBV_WR_RDMA_WRITE, 0, empty->rkey, 4), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(empty), 0);
  EXPECT_EQ(ibv_reg_dm_mr(b.pd, dm, 0, 100, IBV_ACCESS_LOCAL_WRITE), nullptr);
  EXPECT_EQ(ibv_reg_dm_mr(b.pd, dm, 0, 100, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE),
            nullptr);
  EXPECT_EQ(ibv_reg_dm_mr(a.pd, dm, 0, 100, kOnDevice), nullptr) << "another context's domain";
  ibv_alloc_dm_attr wanted{};
  wanted.length = 4;
  wanted.comp_mask = 1;
  EXPECT_EQ(ibv_alloc_dm(b.context, &wanted), nullptr);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

// Exit status 0: all as said in the names of the steps.
int in_child(ibv_context* context, ibv_dm* inherited) {
  ibv_alloc_dm_attr wanted{};
  wanted.length = 64;
  ibv_dm* own = ibv_alloc_dm(context, &wanted);
  if (own == nullptr) return 1;
  std::uint64_t number = 7, seen = 0;
  if (ibv_memcpy_to_dm(own, 8, &number, 8) != 0) return 2;
  if (ibv_memcpy_from_dm(&seen, own, 8, 8) != 0 || seen != 7) return 3;
  if (ibv_memcpy_to_dm(own, 60, &number, 8) != EINVAL) return 4;
  if (ibv_memcpy_from_dm(&seen, inherited, 0, 8) != EPERM) return 5;
  return ibv_free_dm(own) == 0 ? 0 : 6;
}

TEST_F(DeviceMemory, IsTheChildsOwnAfterAFork) {
  ibv_dm* dm = alloc(64);
  ASSERT_NE(dm, nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(in_child(b.context, dm));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

TEST_F(DeviceMemory, GoesWithItsContext) {
  ibv_context* context = open_first();
  ASSERT_NE(context, nullptr);
  ibv_alloc_dm_attr wanted{};
  wanted.length = most;
  ASSERT_NE(ibv_alloc_dm(context, &wanted), nullptr);
  ASSERT_EQ(ibv_close_device(context), 0);
  ibv_dm* all = alloc(most);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(ibv_free_dm(all), 0);
}

}  // namespace
}  // namespace verbs_test
