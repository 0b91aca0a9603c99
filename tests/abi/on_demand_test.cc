// On-demand regions: pages come when the device asks, nothing is pinned, and what is not there is
// refused. Also regions that are zero based, and huge pages.
#include <sys/mman.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "endpoint.h"

namespace verbs_test {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kOnDemand = kAllAccess | IBV_ACCESS_ON_DEMAND;

// Pages of its own; unmapped at the end.
class Mapped {
 public:
  explicit Mapped(std::size_t bytes, int flags = 0)
      : bytes_(bytes),
        start_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags,
                      -1, 0)) {}
  ~Mapped() {
    if (is_there()) ::munmap(start_, bytes_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  bool is_there() const { return start_ != MAP_FAILED; }
  unsigned char* at(std::size_t offset) const {
    return static_cast<unsigned char*>(start_) + offset;
  }
  std::uint64_t address(std::size_t offset = 0) const {
    return reinterpret_cast<std::uint64_t>(at(offset));
  }
  bool is_present(std::size_t offset) const {
    unsigned char state = 0;
    return ::mincore(at(offset), kPage, &state) == 0 && (state & 1) != 0;
  }

 private:
  std::size_t bytes_;
  void* start_;
};

// What this process has pinned or locked, as the kernel counts it.
std::string locked_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmPin:") || line.starts_with("VmLck:")) return line;
  return "";
}

class OnDemand : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    connect(a, b);
    // What is mapped when the device is first used is so before a test makes holes that are to
    // stay.
    for (int i = 0; i < 2; ++i) ASSERT_EQ(write(b.sge(0, 1).addr, b.mr->rkey, 1), IBV_WC_SUCCESS);
  }
  ibv_wc_status write(std::uint64_t remote, std::uint32_t rkey, std::uint32_t bytes,
                      ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
    ibv_sge sge = a.sge(0, bytes);
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(a.qp, &wr, &bad) != 0) return IBV_WC_GENERAL_ERR;
    const auto done = a.wait();
    return done ? done->status : IBV_WC_GENERAL_ERR;
  }
  int advise(unsigned advice, std::uint32_t flags, ibv_sge sge, ibv_pd* pd = nullptr) {
    return ibv_advise_mr(pd != nullptr ? pd : b.pd, static_cast<ibv_advise_mr_advice>(advice),
                         flags, &sge, 1);
  }
  Endpoint a;
  Endpoint b;
};

TEST_F(OnDemand, BringsAPageWhenTheDeviceAsks) {
  Mapped memory(64 * kPage);
  const std::string locked = locked_memory();
  ibv_mr* mr = ibv_reg_mr(b.pd, memory.at(0), 64 * kPage, kOnDemand);
  ASSERT_NE(mr, nullptr);
  EXPECT_FALSE(memory.is_present(5 * kPage));
  for (std::size_t i = 0; i < 3 * kPage; ++i) a.buffer[i] = static_cast<unsigned char>(i * 7);
  ASSERT_EQ(write(memory.address(5 * kPage + 100), mr->rkey, 3 * kPage), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(memory.at(5 * kPage + 100), a.buffer.data(), 3 * kPage), 0);
  EXPECT_FALSE(memory.is_present(20 * kPage)) << "nobody asked for it";
  EXPECT_EQ(locked_memory(), locked) << "nothing is pinned";
  // Reading brings a page that is then read only; a write asks again.
  ASSERT_EQ(write(memory.address(30 * kPage), mr->rkey, 64, IBV_WR_RDMA_READ), IBV_WC_SUCCESS);
  EXPECT_EQ(a.buffer[0], 0);
  a.buffer[0] = 77;
  ASSERT_EQ(write(memory.address(30 * kPage), mr->rkey, 64), IBV_WC_SUCCESS);
  EXPECT_EQ(*memory.at(30 * kPage), 77);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(OnDemand, MayBeRegisteredBeforeTheMemoryIsThere) {
  Mapped memory(4 * kPage);
  ASSERT_EQ(::munmap(memory.at(kPage), kPage), 0);
  ibv_mr* mr = ibv_reg_mr(b.pd, memory.at(0), 4 * kPage, kOnDemand);
  ASSERT_NE(mr, nullptr);
  ASSERT_EQ(write(memory.address(), mr->rkey, kPage), IBV_WC_SUCCESS);
  ASSERT_NE(::mmap(memory.at(kPage), kPage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            MAP_FAILED);
  a.buffer[0] = 5;
  ASSERT_EQ(write(memory.address(kPage), mr->rkey, kPage), IBV_WC_SUCCESS);
  EXPECT_EQ(*memory.at(kPage), 5);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(OnDemand, RefusesAPageThatIsNotThere) {
  Mapped memory(2 * kPage);
  ASSERT_EQ(::munmap(memory.at(kPage), kPage), 0);
  ibv_mr* mr = ibv_reg_mr(b.pd, memory.at(0), 2 * kPage, kOnDemand);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(write(memory.address(kPage), mr->rkey, 64), IBV_WC_REM_OP_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(OnDemand, RefusesToWriteToAPageThatIsReadOnly) {
  Mapped memory(kPage);
  ASSERT_EQ(::mprotect(memory.at(0), kPage, PROT_READ), 0);
  ibv_mr* mr = ibv_reg_mr(b.pd, memory.at(0), kPage, kOnDemand);
  ASSERT_NE(mr, nullptr);
  ASSERT_EQ(write(memory.address(), mr->rkey, 64, IBV_WR_RDMA_READ), IBV_WC_SUCCESS);
  EXPECT_EQ(write(memory.address(), mr->rkey, 64), IBV_WC_REM_OP_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(OnDemand, IsExactToTheByteLikeEveryRegion) {
  Mapped memory(2 * kPage);
  ibv_mr* mr = ibv_reg_mr(b.pd, memory.at(10), 100, kOnDemand);
  ASSERT_NE(mr, nullptr);
  ASSERT_EQ(write(memory.address(10), mr->rkey, 100), IBV_WC_SUCCESS);
  EXPECT_EQ(write(memory.address(11), mr->rkey, 100), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(OnDemand, ReachesAllMemoryThroughAnImplicitRegion) {
  ibv_mr* mr = ibv_reg_mr(b.pd, nullptr, SIZE_MAX, kOnDemand);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->length, SIZE_MAX);
  ibv_mr* second = ibv_reg_mr(b.pd, nullptr, SIZE_MAX, IBV_ACCESS_ON_DEMAND);
  ASSERT_NE(second, nullptr);
  static unsigned char in_the_program[100];
  unsigned char on_the_stack[100] = {};
  Mapped memory(kPage);
  unsigned char value = 0;
  for (unsigned char* place : {in_the_program, on_the_stack, memory.at(0)}) {
    std::fill_n(a.buffer.begin(), 100, ++value);
    ASSERT_EQ(write(reinterpret_cast<std::uint64_t>(place), mr->rkey, 100), IBV_WC_SUCCESS);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(place[i], value);
  }
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(write(memory.address(), second->rkey, 64), IBV_WC_REM_ACCESS_ERR) << "its own rights";
  EXPECT_EQ(ibv_dereg_mr(second), 0);
  EXPECT_EQ(ibv_reg_mr_iova2(b.pd, nullptr, SIZE_MAX, kPage, kOnDemand), nullptr);
  EXPECT_EQ(ibv_reg_mr(b.pd, nullptr, SIZE_MAX, kAllAccess), nullptr) << "not on demand";
}

TEST_F(OnDemand, TakesAdviceAboutPages) {
  Mapped memory(16 * kPage);
  ibv_mr* mr = ibv_reg_mr(b.pd, memory.at(0), 16 * kPage, kOnDemand);
  ASSERT_NE(mr, nullptr);
  const ibv_sge third{memory.address(2 * kPage + 9), 10, mr->lkey};
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IBV_ADVISE_MR_FLAG_FLUSH, third), 0);
  EXPECT_FALSE(memory.is_present(2 * kPage));
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, third), 0);
  EXPECT_TRUE(memory.is_present(2 * kPage));
  EXPECT_FALSE(memory.is_present(3 * kPage));
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0,
                   {memory.address(), static_cast<std::uint32_t>(16 * kPage), mr->lkey}),
            0);
  ASSERT_EQ(write(memory.address(), mr->rkey, 8 * kPage), IBV_WC_SUCCESS);

  ASSERT_EQ(::munmap(memory.at(15 * kPage), kPage), 0);
  const ibv_sge gone{memory.address(15 * kPage), 10, mr->lkey};
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, gone), EFAULT);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, gone), 0) << "nobody waits for it";
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(OnDemand, RefusesAdviceThatMakesNoSense) {
  Mapped memory(kPage);
  ibv_mr* mr = ibv_reg_mr(b.pd, memory.at(0), kPage, IBV_ACCESS_ON_DEMAND);
  ASSERT_NE(mr, nullptr);
  const ibv_sge good{memory.address(), 10, mr->lkey};
  constexpr auto kFlush = IBV_ADVISE_MR_FLAG_FLUSH;
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, kFlush, good), 0);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, kFlush, good), EFAULT) << "no such right";
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 2, good), EINVAL);
  EXPECT_EQ(advise(17, kFlush, good), EOPNOTSUPP);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, kFlush, good, a.pd), EFAULT) << "another domain";
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, kFlush, {b.address(0), 10, b.mr->lkey}), EFAULT);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, kFlush, {memory.address(), 5000, mr->lkey}),
            EFAULT);
  EXPECT_EQ(ibv_advise_mr(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, kFlush, nullptr, 0), EINVAL);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(OnDemand, SaysWhatItCanDo) {
  ibv_device_attr_ex attr{};
  ASSERT_EQ(ibv_query_device_ex(a.context, nullptr, &attr), 0);
  EXPECT_EQ(attr.odp_caps.general_caps, std::uint64_t{IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT});
  EXPECT_NE(attr.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_ATOMIC, 0u);
  EXPECT_NE(attr.odp_caps.per_transport_caps.ud_odp_caps & IBV_ODP_SUPPORT_SEND, 0u);
}

TEST_F(OnDemand, WorksForRegionsWhoseAddressesBeginAtZero) {
  for (const int on_demand : {0, int{IBV_ACCESS_ON_DEMAND}}) {
    Mapped memory(2 * kPage);
    ibv_mr* mr =
        ibv_reg_mr(b.pd, memory.at(123), 5000, kAllAccess | IBV_ACCESS_ZERO_BASED | on_demand);
    ASSERT_NE(mr, nullptr);
    std::memcpy(a.buffer.data(), "begins at zero", 14);
    ASSERT_EQ(write(4900, mr->rkey, 14), IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(memory.at(123 + 4900), "begins at zero", 14), 0);
    ASSERT_EQ(write(0, mr->rkey, 14), IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(memory.at(123), "begins at zero", 14), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
}

TEST_F(OnDemand, TakesHugePagesOnlyWhereTheyAre) {
  Mapped small(4 * kPage);
  errno = 0;
  EXPECT_EQ(ibv_reg_mr(b.pd, small.at(0), kPage, kAllAccess | IBV_ACCESS_HUGETLB), nullptr);
  EXPECT_EQ(errno, EINVAL);
  constexpr std::size_t kHuge = 2u << 20;
  Mapped huge(kHuge, MAP_HUGETLB | (21 << MAP_HUGE_SHIFT));
  if (!huge.is_there()) GTEST_SKIP() << "no huge page is free";
  for (const int on_demand : {0, int{IBV_ACCESS_ON_DEMAND}}) {
    ibv_mr* mr =
        ibv_reg_mr(b.pd, huge.at(1000), kHuge - 1000, kAllAccess | IBV_ACCESS_HUGETLB | on_demand);
    ASSERT_NE(mr, nullptr);
    a.buffer[0] = static_cast<unsigned char>(50 + on_demand);
    ASSERT_EQ(write(huge.address(kHuge - 64), mr->rkey, 64), IBV_WC_SUCCESS);
    EXPECT_EQ(*huge.at(kHuge - 64), a.buffer[0]);
    ASSERT_EQ(write(huge.address(1000), mr->rkey, 64), IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
}

}  // namespace
}  // namespace verbs_test
