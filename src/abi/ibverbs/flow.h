// Flow: a flow rule as a program holds it: which Ethernet frames come to a raw packet queue pair.
//
// Threads  any
// Spec     man ibv_create_flow
#pragma once
#include "abi/ibverbs/context.h"

namespace softhca::abi {

class Qp;

class Flow final : public ibv_flow, public Owned {
 public:
  // FAILS WITH EINVAL, ENOMEM, EOPNOTSUPP
  static Outcome<Flow*> create(Qp& qp, const ibv_flow_attr& attributes);
  static Flow& of(ibv_flow* verbs) { return static_cast<Flow&>(*verbs); }

  Outcome<void> destroy();
  void abandon(driver::Engine& engine, Time now) override;

  Context& owner() { return Context::of(context); }

 private:
  explicit Flow(Context& owner) : ibv_flow{} { context = &owner.context(); }
};

ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* attributes) noexcept;
int destroy_flow(ibv_flow* flow) noexcept;

}  // namespace softhca::abi
