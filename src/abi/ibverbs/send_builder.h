// SendBuilder: work requests that a program puts together call by call (ibv_wr_start ...
// ibv_wr_complete) until it posts them all.
//
// Threads  begin() takes the builder's lock, post() and discard() give it back
// Spec     man ibv_wr_post
#pragma once
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "abi/errno_of.h"
#include "driver/attributes.h"

namespace softhca::abi {

class Context;
class Qp;

class SendBuilder {
 public:
  // What may be asked for in send_ops_flags.
  static constexpr std::uint64_t kOperations =
      IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
      IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
      IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV |
      IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_ATOMIC_WRITE;
  static constexpr std::uint64_t kUnreliableOperations =
      IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
      IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
  static constexpr std::uint64_t kDatagramOperations =
      IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  static constexpr std::uint64_t kRawOperations = IBV_QP_EX_WITH_SEND;

  SendBuilder(driver::QueuePair& pair, Context& owner) : pair_(pair), owner_(owner) {}

  // In a forked child nothing is built, and posting fails with EPERM: a thread of the parent may
  // be in the middle of it for ever.
  bool is_left_behind() const;
  bool is_for_xrc() const;

  void begin();
  // Starts the next work request.
  void add(const driver::SendRequest& request);
  // Where the datagram that was started last goes.
  void aim(const driver::DatagramTarget& target);
  // Which shared receive queue of the peer the XRC request that was started last is for.
  void aim(std::uint32_t xrc_srqn);
  // Give its payload to the work request that was started last. Inline bytes are copied here.
  void add_sge(const driver::Sge& sge);
  void add_inline(std::span<const ibv_data_buf> pieces);
  // The eight bytes of an atomic WRITE, copied here.
  void add_word(const void* word);
  // From here on posting will fail with `code`.
  void refuse(int code);

  // Posts everything, or nothing if one of them is wrong in itself. A queue that turns out to be
  // full keeps those that still fitted. FAILS WITH EINVAL, ENOMEM, EOPNOTSUPP
  Outcome<void> post();
  void discard();

 private:
  struct Draft {
    driver::SendRequest request;
    std::size_t first_sge{};
    std::size_t sges{};
    bool is_aimed{};
  };
  Outcome<void> check() const;
  void end_inline(std::size_t start);
  void clear();

  driver::QueuePair& pair_;
  Context& owner_;
  std::mutex lock_;
  std::vector<Draft> drafts_;
  std::vector<driver::Sge> sges_;  // of all drafts; inline ones hold an offset in bytes_
  std::vector<std::byte> inline_bytes_;
  int refused_ = 0;  // errno of the first call that could not be honoured
};

// Fills the function pointers of ibv_qp_ex, also those that this header does not know.
void fill_builder_slots(Qp& qp);

}  // namespace softhca::abi
