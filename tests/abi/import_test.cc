// Imports: a second context on what the first one has open, and its objects by their handles.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

class Import : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    imported = ibv_import_device(::dup(b.context->cmd_fd));
    ASSERT_NE(imported, nullptr);
  }
  void TearDown() override {
    if (imported != nullptr) {
      EXPECT_EQ(ibv_close_device(imported), 0);
    }
  }
  void share_device_memory() {
    ibv_alloc_dm_attr wanted{};
    wanted.length = 64;
    dm = ibv_alloc_dm(b.context, &wanted);
    ASSERT_NE(dm, nullptr);
    same = ibv_import_dm(imported, dm->handle);
    ASSERT_NE(same, nullptr);
  }
  Endpoint a;
  Endpoint b;
  ibv_context* imported = nullptr;
  ibv_dm* dm = nullptr;    // of b
  ibv_dm* same = nullptr;  // imported
};

TEST_F(Import, GivesAContextThatWorks) {
  EXPECT_EQ(imported->device, b.context->device);
  EXPECT_NE(imported->cmd_fd, b.context->cmd_fd);
  EXPECT_NE(imported->async_fd, b.context->async_fd);
  ibv_pd* pd = ibv_alloc_pd(imported);
  ASSERT_NE(pd, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Import, SharesDomainsAndRegions) {
  ibv_pd* pd = ibv_import_pd(imported, b.pd->handle);
  ASSERT_NE(pd, nullptr);
  EXPECT_EQ(pd->context, imported);
  ibv_mr* mr = ibv_import_mr(pd, b.mr->handle);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->addr, nullptr);
  EXPECT_EQ(mr->length, b.mr->length);
  EXPECT_EQ(mr->lkey, b.mr->lkey);
  EXPECT_EQ(mr->rkey, b.mr->rkey);
  // A queue pair of the imported context uses the region of the other one.
  ibv_cq* cq = ibv_create_cq(imported, 16, nullptr, nullptr, 0);
  ASSERT_NE(cq, nullptr);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {16, 16, 1, 1, 0};
  ASSERT_EQ(ibv_destroy_qp(b.qp), 0);
  b.qp = ibv_create_qp(pd, &wanted);
  ASSERT_NE(b.qp, nullptr);
  connect(a, b);
  std::memcpy(a.buffer.data(), "imported", 8);
  ibv_sge sge = a.sge(0, 8);
  ibv_send_wr wr = write_to(b, sge, IBV_SEND_SIGNALED);
  wr.wr.rdma.rkey = mr->rkey;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  const auto done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(b.buffer.data(), "imported", 8), 0);
  ibv_unimport_mr(mr);
  EXPECT_EQ(ibv_destroy_qp(b.qp), 0);
  b.qp = nullptr;
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  ibv_unimport_pd(pd);  // the domain and the region are still b's
}

TEST_F(Import, SharesDeviceMemory) {
  ASSERT_NO_FATAL_FAILURE(share_device_memory());
  std::uint64_t number = 4711, seen = 0;
  ASSERT_EQ(ibv_memcpy_to_dm(dm, 8, &number, 8), 0);
  ASSERT_EQ(ibv_memcpy_from_dm(&seen, same, 8, 8), 0);
  EXPECT_EQ(seen, 4711u);
  ibv_unimport_dm(same);
  ASSERT_EQ(ibv_memcpy_from_dm(&seen, dm, 8, 8), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

TEST_F(Import, RefusesWhatIsDoneToDeviceMemoryThatIsGone) {
  ASSERT_NO_FATAL_FAILURE(share_device_memory());
  ASSERT_EQ(ibv_free_dm(dm), 0);
  std::uint64_t number = 0;
  EXPECT_EQ(ibv_memcpy_to_dm(same, 0, &number, 8), EINVAL);
  EXPECT_EQ(ibv_memcpy_from_dm(&number, same, 0, 8), EINVAL);
  errno = 0;
  EXPECT_EQ(ibv_reg_dm_mr(b.pd, same, 0, 64, unsigned{IBV_ACCESS_ZERO_BASED}), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_unimport_dm(same);
}

TEST_F(Import, KeepsADomainThatIsUsedThroughAnotherHandle) {
  ibv_pd* first = ibv_alloc_pd(b.context);
  ASSERT_NE(first, nullptr);
  ibv_pd* same = ibv_import_pd(imported, first->handle);
  ASSERT_NE(same, nullptr);
  ibv_mw* window = ibv_alloc_mw(same, IBV_MW_TYPE_2);
  ASSERT_NE(window, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(first), EBUSY);
  EXPECT_EQ(ibv_dealloc_mw(window), 0);
  ibv_unimport_pd(same);
  EXPECT_EQ(ibv_dealloc_pd(first), 0);
}

TEST_F(Import, RefusesHandlesOfOtherDescriptorsAndOfNothing) {
  errno = 0;
  EXPECT_EQ(ibv_import_pd(imported, a.pd->handle), nullptr);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(ibv_import_pd(imported, 0xffff), nullptr);
  EXPECT_EQ(ibv_import_dm(imported, 0xffff), nullptr);
  ibv_pd* pd = ibv_alloc_pd(imported);
  ASSERT_NE(pd, nullptr);
  EXPECT_EQ(ibv_import_mr(pd, 0xffff), nullptr);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(ibv_import_mr(pd, b.mr->handle), nullptr) << "it is not of this domain";
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Import, RefusesDescriptorsThatAreNoOpenDeviceOfThisProcess) {
  errno = 0;
  EXPECT_EQ(ibv_import_device(-1), nullptr);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(ibv_import_device(b.context->cmd_fd), nullptr) << "not a duplicate";
  EXPECT_EQ(errno, EINVAL);
  const int other = ::memfd_create("somebody's", MFD_CLOEXEC);
  ASSERT_GE(other, 0);
  EXPECT_EQ(ibv_import_device(other), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(::close(other), 0) << "it still belongs to the program";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0)
    ::_exit(ibv_import_device(::dup(b.context->cmd_fd)) == nullptr && errno == EPERM ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(Import, KeepsWhatTheClosedContextHadUntilTheLastOneGoes) {
  ibv_context* first = open_first();
  ASSERT_NE(first, nullptr);
  ibv_pd* pd = ibv_alloc_pd(first);
  ASSERT_NE(pd, nullptr);
  const std::uint32_t handle = pd->handle;
  ibv_context* second = ibv_import_device(::dup(first->cmd_fd));
  ASSERT_NE(second, nullptr);
  ASSERT_EQ(ibv_close_device(first), 0);
  ibv_pd* same = ibv_import_pd(second, handle);
  ASSERT_NE(same, nullptr);
  std::vector<char> memory(4096);
  ibv_mr* mr = ibv_reg_mr(same, memory.data(), memory.size(), int{IBV_ACCESS_LOCAL_WRITE});
  ASSERT_NE(mr, nullptr);
  ASSERT_EQ(ibv_close_device(second), 0);  // with everything
}

TEST_F(Import, KeepsAnUnimportedDomainThatIsStillNamed) {
  ibv_pd* pd = ibv_import_pd(imported, b.pd->handle);
  ASSERT_NE(pd, nullptr);
  std::vector<char> memory(4096);
  ibv_mr* mr = ibv_reg_mr(pd, memory.data(), memory.size(), int{IBV_ACCESS_LOCAL_WRITE});
  ASSERT_NE(mr, nullptr);
  ibv_unimport_pd(pd);
  EXPECT_EQ(mr->pd->handle, b.pd->handle);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// rdma-core's ibv_query_ece and ibv_set_ece on devices without enhancements.
TEST_F(Import, HasNoEnhancementsToAgreeOn) {
  ibv_ece ece{7, 7, 7};
  EXPECT_EQ(ibv_query_ece(a.qp, &ece), EOPNOTSUPP);
  EXPECT_EQ(ece.vendor_id, 0u);
  EXPECT_EQ(ece.options, 0u);
  EXPECT_EQ(ibv_set_ece(a.qp, &ece), EOPNOTSUPP);
  EXPECT_EQ(ibv_query_qp_data_in_order(a.qp, IBV_WR_RDMA_WRITE, 0), 0);
}

}  // namespace
}  // namespace verbs_test
