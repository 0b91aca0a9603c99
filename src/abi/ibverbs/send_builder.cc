#include "abi/ibverbs/send_builder.h"

#include <cerrno>
#include <cstring>

#include "abi/entry.h"
#include "abi/ibverbs/ah.h"
#include "abi/ibverbs/qp.h"
#include "abi/ibverbs/window.h"
#include "base/bytes.h"

namespace softhca::abi {

bool SendBuilder::is_left_behind() const { return owner_.is_left_behind(); }
bool SendBuilder::is_for_xrc() const { return pair_.type() == transport::QpType::XrcSend; }

void SendBuilder::begin() {
  if (is_left_behind()) return;
  lock_.lock();
  clear();
}

void SendBuilder::clear() {
  drafts_.clear();
  sges_.clear();
  inline_bytes_.clear();
  refused_ = 0;
}

void SendBuilder::refuse(int code) {
  if (refused_ == 0) refused_ = code;
}

void SendBuilder::add(const driver::SendRequest& request) {
  drafts_.push_back({.request = request, .first_sge = sges_.size()});
}

void SendBuilder::aim(const driver::DatagramTarget& target) {
  if (drafts_.empty()) return refuse(EINVAL);
  drafts_.back().request.target = target;
  drafts_.back().is_aimed = true;
}

void SendBuilder::aim(std::uint32_t xrc_srqn) {
  if (drafts_.empty()) return refuse(EINVAL);
  drafts_.back().request.xrc_srqn = xrc_srqn;
  drafts_.back().is_aimed = true;
}

void SendBuilder::add_sge(const driver::Sge& sge) {
  if (drafts_.empty()) return refuse(EINVAL);
  sges_.push_back(sge);
  ++drafts_.back().sges;
}

void SendBuilder::add_inline(std::span<const ibv_data_buf> pieces) {
  if (drafts_.empty()) return refuse(EINVAL);
  const std::size_t start = inline_bytes_.size();
  for (const ibv_data_buf& piece : pieces) {
    if (inline_bytes_.size() - start + piece.length > pair_.capacity().inline_bytes)
      return refuse(EINVAL);
    const auto* const bytes = static_cast<const std::byte*>(piece.addr);
    inline_bytes_.insert(inline_bytes_.end(), bytes, bytes + piece.length);
  }
  end_inline(start);
}

void SendBuilder::add_word(const void* word) {
  const std::size_t start = inline_bytes_.size();
  const auto* const bytes = static_cast<const std::byte*>(word);
  inline_bytes_.insert(inline_bytes_.end(), bytes, bytes + transport::kAtomicBytes);
  end_inline(start);
}

void SendBuilder::end_inline(std::size_t start) {
  drafts_.back().request.flags |= driver::SendFlag::Inline;
  add_sge({start, static_cast<std::uint32_t>(inline_bytes_.size() - start), 0});
}

// What can be said without the device: it decides everything else.
Outcome<void> SendBuilder::check() const {
  if (refused_ != 0) return Errno{refused_};
  if (drafts_.size() > pair_.capacity().send_requests) return Errno{ENOMEM};
  const bool needs_aim =
      pair_.type() == transport::QpType::Ud || pair_.type() == transport::QpType::XrcSend;
  for (const Draft& draft : drafts_) {
    if (needs_aim && !draft.is_aimed) return Errno{EINVAL};
    if (draft.sges > pair_.capacity().send_sges &&
        !draft.request.flags.has(driver::SendFlag::Inline))
      return Errno{EINVAL};
  }
  return {};
}

Outcome<void> SendBuilder::post() {
  if (is_left_behind()) return owner_.left_behind();
  const std::unique_lock held(lock_, std::adopt_lock);
  if (const auto good = check(); !good) return good;
  for (Draft& draft : drafts_) {
    const std::span<driver::Sge> sges(sges_.data() + draft.first_sge, draft.sges);
    if (draft.request.flags.has(driver::SendFlag::Inline))
      for (driver::Sge& sge : sges)
        sge.address = reinterpret_cast<std::uintptr_t>(inline_bytes_.data() + sge.address);
    draft.request.sges = sges;
  }
  return owner_.post([&](driver::Engine& engine, Time now) -> Outcome<void> {
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      const auto posted =
          outcome_of(engine.post_send(pair_, drafts_[i].request, i + 1 < drafts_.size(), now));
      if (posted) continue;
      if (i != 0) engine.ring_send_doorbell(pair_, now);
      return posted;
    }
    return {};
  });
}

void SendBuilder::discard() {
  if (!is_left_behind()) lock_.unlock();
}

// The function pointers of ibv_qp_ex, as calls on a builder.
namespace {

using transport::WorkOpcode;

SendBuilder& builder_of(ibv_qp_ex* qp) { return *Qp::of(&qp->qp_base).builder(); }

// Calls that return nothing: what goes wrong is told when the requests are posted.
template <class Call>
void building(ibv_qp_ex* qp, Call&& call) {
  SendBuilder& builder = builder_of(qp);
  if (builder.is_left_behind()) return;
  const int code = answer_errno([&]() -> Outcome<void> {
    call(builder);
    return {};
  });
  if (code != 0) builder.refuse(code);
}

// The rest of `request` is what this program has set in the queue pair.
void add(ibv_qp_ex* qp, driver::SendRequest request) {
  building(qp, [&](SendBuilder& builder) {
    constexpr unsigned kFlags = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
    request.wr_id = qp->wr_id;
    request.flags = driver::SendFlags::of_bits(static_cast<std::uint8_t>(qp->wr_flags & kFlags));
    builder.add(request);
  });
}

driver::SendRequest request_for(WorkOpcode opcode, std::uint32_t rkey, std::uint64_t address,
                                __be32 immediate) {
  driver::SendRequest request;
  request.opcode = opcode;
  request.immediate = byte_swapped(immediate);
  request.remote_address = address;
  request.rkey = {rkey};
  return request;
}

void add(ibv_qp_ex* qp, WorkOpcode opcode, std::uint32_t rkey, std::uint64_t address,
         __be32 immediate) {
  add(qp, request_for(opcode, rkey, address, immediate));
}

void add_atomic(ibv_qp_ex* qp, WorkOpcode opcode, std::uint32_t rkey, std::uint64_t address,
                std::uint64_t compare, std::uint64_t swap_or_add) {
  driver::SendRequest request = request_for(opcode, rkey, address, 0);
  request.compare = compare;
  request.swap_or_add = swap_or_add;
  add(qp, request);
}

void add_bind(ibv_qp_ex* qp, const ibv_mw* mw, std::uint32_t rkey, const ibv_mw_bind_info* wanted) {
  if (mw == nullptr || mw->type != IBV_MW_TYPE_2 || wanted == nullptr)
    return building(qp, [](SendBuilder& builder) { builder.refuse(EINVAL); });
  driver::SendRequest request;
  request.opcode = WorkOpcode::BindWindow;
  request.bind = bind_of(*mw, rkey, *wanted);
  add(qp, request);
}

// Its eight bytes are taken at once, like inline data, whatever the queue's limit on these.
void add_atomic_write(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address, const void* word) {
  add(qp, WorkOpcode::AtomicWrite, rkey, address, 0);
  building(qp, [&](SendBuilder& builder) { builder.add_word(word); });
}

void fill_key_operations(ibv_qp_ex& slots) {
  slots.wr_send_inv = [](ibv_qp_ex* qp, std::uint32_t rkey) {
    add(qp, WorkOpcode::SendInvalidate, rkey, 0, 0);
  };
  slots.wr_local_inv = [](ibv_qp_ex* qp, std::uint32_t rkey) {
    add(qp, WorkOpcode::LocalInvalidate, rkey, 0, 0);
  };
  slots.wr_bind_mw = [](ibv_qp_ex* qp, ibv_mw* mw, std::uint32_t rkey,
                        const ibv_mw_bind_info* wanted) { add_bind(qp, mw, rkey, wanted); };
  slots.wr_atomic_write = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address,
                             const void* word) { add_atomic_write(qp, rkey, address, word); };
}

void fill_operations(ibv_qp_ex& slots) {
  slots.wr_send = [](ibv_qp_ex* qp) { add(qp, WorkOpcode::Send, 0, 0, 0); };
  slots.wr_send_imm = [](ibv_qp_ex* qp, __be32 immediate) {
    add(qp, WorkOpcode::SendImm, 0, 0, immediate);
  };
  slots.wr_rdma_write = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address) {
    add(qp, WorkOpcode::Write, rkey, address, 0);
  };
  slots.wr_rdma_write_imm = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address,
                               __be32 immediate) {
    add(qp, WorkOpcode::WriteImm, rkey, address, immediate);
  };
  slots.wr_rdma_read = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address) {
    add(qp, WorkOpcode::Read, rkey, address, 0);
  };
  slots.wr_atomic_cmp_swp = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address,
                               std::uint64_t compare, std::uint64_t swap) {
    add_atomic(qp, WorkOpcode::CompareSwap, rkey, address, compare, swap);
  };
  slots.wr_atomic_fetch_add = [](ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address,
                                 std::uint64_t number) {
    add_atomic(qp, WorkOpcode::FetchAdd, rkey, address, 0, number);
  };
}

void fill_payloads(ibv_qp_ex& slots) {
  slots.wr_set_ud_addr = [](ibv_qp_ex* qp, ibv_ah* ah, std::uint32_t qpn, std::uint32_t qkey) {
    building(qp, [&](SendBuilder& builder) {
      if (ah == nullptr) return builder.refuse(EINVAL);
      builder.aim(Ah::of(ah).target(qpn, qkey));
    });
  };
  slots.wr_set_xrc_srqn = [](ibv_qp_ex* qp, std::uint32_t srqn) {
    building(qp, [&](SendBuilder& builder) {
      if (builder.is_for_xrc()) return builder.aim(srqn);
      builder.refuse(EINVAL);
    });
  };
  slots.wr_set_sge = [](ibv_qp_ex* qp, std::uint32_t lkey, std::uint64_t address,
                        std::uint32_t length) {
    building(qp, [&](SendBuilder& builder) { builder.add_sge({address, length, lkey}); });
  };
  slots.wr_set_sge_list = [](ibv_qp_ex* qp, std::size_t count, const ibv_sge* list) {
    building(qp, [&](SendBuilder& builder) {
      for (const ibv_sge& sge : std::span(list, count))
        builder.add_sge({sge.addr, sge.length, sge.lkey});
    });
  };
  slots.wr_set_inline_data = [](ibv_qp_ex* qp, void* address, std::size_t length) {
    const ibv_data_buf piece{address, length};
    building(qp, [&](SendBuilder& builder) { builder.add_inline({&piece, 1}); });
  };
  slots.wr_set_inline_data_list = [](ibv_qp_ex* qp, std::size_t count, const ibv_data_buf* pieces) {
    building(qp, [&](SendBuilder& builder) { builder.add_inline({pieces, count}); });
  };
}

void fill_batches(ibv_qp_ex& slots) {
  slots.wr_start = [](ibv_qp_ex* qp) { builder_of(qp).begin(); };
  slots.wr_complete = [](ibv_qp_ex* qp) {
    return answer_errno([&] { return builder_of(qp).post(); });
  };
  slots.wr_abort = [](ibv_qp_ex* qp) { builder_of(qp).discard(); };
}

// Every operation that is not offered begins with the queue pair, whatever follows.
void refuse_operation(ibv_qp_ex* qp) { builder_of(qp).refuse(EOPNOTSUPP); }

}  // namespace

void fill_builder_slots(Qp& qp) {
  QpLayout& layout = qp;
  void (*const refuse)(ibv_qp_ex*) = refuse_operation;
  auto* const bytes = reinterpret_cast<std::byte*>(&layout);
  for (std::size_t at = offsetof(ibv_qp_ex, wr_atomic_cmp_swp); at < kQpExBytes;
       at += sizeof refuse)
    std::memcpy(bytes + at, &refuse, sizeof refuse);
  fill_operations(layout.known);
  fill_key_operations(layout.known);
  fill_payloads(layout.known);
  fill_batches(layout.known);
}

}  // namespace softhca::abi
