// Mistakes that users make, and whether the one line on stderr tells a newcomer what to change: it
// has to name the rule, the object with its numbers, and the remedy.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <ostream>
#include <string>

#include "endpoint.h"

namespace verbs_test {
namespace {

struct Two {
  Endpoint a{Options{.requests = 4}};
  Endpoint b{Options{.requests = 4}};
  bool is_ready() const { return a.is_ready() && b.is_ready(); }
};

ibv_send_wr write_of(ibv_sge* piece, const Endpoint& target) {
  ibv_send_wr wr{};
  wr.sg_list = piece;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.rkey = target.mr->rkey;
  wr.wr.rdma.remote_addr = target.address(0);
  return wr;
}

// Posts it, whatever comes of it.
void send(Endpoint& from, ibv_send_wr wr) {
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(from.qp, &wr, &bad) == 0) from.wait();
}

void post_receive(Endpoint& at, std::uint32_t bytes) {
  ibv_sge piece = at.sge(0, bytes);
  ibv_recv_wr wr{};
  wr.sg_list = &piece;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  ibv_post_recv(at.qp, &wr, &bad);
}

int to_rtr(Endpoint& end, const std::function<void(ibv_qp_attr&)>& change, int without = 0) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = end.qp->qp_num;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = end.gid();
  change(attr);
  return ibv_modify_qp(end.qp, &attr,
                       (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) &
                           ~without);
}

// What the program does wrong, and what the line has to say.
struct Mistake {
  const char* name;
  void (*make)(Two& two);
  std::vector<const char*> told;
};

void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

const Mistake kMistakes[] = {
    {"TheRegionWasDeregistered",
     [](Two& two) {
       connect(two.a, two.b);
       ibv_mr* const mr = ibv_reg_mr(two.b.pd, two.b.buffer.data(), 4096, kAllAccess);
       ibv_sge piece = two.a.sge(0, 8);
       ibv_send_wr wr = write_of(&piece, two.b);
       wr.wr.rdma.rkey = mr->rkey;
       ibv_dereg_mr(mr);
       send(two.a, wr);
     },
     {"key_stale", "deregistered", "Keep the region registered"}},
    {"TheKeyIsMadeUp",
     [](Two& two) {
       connect(two.a, two.b);
       ibv_sge piece = two.a.sge(0, 8);
       ibv_send_wr wr = write_of(&piece, two.b);
       wr.wr.rdma.rkey = 0x12345600;
       send(two.a, wr);
     },
     {"key_unknown", "0x12345600", "send the peer's rkey unchanged"}},
    {"TheRegionDoesNotAllowIt",
     [](Two& two) {
       connect(two.a, two.b);
       ibv_mr* const mr = ibv_reg_mr(two.b.pd, two.b.buffer.data(), 4096,
                                     int{IBV_ACCESS_LOCAL_WRITE} | IBV_ACCESS_REMOTE_READ);
       ibv_sge piece = two.a.sge(0, 8);
       ibv_send_wr wr = write_of(&piece, two.b);
       wr.wr.rdma.rkey = mr->rkey;
       send(two.a, wr);
       ibv_dereg_mr(mr);
     },
     {"right_missing", "4096 bytes", "rights LOCAL_WRITE|REMOTE_READ", "registered at",
      "Add LOCAL_WRITE, REMOTE_READ or REMOTE_WRITE"}},
    {"OneByteTooFar",
     [](Two& two) {
       connect(two.a, two.b);
       ibv_sge piece = two.a.sge(0, 8);
       ibv_send_wr wr = write_of(&piece, two.b);
       wr.wr.rdma.remote_addr = two.b.address(two.b.buffer.size() - 7);
       send(two.a, wr);
     },
     {"out_of_bounds", "65536 bytes", "The first byte outside", "Correct the address"}},
    {"TheRegionIsOfAnotherDomain",
     [](Two& two) {
       connect(two.a, two.b);
       ibv_pd* const other = ibv_alloc_pd(two.b.context);
       ibv_mr* const mr = ibv_reg_mr(other, two.b.buffer.data(), 4096, kAllAccess);
       ibv_sge piece = two.a.sge(0, 8);
       ibv_send_wr wr = write_of(&piece, two.b);
       wr.wr.rdma.rkey = mr->rkey;
       send(two.a, wr);
       ibv_dereg_mr(mr);
       ibv_dealloc_pd(other);
     },
     {"key_other_domain", "The queue pair's domain", "same protection domain"}},
    {"TheQueuePairAllowsNoWrites",
     [](Two& two) {
       two.a.to_init();
       two.b.to_init(IBV_ACCESS_REMOTE_READ);
       two.a.to_rtr(two.b.gid(), two.b.qp->qp_num);
       two.b.to_rtr(two.a.gid(), two.a.qp->qp_num);
       two.a.to_rts();
       ibv_sge piece = two.a.sge(0, 8);
       send(two.a, write_of(&piece, two.b));
     },
     {"qp_right_missing", "qp_access_flags"}},
    {"AnEntryLeavesItsRegion",
     [](Two& two) {
       connect(two.a, two.b);
       ibv_sge piece = two.a.sge(two.a.buffer.size() - 4, 8);
       send(two.a, write_of(&piece, two.b));
     },
     {"out_of_bounds", "The first byte outside", "register the whole buffer"}},
    {"TheReceiveIsTooSmall",
     [](Two& two) {
       connect(two.a, two.b);
       post_receive(two.b, 16);
       ibv_sge piece = two.a.sge(0, 17);
       ibv_send_wr wr = write_of(&piece, two.b);
       wr.opcode = IBV_WR_SEND;
       send(two.a, wr);
     },
     {"receive_too_small", "17", "Limit 16"}},
    {"NobodyPostedAReceive",
     [](Two& two) {
       connect(two.a, two.b);
       ibv_qp_attr attr{};
       attr.qp_state = IBV_QPS_SQD;
       ibv_modify_qp(two.a.qp, &attr, IBV_QP_STATE);
       attr.rnr_retry = 0;
       ibv_modify_qp(two.a.qp, &attr, IBV_QP_STATE | IBV_QP_RNR_RETRY);
       attr.qp_state = IBV_QPS_RTS;
       ibv_modify_qp(two.a.qp, &attr, IBV_QP_STATE);
       ibv_sge piece = two.a.sge(0, 8);
       ibv_send_wr wr = write_of(&piece, two.b);
       wr.opcode = IBV_WR_SEND;
       send(two.a, wr);
     },
     {"rnr_retries_spent", "The peer: ", "Post receives earlier", "rnr_retry to 7"}},
    {"ThePeerIsNotThere",
     [](Two& two) {
       two.a.to_init();
       two.a.to_rtr(two.b.gid(), two.b.qp->qp_num);
       ibv_qp_attr attr{};
       attr.qp_state = IBV_QPS_RTS;
       attr.timeout = 8;
       attr.retry_cnt = 1;
       ibv_modify_qp(two.a.qp, &attr,
                     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
       ibv_sge piece = two.a.sge(0, 8);
       send(two.a, write_of(&piece, two.b));
     },
     {"retries_spent", "::ffff:127.0.0.1", "timeout 8", "retry_cnt 1", "UDP 4791"}},
    {"ThereIsNoGlobalRoute",
     [](Two& two) {
       two.a.to_init();
       to_rtr(two.a, [](ibv_qp_attr& attr) { attr.ah_attr.is_global = 0; });
     },
     {"no_grh", "is_global"}},
    {"AnAddressHandleHasNoGlobalRoute",
     [](Two& two) {
       ibv_ah_attr attributes{};
       attributes.port_num = 1;
       attributes.dlid = 3;
       EXPECT_EQ(ibv_create_ah(two.a.pd, &attributes), nullptr);
       EXPECT_EQ(errno, EINVAL);
     },
     {"creating an address handle", "no_grh", "is_global"}},
    {"TheGidIndexIsNotSet",
     [](Two& two) {
       two.a.to_init();
       to_rtr(two.a, [](ibv_qp_attr& attr) { attr.ah_attr.grh.sgid_index = 9; });
     },
     {"gid_index_unset", "There are: 0 (::ffff:127.0.0.1)"}},
    {"TheDestinationIsOfAnotherFamily",
     [](Two& two) {
       two.a.to_init();
       to_rtr(two.a, [](ibv_qp_attr& attr) {
         attr.ah_attr.grh.dgid = {};
         attr.ah_attr.grh.dgid.raw[0] = 0xfd;
         attr.ah_attr.grh.dgid.raw[15] = 1;
       });
     },
     {"gid_family_differs"}},
    {"AnAttributeWasForgotten",
     [](Two& two) {
       two.a.to_init();
       to_rtr(
           two.a, [](ibv_qp_attr&) {}, IBV_QP_PATH_MTU | IBV_QP_RQ_PSN);
     },
     {"attribute_missing", "Missing: IBV_QP_PATH_MTU|RQ_PSN"}},
    {"TheStatesAreOutOfOrder",
     [](Two& two) { to_rtr(two.a, [](ibv_qp_attr&) {}); },
     {"bad_transition", "From RESET to RTR", "Follow the order of states"}},
    {"SendingTooEarly",
     [](Two& two) {
       two.a.to_init();
       ibv_sge piece = two.a.sge(0, 8);
       send(two.a, write_of(&piece, two.b));
     },
     {"qp_not_ready", "It is in INIT"}},
    {"MoreEntriesThanAskedFor",
     [](Two& two) {
       connect(two.a, two.b);
       std::vector<ibv_sge> pieces(9, two.a.sge(0, 8));
       ibv_send_wr wr = write_of(pieces.data(), two.b);
       wr.num_sge = 9;
       send(two.a, wr);
     },
     {"too_many_sges", "Asked for 9", "Limit 4"}},
    {"TooMuchInline",
     [](Two& two) {
       connect(two.a, two.b);
       ibv_sge piece = two.a.sge(0, 4000);
       ibv_send_wr wr = write_of(&piece, two.b);
       wr.send_flags |= IBV_SEND_INLINE;
       send(two.a, wr);
     },
     {"inline_too_long", "Asked for 4000", "max_inline_data"}},
    {"RemoteWriteWithoutLocalWrite",
     [](Two& two) {
       EXPECT_EQ(ibv_reg_mr(two.a.pd, two.a.buffer.data(), 8, int{IBV_ACCESS_REMOTE_WRITE}),
                 nullptr);
     },
     {"bad_access_flags", "need LOCAL_WRITE", "Add LOCAL_WRITE"}},
    {"MemoryThatIsNotThere",
     [](Two& two) {
       void* const page =
           ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
       ::munmap(static_cast<char*>(page) + 4096, 4096);
       EXPECT_EQ(ibv_reg_mr(two.a.pd, page, 8192, int{IBV_ACCESS_LOCAL_WRITE}), nullptr);
       ::munmap(page, 4096);
     },
     {"hole_in_range", "is not mapped"}},
    {"MemoryThatMayNotBeWritten",
     [](Two& two) {
       void* const page = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
       EXPECT_EQ(ibv_reg_mr(two.a.pd, page, 4096, int{IBV_ACCESS_LOCAL_WRITE}), nullptr);
       ::munmap(page, 4096);
     },
     {"page_read_only", "LOCAL_WRITE"}},
    {"TheCompletionQueueIsTooSmall",
     [](Two& two) {
       ibv_cq* const small = ibv_create_cq(two.a.context, 1, nullptr, nullptr, 0);
       ibv_destroy_qp(two.a.qp);
       ibv_qp_init_attr wanted{};
       wanted.send_cq = wanted.recv_cq = small;
       wanted.qp_type = IBV_QPT_RC;
       wanted.cap = {64, 4, 1, 1, 0};
       two.a.qp = ibv_create_qp(two.a.pd, &wanted);
       connect(two.a, two.b);
       ibv_sge piece = two.a.sge(0, 8);
       for (int i = 0; i < 64; ++i) {  // and never polls
         ibv_send_wr wr = write_of(&piece, two.b);
         ibv_send_wr* bad = nullptr;
         if (ibv_post_send(two.a.qp, &wr, &bad) != 0) break;
       }
       const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
       while (two.a.state() != IBV_QPS_ERR && std::chrono::steady_clock::now() < deadline) {
       }
       ibv_destroy_qp(two.a.qp);
       two.a.qp = nullptr;
       ibv_destroy_cq(small);
     },
     {"cq_overrun"}},
    {"DestroyedTooEarly",
     [](Two& two) { EXPECT_EQ(ibv_dealloc_pd(two.a.pd), EBUSY); },
     {"object_busy", "destroying a protection domain"}},
    {"AnAtomicOnAnOddAddress",
     [](Two& two) {
       connect(two.a, two.b);
       ibv_sge piece = two.a.sge(0, 8);
       ibv_send_wr wr = write_of(&piece, two.b);
       wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
       wr.wr.atomic.remote_addr = two.b.address(4);
       wr.wr.atomic.rkey = two.b.mr->rkey;
       wr.wr.atomic.compare_add = 1;
       send(two.a, wr);
     },
     {"atomic_misaligned", "multiple of"}},
};

class Mistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreToldInOneLine) {
  ::testing::internal::CaptureStderr();
  {
    Two two;
    EXPECT_TRUE(two.is_ready());
    if (two.is_ready()) GetParam().make(two);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  std::size_t lines = 0;
  bool found = false;
  for (std::size_t at = 0; at < said.size(); ++lines) {
    const std::size_t end = std::min(said.find('\n', at), said.size());
    const std::string line = said.substr(at, end - at);
    at = end + 1;
    found |= std::all_of(GetParam().told.begin(), GetParam().told.end(),
                         [&](const char* part) { return line.find(part) != std::string::npos; });
    EXPECT_NE(line.find("Remedy: "), std::string::npos) << line;
  }
  EXPECT_TRUE(found) << said;
  EXPECT_GE(lines, 1u);
  EXPECT_LE(lines, 3u) << said;  // each side says its own
}

INSTANTIATE_TEST_SUITE_P(Users, Mistakes, ::testing::ValuesIn(kMistakes),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace verbs_test
