// Protection domains, memory regions and address handles.
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "endpoint.h"

namespace verbs_test {
namespace {

class Memory : public ::testing::Test {
 protected:
  void SetUp() override {
    context = open_first();
    ASSERT_NE(context, nullptr);
    pd = ibv_alloc_pd(context);
    ASSERT_NE(pd, nullptr);
  }
  void TearDown() override {
    EXPECT_TRUE(pd == nullptr || ibv_dealloc_pd(pd) == 0);
    EXPECT_TRUE(context == nullptr || ibv_close_device(context) == 0);
  }
  int errno_of_registration(void* start, std::size_t length, int access) {
    errno = 0;
    ibv_mr* mr = ibv_reg_mr(pd, start, length, access);
    if (mr == nullptr) return errno;
    ibv_dereg_mr(mr);
    return 0;
  }
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
};

TEST_F(Memory, GivesBackWhatWasRegistered) {
  std::vector<char> memory(10'000);
  ibv_mr* mr = ibv_reg_mr(pd, memory.data() + 3, 9'000, kAllAccess);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->addr, memory.data() + 3);
  EXPECT_EQ(mr->length, 9'000u);
  EXPECT_EQ(mr->pd, pd);
  EXPECT_EQ(mr->context, context);
  EXPECT_NE(mr->lkey, 0u);
  EXPECT_EQ(mr->lkey, mr->rkey);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Memory, AcceptsOptionalFlagsAndAnIoAddress) {
  std::vector<char> memory(8'192);
  ibv_mr* mr = ibv_reg_mr_iova2(pd, memory.data(), memory.size(),
                                reinterpret_cast<std::uintptr_t>(memory.data()) % 4096 + 0x100000,
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Memory, AnswersEfaultForMemoryThatIsNotThereOrNotWritable) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* hole = ::mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(::munmap(hole, page), 0);
  EXPECT_EQ(errno_of_registration(hole, page, IBV_ACCESS_LOCAL_WRITE), EFAULT);
  void* fixed = ::mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(errno_of_registration(fixed, page, IBV_ACCESS_LOCAL_WRITE), EFAULT);
  EXPECT_EQ(errno_of_registration(fixed, page, 0), 0);
  ::munmap(fixed, page);
}

TEST_F(Memory, AnswersEinvalForRightsThatContradictEachOther) {
  std::vector<char> memory(4096);
  for (int rights = 0; rights < 16; ++rights) {  // C53: exactly these
    const bool needs_local_write =
        (rights & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
    const bool is_wrong = needs_local_write && (rights & IBV_ACCESS_LOCAL_WRITE) == 0;
    EXPECT_EQ(errno_of_registration(memory.data(), memory.size(), rights), is_wrong ? EINVAL : 0)
        << rights;
  }
}

TEST_F(Memory, RefusesRightsThatItDoesNotKnow) {
  std::vector<char> memory(4096);
  for (const int right : {1 << 8, 1 << 9, 1 << 15})
    EXPECT_EQ(errno_of_registration(memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE | right),
              EINVAL)
        << right;
}

TEST_F(Memory, KeepsADomainThatRegionsDependOn) {
  std::vector<char> memory(4096);
  ibv_mr* mr = ibv_reg_mr(pd, memory.data(), memory.size(), int{IBV_ACCESS_LOCAL_WRITE});
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// man ibv_rereg_mr: IBV_REREG_MR_ERR_INPUT says that the old region is valid.
TEST_F(Memory, ChangesARegionOrLeavesItAsItIs) {
  std::vector<char> memory(4096), other(8192);
  ibv_pd* second = ibv_alloc_pd(context);
  ibv_mr* mr = ibv_reg_mr(pd, memory.data(), memory.size(), int{IBV_ACCESS_LOCAL_WRITE});
  ASSERT_NE(mr, nullptr);
  const auto change = [&](int flags, ibv_pd* domain, void* address, std::size_t length,
                          int access) {
    errno = 0;
    return ibv_rereg_mr(mr, flags, domain, address, length, access);
  };
  const std::uint32_t key = mr->lkey;
  for (const int flags : {0, 8, -1}) {
    EXPECT_EQ(change(flags, pd, memory.data(), 1, 0), IBV_REREG_MR_ERR_INPUT);
    EXPECT_EQ(errno, EINVAL);
  }
  constexpr int kTranslation = IBV_REREG_MR_CHANGE_TRANSLATION;
  EXPECT_EQ(change(kTranslation, nullptr, nullptr, 1, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(change(kTranslation, nullptr, other.data(), 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(change(kTranslation, nullptr, reinterpret_cast<void*>(16), 4096, 0),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(change(IBV_REREG_MR_CHANGE_PD, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(change(IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_WRITE),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(change(IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 1 << 8),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(mr->addr, memory.data());
  EXPECT_EQ(mr->pd, pd);
  EXPECT_EQ(ibv_dealloc_pd(second), 0);
  second = ibv_alloc_pd(context);
  EXPECT_EQ(change(kTranslation | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, second,
                   other.data(), other.size(), kAllAccess),
            0);
  EXPECT_EQ(mr->addr, other.data());
  EXPECT_EQ(mr->length, other.size());
  EXPECT_EQ(mr->pd, second);
  EXPECT_EQ(mr->lkey, key);
  EXPECT_EQ(ibv_dealloc_pd(second), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(second), 0);
}

TEST_F(Memory, HasRegionsOfNothing) {
  ibv_mr* mr = ibv_alloc_null_mr(pd);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->addr, nullptr);
  EXPECT_EQ(mr->length, SIZE_MAX);
  errno = 0;
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, pd, nullptr, 0, kAllAccess),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// A buffer that the kernel exports of ordinary memory; -1 where it offers none.
int make_dma_buf(std::size_t bytes) {
  const int device = ::open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
  if (device < 0) return -1;
  const int memory = ::memfd_create("behind-a-dma-buf", MFD_ALLOW_SEALING | MFD_CLOEXEC);
  EXPECT_EQ(::ftruncate(memory, static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  udmabuf_create wanted{};
  wanted.memfd = static_cast<std::uint32_t>(memory);
  wanted.size = bytes;
  const int made = ::ioctl(device, UDMABUF_CREATE, &wanted);
  ::close(memory);
  ::close(device);
  return made;
}

TEST_F(Memory, RegistersADmaBuf) {
  constexpr std::size_t kBytes = 64 * 1024;
  const int buffer = make_dma_buf(kBytes);
  if (buffer < 0) GTEST_SKIP() << "no /dev/udmabuf here";
  Endpoint a, b;
  connect(a, b);
  errno = 0;
  EXPECT_EQ(ibv_reg_dmabuf_mr(b.pd, kBytes, 4096, 0, buffer, kAllAccess), nullptr);
  EXPECT_EQ(errno, EINVAL) << "behind its end";
  ibv_mr* mr = ibv_reg_dmabuf_mr(b.pd, 4096, 8192, 0x10000, buffer, kAllAccess);
  ASSERT_NE(mr, nullptr);
  std::memcpy(a.buffer.data(), "into another device", 19);
  ibv_sge sge = a.sge(0, 19);
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = 0x10000 + 5000;
  wr.wr.rdma.rkey = mr->rkey;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  const auto done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  void* seen = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, buffer, 0);
  ASSERT_NE(seen, MAP_FAILED);
  EXPECT_EQ(std::memcmp(static_cast<char*>(seen) + 4096 + 5000, "into another device", 19), 0);
  ::munmap(seen, kBytes);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  ::close(buffer);
}

TEST_F(Memory, RefusesADmaBufThatIsNone) {
  const int memory = ::memfd_create("no-dma-buf", MFD_CLOEXEC);
  ASSERT_GE(memory, 0);
  ASSERT_EQ(::ftruncate(memory, 4096), 0);
  errno = 0;
  EXPECT_EQ(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, memory, kAllAccess), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::close(memory), 0) << "it still belongs to the program";
  EXPECT_EQ(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, kAllAccess), nullptr);
  EXPECT_EQ(errno, EBADF);
}

class AddressVector : public Memory {
 protected:
  void SetUp() override {
    Memory::SetUp();
    ASSERT_EQ(ibv_query_gid(context, 1, 0, &good.grh.dgid), 0);
    good.is_global = 1;
    good.port_num = 1;
  }
  int errno_of_creation(ibv_ah_attr attributes) {
    errno = 0;
    ibv_ah* ah = ibv_create_ah(pd, &attributes);
    if (ah == nullptr) return errno;
    EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
    return 0;
  }
  ibv_ah_attr good{};
};

TEST_F(AddressVector, LeadsToTheOwnGid) { EXPECT_EQ(errno_of_creation(good), 0); }

TEST_F(AddressVector, LeadsToAnEthernetAddress) {
  std::uint8_t mac[6] = {1, 2, 3, 4, 5, 6};
  std::uint16_t vlan = 0;
  ASSERT_EQ(ibv_resolve_eth_l2_from_gid(context, &good, mac, &vlan), 0);
  for (const std::uint8_t byte : mac) EXPECT_EQ(byte, 0) << "the loopback interface has none";
  EXPECT_EQ(vlan, 0xffff);
  good.grh.dgid = {};
  EXPECT_EQ(ibv_resolve_eth_l2_from_gid(context, &good, mac, &vlan), EINVAL);
}

TEST_F(AddressVector, NeedsAGlobalRoute) {
  good.is_global = 0;
  EXPECT_EQ(errno_of_creation(good), EINVAL);
}

TEST_F(AddressVector, NeedsASourceThatExistsAndADestinationOfItsKind) {
  ibv_ah_attr bad = good;
  bad.grh.sgid_index = 15;
  EXPECT_EQ(errno_of_creation(bad), EINVAL);
  bad = good;
  bad.grh.dgid = {};
  EXPECT_EQ(errno_of_creation(bad), EINVAL);
  bad = good;
  bad.grh.dgid.raw[0] = 0xfd;
  EXPECT_EQ(errno_of_creation(bad), EINVAL);
  bad = good;
  bad.port_num = 2;
  EXPECT_EQ(errno_of_creation(bad), EINVAL);
}

}  // namespace
}  // namespace verbs_test
