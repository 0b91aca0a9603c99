// Parent domains and thread domains: what they hold, and memory for queues by the program.
#include <cerrno>
#include <cstdlib>
#include <map>

#include "endpoint.h"

namespace verbs_test {
namespace {

// The program's allocator, which keeps account.
struct Account {
  enum class Answer { Memory, Default, Nothing, Misaligned };
  Answer answer = Answer::Memory;
  ibv_pd* domain = nullptr;              // as it was called with
  std::map<void*, std::uint64_t> given;  // -> purpose
  int asked = 0;
  bool is_right = true;

  static void* alloc(ibv_pd* pd, void* context, std::size_t size, std::size_t alignment,
                     std::uint64_t purpose) {
    auto& self = *static_cast<Account*>(context);
    self.domain = pd;
    ++self.asked;
    if (self.answer == Answer::Default) return IBV_ALLOCATOR_USE_DEFAULT;
    if (self.answer == Answer::Nothing) return nullptr;
    void* const start = std::aligned_alloc(alignment, size + alignment);
    if (start == nullptr) return nullptr;
    std::memset(start, 0xcc, size + alignment);
    void* const used = self.answer == Answer::Misaligned ? static_cast<char*>(start) + 64 : start;
    self.given.emplace(used, purpose);
    return used;
  }
  static void free(ibv_pd* pd, void* context, void* pointer, std::uint64_t purpose) {
    auto& self = *static_cast<Account*>(context);
    const auto found = self.given.find(pointer);
    self.is_right &= found != self.given.end() && found->second == purpose && pd == self.domain;
    if (found == self.given.end()) return;
    self.given.erase(found);
    std::free(self.answer == Answer::Misaligned ? static_cast<char*>(pointer) - 64 : pointer);
  }
};

class Domains : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(a.is_ready() && b.is_ready()); }
  ibv_pd* parent(ibv_pd* within, ibv_td* thread = nullptr, Account* account = nullptr) {
    ibv_parent_domain_init_attr wanted{};
    wanted.pd = within;
    wanted.td = thread;
    if (account != nullptr) {
      wanted.comp_mask =
          IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
      wanted.alloc = Account::alloc;
      wanted.free = Account::free;
      wanted.pd_context = account;
    }
    return ibv_alloc_parent_domain(a.context, &wanted);
  }
  ibv_cq* queue_in(ibv_pd* domain) {
    ibv_cq_init_attr_ex wanted{};
    wanted.cqe = 64;
    wanted.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    wanted.parent_domain = domain;
    ibv_cq_ex* cq = ibv_create_cq_ex(a.context, &wanted);
    return cq == nullptr ? nullptr : ibv_cq_ex_to_cq(cq);
  }
  ibv_qp* pair_in(ibv_pd* domain, ibv_cq* cq) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {16, 16, 2, 2, 64};
    return ibv_create_qp(domain, &wanted);
  }
  Endpoint a;
  Endpoint b;
};

TEST_F(Domains, AreKeptWhileOthersAreWithinThem) {
  ibv_td_init_attr nothing{};
  ibv_td* thread = ibv_alloc_td(a.context, &nothing);
  ASSERT_NE(thread, nullptr);
  ibv_pd* plain = ibv_alloc_pd(a.context);
  ASSERT_NE(plain, nullptr);
  ibv_pd* domain = parent(plain, thread);
  ASSERT_NE(domain, nullptr);
  EXPECT_EQ(domain->handle, plain->handle);
  EXPECT_EQ(ibv_dealloc_td(thread), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(plain), EBUSY);
  std::vector<char> memory(4096);
  ibv_mr* mr = ibv_reg_mr(domain, memory.data(), memory.size(), int{IBV_ACCESS_LOCAL_WRITE});
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->pd, domain);
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
  EXPECT_EQ(ibv_dealloc_pd(plain), 0);
  EXPECT_EQ(ibv_dealloc_td(thread), 0);
}

TEST_F(Domains, StandForTheOneTheyAreIn) {
  ibv_pd* domain = parent(a.pd);
  ASSERT_NE(domain, nullptr);
  ASSERT_EQ(ibv_destroy_qp(a.qp), 0);
  a.qp = pair_in(domain, a.cq);
  ASSERT_NE(a.qp, nullptr);
  connect(a, b);
  ibv_sge sge = a.sge(0, 100);  // of a region of the domain that it is in
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = b.address(0);
  wr.wr.rdma.rkey = b.mr->rkey;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  const auto done = a.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY);
  EXPECT_EQ(ibv_destroy_qp(a.qp), 0);
  a.qp = nullptr;
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
}

TEST_F(Domains, TakeMemoryForQueuesFromTheProgramAndGiveItBack) {
  Account account;
  ibv_pd* domain = parent(a.pd, nullptr, &account);
  ASSERT_NE(domain, nullptr);
  ASSERT_EQ(ibv_destroy_qp(a.qp), 0);
  ASSERT_EQ(ibv_destroy_cq(a.cq), 0);
  a.cq = queue_in(domain);
  ASSERT_NE(a.cq, nullptr);
  EXPECT_EQ(account.given.size(), 1u);
  a.qp = pair_in(domain, a.cq);
  ASSERT_NE(a.qp, nullptr);
  EXPECT_EQ(account.given.size(), 3u) << "two queues more";
  EXPECT_EQ(account.domain, domain);
  connect(a, b);
  for (int round = 0; round < 200; ++round) {  // several times around each of them
    a.buffer[0] = static_cast<unsigned char>(round);
    ibv_sge sge = a.sge(0, 1);
    ibv_send_wr wr{};
    wr.wr_id = static_cast<std::uint64_t>(round);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = b.address(0);
    wr.wr.rdma.rkey = b.mr->rkey;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
    const auto done = a.wait();
    ASSERT_TRUE(done);
    ASSERT_EQ(done->status, IBV_WC_SUCCESS);
    ASSERT_EQ(done->wr_id, static_cast<std::uint64_t>(round));
    ASSERT_EQ(b.buffer[0], static_cast<unsigned char>(round));
  }
  EXPECT_EQ(ibv_resize_cq(a.cq, 256), 0);
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY);
  EXPECT_EQ(ibv_destroy_qp(a.qp), 0);
  EXPECT_EQ(ibv_destroy_cq(a.cq), 0);
  a.qp = nullptr;
  a.cq = nullptr;
  EXPECT_TRUE(account.given.empty());
  EXPECT_TRUE(account.is_right);
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
}

TEST_F(Domains, LeaveMemoryToTheLibraryWhereTheProgramSaysSo) {
  Account account;
  account.answer = Account::Answer::Default;
  ibv_pd* domain = parent(a.pd, nullptr, &account);
  ASSERT_NE(domain, nullptr);
  ibv_cq* cq = queue_in(domain);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(account.asked, 1);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_TRUE(account.is_right) << "nothing to free";
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
}

TEST_F(Domains, FailWithoutTheMemoryAndLeaveNothing) {
  for (const auto answer : {Account::Answer::Nothing, Account::Answer::Misaligned}) {
    Account account;
    account.answer = answer;
    ibv_pd* domain = parent(a.pd, nullptr, &account);
    ASSERT_NE(domain, nullptr);
    errno = 0;
    EXPECT_EQ(queue_in(domain), nullptr);
    EXPECT_EQ(errno, answer == Account::Answer::Nothing ? ENOMEM : EINVAL);
    EXPECT_EQ(pair_in(domain, a.cq), nullptr);
    EXPECT_TRUE(account.given.empty());
    EXPECT_EQ(ibv_dealloc_pd(domain), 0);
  }
}

TEST_F(Domains, RefuseWhatMakesNoSense) {
  EXPECT_EQ(parent(nullptr), nullptr);
  EXPECT_EQ(parent(b.pd), nullptr) << "of another context";
  ibv_pd* domain = parent(a.pd);
  ASSERT_NE(domain, nullptr);
  errno = 0;
  EXPECT_EQ(parent(domain), nullptr) << "a parent domain has no other within it";
  EXPECT_EQ(errno, EINVAL);
  ibv_parent_domain_init_attr wanted{};
  wanted.pd = a.pd;
  wanted.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
  EXPECT_EQ(ibv_alloc_parent_domain(a.context, &wanted), nullptr)
      << "allocators that are not there";
  EXPECT_EQ(errno, EINVAL);
  wanted.comp_mask = 1u << 7;
  EXPECT_EQ(ibv_alloc_parent_domain(a.context, &wanted), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(queue_in(a.pd), nullptr) << "no parent domain";
  EXPECT_EQ(errno, EINVAL);
  ibv_td_init_attr unknown{};
  unknown.comp_mask = 1;
  EXPECT_EQ(ibv_alloc_td(a.context, &unknown), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
}

}  // namespace
}  // namespace verbs_test
