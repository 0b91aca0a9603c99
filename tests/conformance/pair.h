// Two endpoints of one process, connected, and the calls that these tests repeat.
#pragma once
#include <algorithm>
#include <cerrno>
#include <vector>

#include "../abi/endpoint.h"

namespace conformance {

using verbs_test::Endpoint;
using verbs_test::Options;

inline constexpr std::size_t kReceiveAt = 32 * 1024;  // in an endpoint's buffer

class Pair : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a.is_ready() && b.is_ready());
    verbs_test::connect(a, b);
  }

  Endpoint a;
  Endpoint b;
};

struct Send {
  std::uint64_t id = 1;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  std::uint32_t bytes = 8;
  std::uint32_t rkey = 0;
  std::uint64_t remote = 0;
  unsigned flags = IBV_SEND_SIGNALED;
};

inline int post(Endpoint& from, const Send& send) {
  ibv_sge piece = from.sge(0, send.bytes);
  ibv_send_wr wr{};
  wr.wr_id = send.id;
  wr.sg_list = &piece;
  wr.num_sge = send.bytes == 0 ? 0 : 1;
  wr.opcode = send.opcode;
  wr.send_flags = send.flags;
  wr.wr.rdma.rkey = send.rkey;
  wr.wr.rdma.remote_addr = send.remote;
  wr.imm_data = 0x01020304;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(from.qp, &wr, &bad);
}

inline int post_receive(Endpoint& at, std::uint64_t id, std::uint32_t bytes = 4096) {
  ibv_sge piece = at.sge(kReceiveAt, bytes);
  ibv_recv_wr wr{};
  wr.wr_id = id;
  wr.sg_list = &piece;
  wr.num_sge = bytes == 0 ? 0 : 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(at.qp, &wr, &bad);
}

inline int move(Endpoint& end, ibv_qp_state state) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  return ibv_modify_qp(end.qp, &attr, IBV_QP_STATE);
}

inline Send write_to(const Endpoint& target, std::uint64_t id, std::uint32_t bytes = 8) {
  return {.id = id,
          .opcode = IBV_WR_RDMA_WRITE,
          .bytes = bytes,
          .rkey = target.mr->rkey,
          .remote = target.address(kReceiveAt)};
}

// Everything that is on the queue now.
inline std::vector<ibv_wc> drain(Endpoint& end) {
  std::vector<ibv_wc> all;
  for (ibv_wc wc{}; ibv_poll_cq(end.cq, 1, &wc) == 1;) all.push_back(wc);
  return all;
}

}  // namespace conformance
