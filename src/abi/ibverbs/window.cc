#include "abi/ibverbs/window.h"

#include "abi/entry.h"
#include "abi/ibverbs/qp.h"
#include "abi/qp_attributes.h"

namespace softhca::abi {

Outcome<Mw*> Mw::create(Pd& domain, ibv_mw_type type) {
  const std::uint32_t number = number_of(type);
  if (number != IBV_MW_TYPE_1 && number != IBV_MW_TYPE_2)
    return errno_of(trace::ReasonId::WindowTypeUnknown);
  std::unique_ptr<Mw> mw(new Mw(domain, type));
  const auto key = domain.owner().command([&](driver::Engine& engine, Time) {
    return engine.alloc_window(domain.number(), static_cast<nic::WindowType>(number));
  });
  if (!key) return key.error();
  mw->rkey = key->value;
  mw->handle = key->index();
  domain.owner().adopt(*mw);
  return mw.release();
}

void Mw::abandon(driver::Engine& engine, Time) { engine.dealloc_window(key()); }

driver::WindowBind bind_of(const ibv_mw& mw, std::uint32_t new_key,
                           const ibv_mw_bind_info& wanted) {
  return {.window = {mw.rkey},
          .new_key = {new_key},
          .region = {wanted.mr == nullptr ? 0 : wanted.mr->lkey},
          .address = wanted.addr,
          .length = wanted.length,
          .access = driver::AccessFlags::of_bits(wanted.mw_access_flags)};
}

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_mw*> {
    const auto mw = Mw::create(Pd::of(pd), type);
    if (!mw) return mw.error();
    return *mw;
  });
}

int dealloc_mw(ibv_mw* verbs) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    Mw& mw = Mw::of(verbs);
    const auto gone = mw.owner().take_off([&](driver::Engine& engine, Time) -> Outcome<void> {
      engine.dealloc_window(mw.key());
      return {};
    });
    if (!gone) return gone;
    mw.owner().release(mw);
    delete &mw;
    return {};
  });
}

// A new key with every bind, so that nobody reaches the new range by the old one.
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    constexpr unsigned kFlags = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
    if ((bind->send_flags & ~kFlags) != 0) return Errno{EINVAL};
    const std::uint32_t new_key = ibv_inc_rkey(mw->rkey);
    driver::SendRequest request;
    request.wr_id = bind->wr_id;
    request.opcode = transport::WorkOpcode::BindWindow;
    request.flags = driver::SendFlags::of_bits(static_cast<std::uint8_t>(bind->send_flags));
    request.bind = bind_of(*mw, new_key, bind->bind_info);
    Qp& pair = Qp::of(qp);
    const auto posted = pair.owner().post([&](driver::Engine& engine, Time now) {
      return engine.post_send(pair.pair(), request, false, now);
    });
    if (posted) mw->rkey = new_key;
    return posted;
  });
}

}  // namespace softhca::abi
