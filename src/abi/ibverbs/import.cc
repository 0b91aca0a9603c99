// Imports: more handles on objects that another context of the same family has. Whichever handle is
// destroyed first takes the object with it; unimporting leaves it.
#include "abi/entry.h"
#include "abi/ibverbs/device_memory.h"
#include "abi/ibverbs/memory.h"

namespace softhca::abi {

Outcome<Pd*> Pd::import(Context& owner, std::uint32_t handle) {
  if (owner.is_left_behind()) return owner.left_behind();
  std::unique_ptr<Pd> pd(new Pd(owner));
  const bool known = owner.take_from_family<Pd>([&](const Pd& one) {
    if (one.handle != handle || one.is_parent()) return false;
    pd->users_ = one.users_;  // whoever uses either uses the domain
    return true;
  });
  if (!known) return errno_of(trace::ReasonId::ImportUnknown);
  pd->handle = handle;
  pd->is_import_ = true;
  owner.adopt(*pd);
  return pd.release();
}

// What still names it keeps it until the context is closed.
void Pd::unimport(Pd& imported) {
  if (imported.users_->load() != 0) return;
  imported.owner().release(imported);
  delete &imported;
}

Outcome<Mr*> Mr::import(Pd& domain, std::uint32_t handle) {
  Context& owner = domain.owner();
  if (owner.is_left_behind()) return owner.left_behind();
  std::unique_ptr<Mr> mr(new Mr(domain));
  std::uint32_t its_domain = 0;
  const bool known = owner.take_from_family<Mr>([&](const Mr& one) {
    if (one.handle != handle) return false;
    mr->length = one.length;
    mr->lkey = one.lkey;
    mr->rkey = one.rkey;
    its_domain = Pd::of(one.pd).number();
    return true;
  });
  if (!known) return errno_of(trace::ReasonId::ImportUnknown);
  if (its_domain != domain.number()) return Errno{EINVAL};
  mr->handle = handle;
  mr->is_import_ = true;
  owner.adopt(*mr);
  return mr.release();
}

void Mr::unimport(Mr& imported) {
  imported.owner().release(imported);
  delete &imported;
}

Outcome<Dm*> Dm::import(Context& owner, std::uint32_t handle) {
  if (owner.is_left_behind()) return owner.left_behind();
  if (!owner.take_from_family<Dm>([&](const Dm& one) { return one.handle == handle; }))
    return errno_of(trace::ReasonId::ImportUnknown);
  std::unique_ptr<Dm> dm(new Dm(owner));
  dm->handle = handle;
  dm->is_import_ = true;
  owner.adopt(*dm);
  return dm.release();
}

void Dm::unimport(Dm& imported) {
  imported.owner().release(imported);
  delete &imported;
}

VERB("IBVERBS_1.10", ibv_pd*, ibv_import_pd, (ibv_context * context, std::uint32_t handle)) {
  return answer_pointer([&]() -> Outcome<ibv_pd*> {
    const auto pd = Pd::import(Context::of(context), handle);
    if (!pd) return pd.error();
    return *pd;
  });
}

VERB("IBVERBS_1.10", void, ibv_unimport_pd, (ibv_pd * pd)) { Pd::unimport(Pd::of(pd)); }

VERB("IBVERBS_1.10", ibv_mr*, ibv_import_mr, (ibv_pd * pd, std::uint32_t handle)) {
  return answer_pointer([&]() -> Outcome<ibv_mr*> {
    const auto mr = Mr::import(Pd::of(pd), handle);
    if (!mr) return mr.error();
    return *mr;
  });
}

VERB("IBVERBS_1.10", void, ibv_unimport_mr, (ibv_mr * mr)) { Mr::unimport(Mr::of(mr)); }

VERB("IBVERBS_1.13", ibv_dm*, ibv_import_dm, (ibv_context * context, std::uint32_t handle)) {
  return answer_pointer([&]() -> Outcome<ibv_dm*> {
    const auto dm = Dm::import(Context::of(context), handle);
    if (!dm) return dm.error();
    return *dm;
  });
}

VERB("IBVERBS_1.13", void, ibv_unimport_dm, (ibv_dm * dm)) { Dm::unimport(Dm::of(dm)); }

}  // namespace softhca::abi
