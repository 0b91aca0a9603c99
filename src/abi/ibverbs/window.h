// Mw: a memory window, as a program holds it.
//
// Type 2 windows are bound by work requests (abi/ibverbs/post.cc, send_builder.cc), type 1 windows
// by ibv_bind_mw, which posts one and gives the window a new key.
//
// Threads  any
// Spec     man ibv_alloc_mw, ibv_bind_mw
#pragma once
#include "abi/ibverbs/memory.h"

namespace softhca::abi {

class Mw final : public ibv_mw, public Owned {
 public:
  // FAILS WITH EINVAL, ENOMEM
  static Outcome<Mw*> create(Pd& domain, ibv_mw_type type);
  static Mw& of(ibv_mw* verbs) { return static_cast<Mw&>(*verbs); }

  void abandon(driver::Engine& engine, Time now) override;

  Context& owner() { return Context::of(context); }
  wire::Key key() const { return {rkey}; }

 private:
  Mw(Pd& domain, ibv_mw_type of_type)
      : ibv_mw{domain.context, &domain, 0, 0, of_type}, domain_(&domain) {}

  PdUse domain_;
};

// The request that binds `mw` under `new_key`.
driver::WindowBind bind_of(const ibv_mw& mw, std::uint32_t new_key, const ibv_mw_bind_info& wanted);

// Operations that programs reach through the context.
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) noexcept;
int dealloc_mw(ibv_mw* mw) noexcept;
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) noexcept;

}  // namespace softhca::abi
