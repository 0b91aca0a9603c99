// Registration and what a key lets a peer reach: to the byte, to the right, to the domain.
#include <sys/mman.h>

#include <array>

#include "pair.h"

namespace conformance {
namespace {

constexpr std::size_t kPage = 4096;

// Pages with given rights, the last of which may be a hole.
class Pages {
 public:
  Pages(std::size_t count, int protection)
      : bytes_(count * kPage),
        start_(static_cast<unsigned char*>(
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    std::memset(start_, 0x33, bytes_);
    ::mprotect(start_, bytes_, protection);
  }
  ~Pages() { ::munmap(start_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  unsigned char* at(std::size_t page) const { return start_ + page * kPage; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  unsigned char* start_;
};

struct Domain {
  Domain() : context(verbs_test::open_first()), pd(ibv_alloc_pd(context)) {}
  ~Domain() {
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
  }
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;
  // 0, or the errno. What was registered is given back at once.
  int register_memory(void* start, std::size_t bytes, int access) const {
    errno = 0;
    ibv_mr* const mr = ibv_reg_mr(pd, start, bytes, access);
    if (mr == nullptr) return errno;
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    return 0;
  }
  ibv_context* context;
  ibv_pd* pd;
};

// CASES C53: of all sixteen combinations those fail that let a peer write where the program itself
// may not.
TEST(MemoryRights, RemoteWriteNeedsLocalWrite) {
  Domain domain;
  std::vector<unsigned char> buffer(100);
  for (int access = 0; access < 16; ++access) {
    const bool remote_writes = (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
    const bool is_wrong = remote_writes && (access & IBV_ACCESS_LOCAL_WRITE) == 0;
    EXPECT_EQ(domain.register_memory(buffer.data(), buffer.size(), access), is_wrong ? EINVAL : 0)
        << access;
  }
}

// CASES C50: what the program may not write no device may write for it.
TEST(MemoryRights, ReadOnlyPagesAreRegisteredForReadingOnly) {
  Domain domain;
  const Pages pages(3, PROT_READ);
  EXPECT_EQ(domain.register_memory(pages.at(0), pages.bytes(), IBV_ACCESS_REMOTE_READ), 0);
  EXPECT_EQ(domain.register_memory(pages.at(0), pages.bytes(), IBV_ACCESS_LOCAL_WRITE), EFAULT);
  const Pages writable(3, PROT_READ | PROT_WRITE);
  ::mprotect(writable.at(1), kPage, PROT_NONE);
  EXPECT_EQ(domain.register_memory(writable.at(0), writable.bytes(), 0), EFAULT);
  EXPECT_EQ(domain.register_memory(writable.at(0), kPage, IBV_ACCESS_LOCAL_WRITE), 0);
}

TEST(MemoryRights, AHoleIsNotMemory) {
  Domain domain;
  const Pages pages(3, PROT_READ | PROT_WRITE);
  ::munmap(pages.at(1), kPage);
  EXPECT_EQ(domain.register_memory(pages.at(0), pages.bytes(), 0), EFAULT);
  EXPECT_EQ(domain.register_memory(pages.at(0), kPage, 0), 0);
  EXPECT_EQ(domain.register_memory(nullptr, kPage, 0), EFAULT);
}

using Memory = Pair;

// CASES C64: the key is exact to the byte, whatever the pages are.
TEST_F(Memory, BoundsAreThoseOfTheBytes) {
  ibv_mr* const small = ibv_reg_mr(b.pd, b.buffer.data() + 50, 100, verbs_test::kAllAccess);
  ASSERT_NE(small, nullptr);
  const std::uint64_t start = b.address(50);
  const auto write = [&](std::uint64_t address, std::uint32_t bytes) {
    Send send{.opcode = IBV_WR_RDMA_WRITE, .bytes = bytes, .rkey = small->rkey, .remote = address};
    EXPECT_EQ(post(a, send), 0);
    const auto done = a.wait();
    const ibv_wc_status status = done ? done->status : IBV_WC_GENERAL_ERR;
    if (status != IBV_WC_SUCCESS) {
      for (Endpoint* end : {&a, &b}) EXPECT_EQ(move(*end, IBV_QPS_RESET), 0);
      verbs_test::connect(a, b);
    }
    return status;
  };
  EXPECT_EQ(write(start, 100), IBV_WC_SUCCESS);
  EXPECT_EQ(write(start + 99, 1), IBV_WC_SUCCESS);
  EXPECT_EQ(write(start - 1, 1), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(write(start + 100, 1), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(write(start + 97, 4), IBV_WC_REM_ACCESS_ERR);
  // CASES C41: nor does a sum that wraps slip through.
  EXPECT_EQ(write(~0ull - 1023, 1024), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(write(~0ull, 2), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(small), 0);
}

// CASES C48: no byte, no key.
TEST_F(Memory, AnEmptyAccessNeedsNoKey) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    ASSERT_EQ(post(a, {.opcode = opcode, .bytes = 0, .rkey = 0xdeadbeef, .remote = 1}), 0);
    const auto done = a.wait();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  }
}

// CASES C42: keys belong to a protection domain, at both ends.
TEST_F(Memory, AKeyOfAnotherDomainIsRefused) {
  ibv_pd* const other = ibv_alloc_pd(b.context);
  ASSERT_NE(other, nullptr);
  ibv_mr* const mr = ibv_reg_mr(other, b.buffer.data(), 4096, verbs_test::kAllAccess);
  ASSERT_NE(mr, nullptr);
  Send send{.opcode = IBV_WR_RDMA_WRITE, .rkey = mr->rkey, .remote = b.address(0)};
  ASSERT_EQ(post(a, send), 0);
  auto done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_REM_ACCESS_ERR);

  for (Endpoint* end : {&a, &b}) ASSERT_EQ(move(*end, IBV_QPS_RESET), 0);
  verbs_test::connect(a, b);
  ibv_sge piece{b.address(0), 8, mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &piece;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(b.qp, &wr, &bad), 0);
  done = b.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(ibv_dealloc_pd(other), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
}

// CASES C65: an entry of a scatter list lies in one region, however the regions lie.
TEST_F(Memory, AnEntryMustNotCrossFromOneRegionToTheNext) {
  ibv_mr* const first = ibv_reg_mr(a.pd, a.buffer.data(), 4096, 0);
  ibv_mr* const second = ibv_reg_mr(a.pd, a.buffer.data() + 4096, 4096, 0);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  ASSERT_EQ(post_receive(b, 1), 0);
  ibv_sge pieces[2] = {{a.address(4090), 6, first->lkey}, {a.address(4096), 6, second->lkey}};
  ibv_send_wr wr{};
  wr.sg_list = pieces;
  wr.num_sge = 2;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  auto done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  pieces[0].length = 12;
  wr.num_sge = 1;
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(ibv_dereg_mr(first), 0);
  EXPECT_EQ(ibv_dereg_mr(second), 0);
}

// CASES C58: peers count from the I/O address, the program from its own.
TEST_F(Memory, AnIoAddressOfItsOwnIsWhatPeersUse) {
  constexpr std::uint64_t kIo = 0x4000'0000;
  const Pages pages(3, PROT_READ | PROT_WRITE);
  ibv_mr* const mr =
      ibv_reg_mr_iova(b.pd, pages.at(0) + 100, 2 * kPage, kIo + 100, verbs_test::kAllAccess);
  ASSERT_NE(mr, nullptr);
  std::fill_n(a.buffer.begin(), 64, static_cast<unsigned char>(0x77));
  for (const std::uint64_t offset : {100ull, 4090ull, 8192ull + 36}) {
    Send send{.opcode = IBV_WR_RDMA_WRITE, .bytes = 64, .rkey = mr->rkey, .remote = kIo + offset};
    ASSERT_EQ(post(a, send), 0);
    const auto done = a.wait();
    ASSERT_TRUE(done);
    ASSERT_EQ(done->status, IBV_WC_SUCCESS) << offset;
    EXPECT_EQ(pages.at(0)[offset - 1], 0x33);
    EXPECT_EQ(pages.at(0)[offset], 0x77);
    EXPECT_EQ(pages.at(0)[offset + 63], 0x77);
    std::memset(pages.at(0), 0x33, pages.bytes());
  }
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_reg_mr_iova(b.pd, pages.at(0) + 100, kPage, kIo + 101, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

// Keys that were given back are dead at once, and what is still registered is not.
TEST_F(Memory, ADeregisteredKeyIsDead) {
  ibv_mr* const first = ibv_reg_mr(b.pd, b.buffer.data(), 4096, verbs_test::kAllAccess);
  ibv_mr* const second = ibv_reg_mr(b.pd, b.buffer.data(), 4096, verbs_test::kAllAccess);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_NE(first->rkey, second->rkey);
  const std::uint32_t dead = first->rkey;
  EXPECT_EQ(ibv_dereg_mr(first), 0);
  Send send{.opcode = IBV_WR_RDMA_WRITE, .rkey = second->rkey, .remote = b.address(0)};
  ASSERT_EQ(post(a, send), 0);
  auto done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  send.rkey = dead;
  ASSERT_EQ(post(a, send), 0);
  done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(second), 0);
}

}  // namespace
}  // namespace conformance
