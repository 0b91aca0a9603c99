#include "abi/ibverbs/memory.h"

#include "abi/entry.h"

namespace softhca::abi {
namespace {

Outcome<ibv_mr*> register_memory(ibv_pd* pd, void* start, std::size_t length, std::uint64_t iova,
                                 unsigned access) {
  Pd& domain = Pd::of(pd);
  const VirtAddr address{reinterpret_cast<std::uintptr_t>(start)};
  const auto region = outcome_of(domain.owner().device().run([&](driver::Engine& engine, Time now) {
    return engine.register_memory(domain.number(), address, length, WireAddr{iova},
                                  driver::AccessFlags::of_bits(access), now);
  }));
  if (!region) return region.error();
  return new Mr(domain, start, *region);
}

}  // namespace

void Pd::abandon(driver::Engine& engine, Time) {
  [[maybe_unused]] const auto gone = engine.dealloc_pd(number());
}

Mr::Mr(Pd& domain, void* start, const driver::Region& region) : ibv_mr{} {
  context = domain.context;
  pd = &domain;
  addr = start;
  length = region.length;
  handle = region.key.index();
  lkey = rkey = region.key.value;
  domain.owner().adopt(*this);
}

void Mr::abandon(driver::Engine& engine, Time now) {
  [[maybe_unused]] const auto gone = engine.deregister_memory(key(), now);
}

VERB("IBVERBS_1.1", ibv_pd*, ibv_alloc_pd, (ibv_context * context)) {
  return answer_pointer([&]() -> Outcome<ibv_pd*> {
    Context& owner = Context::of(context);
    const auto number = outcome_of(
        owner.device().run([](driver::Engine& engine, Time) { return engine.alloc_pd(); }));
    if (!number) return number.error();
    auto* const pd = new Pd(owner, *number);
    owner.adopt(*pd);
    return pd;
  });
}

VERB("IBVERBS_1.1", int, ibv_dealloc_pd, (ibv_pd * verbs)) {
  return answer_errno([&]() -> Outcome<void> {
    Pd& pd = Pd::of(verbs);
    if (pd.address_handles.load() != 0) return Errno{EBUSY};
    const auto gone = outcome_of(pd.owner().device().run(
        [&](driver::Engine& engine, Time) { return engine.dealloc_pd(pd.number()); }));
    if (!gone) return gone;
    pd.owner().release(pd);
    delete &pd;
    return {};
  });
}

VERB("IBVERBS_1.1", ibv_mr*, ibv_reg_mr,
     (ibv_pd * pd, void* addr, std::size_t length, int access)) {
  return answer_pointer([&] {
    return register_memory(pd, addr, length, reinterpret_cast<std::uintptr_t>(addr),
                           static_cast<unsigned>(access));
  });
}

VERB("IBVERBS_1.7", ibv_mr*, ibv_reg_mr_iova,
     (ibv_pd * pd, void* addr, std::size_t length, std::uint64_t iova, int access)) {
  return answer_pointer(
      [&] { return register_memory(pd, addr, length, iova, static_cast<unsigned>(access)); });
}

VERB("IBVERBS_1.8", ibv_mr*, ibv_reg_mr_iova2,
     (ibv_pd * pd, void* addr, std::size_t length, std::uint64_t iova, unsigned access)) {
  return answer_pointer([&] { return register_memory(pd, addr, length, iova, access); });
}

VERB("IBVERBS_1.1", int, ibv_dereg_mr, (ibv_mr * verbs)) {
  return answer_errno([&]() -> Outcome<void> {
    Mr& mr = Mr::of(verbs);
    const auto gone = outcome_of(mr.owner().device().run(
        [&](driver::Engine& engine, Time now) { return engine.deregister_memory(mr.key(), now); }));
    if (!gone) return gone;
    mr.owner().release(mr);
    delete &mr;
    return {};
  });
}

// The old region stays valid, which is what this answer says (IBV_REREG_MR_ERR_INPUT).
VERB("IBVERBS_1.1", int, ibv_rereg_mr, (ibv_mr*, int, ibv_pd*, void*, std::size_t, int)) {
  return answer_minus_one([&]() -> Outcome<int> { return Errno{EOPNOTSUPP}; });
}

}  // namespace softhca::abi
