// Protection domains, parent domains and thread domains.
#include "abi/entry.h"
#include "abi/ibverbs/memory.h"

namespace softhca::abi {

Outcome<Pd*> Pd::create(Context& owner) {
  std::unique_ptr<Pd> pd(new Pd(owner));
  const auto number = owner.command([](driver::Engine& engine, Time) { return engine.alloc_pd(); });
  if (!number) return number.error();
  pd->handle = *number;
  owner.adopt(*pd);
  return pd.release();
}

Outcome<Pd*> Pd::create_parent(Context& owner, const ibv_parent_domain_init_attr& wanted) {
  constexpr std::uint32_t kAllocators = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
  constexpr std::uint32_t kContext = IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  if ((wanted.comp_mask & ~(kAllocators | kContext)) != 0) return Errno{EOPNOTSUPP};
  const auto belongs = [&](const ibv_context* context) { return context == &owner.context(); };
  if (wanted.pd == nullptr || !belongs(wanted.pd->context) || Pd::of(wanted.pd).is_parent())
    return Errno{EINVAL};
  if (wanted.td != nullptr && !belongs(wanted.td->context)) return Errno{EINVAL};
  const bool allocates = (wanted.comp_mask & kAllocators) != 0;
  if (allocates && (wanted.alloc == nullptr || wanted.free == nullptr)) return Errno{EINVAL};
  if (owner.is_left_behind()) return owner.left_behind();

  std::unique_ptr<Pd> pd(new Pd(owner));
  pd->handle = wanted.pd->handle;
  pd->within_ = &Pd::of(wanted.pd);
  ++*pd->within_->users_;
  if (wanted.td != nullptr) {
    pd->thread_ = &Td::of(wanted.td);
    ++pd->thread_->users;
  }
  if (allocates) pd->allocator_ = {.alloc = wanted.alloc, .free = wanted.free, .context = nullptr};
  if ((wanted.comp_mask & kContext) != 0) pd->allocator_.context = wanted.pd_context;
  owner.adopt(*pd);
  return pd.release();
}

Pd::~Pd() {
  if (within_ != nullptr) --*within_->users_;
  if (thread_ != nullptr) --thread_->users;
}

// A parent domain is no object of the device's.
Outcome<void> Pd::destroy() {
  if (const auto unused = owner().check_unused(users_->load(), "destroying a protection domain");
      !unused)
    return unused;
  if (!is_parent()) {
    const auto gone =
        owner().take_off([&](driver::Engine& engine, Time) { return engine.dealloc_pd(number()); });
    if (!gone) return gone;
  }
  owner().release(*this);
  return {};
}

void Pd::abandon(driver::Engine& engine, Time) {
  if (!is_parent() && !is_import_) [[maybe_unused]]
    const auto gone = engine.dealloc_pd(number());
}

VERB("IBVERBS_1.1", ibv_pd*, ibv_alloc_pd, (ibv_context * context)) {
  return answer_pointer([&]() -> Outcome<ibv_pd*> {
    const auto pd = Pd::create(Context::of(context));
    if (!pd) return pd.error();
    return *pd;
  });
}

VERB("IBVERBS_1.1", int, ibv_dealloc_pd, (ibv_pd * verbs)) {
  return answer_errno([&]() -> Outcome<void> {
    Pd& pd = Pd::of(verbs);
    const auto gone = pd.destroy();
    if (gone) delete &pd;
    return gone;
  });
}

ibv_pd* alloc_parent_domain(ibv_context* context,
                            ibv_parent_domain_init_attr* attributes) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_pd*> {
    const auto pd = Pd::create_parent(Context::of(context), *attributes);
    if (!pd) return pd.error();
    return *pd;
  });
}

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attributes) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_td*> {
    if (attributes->comp_mask != 0) return Errno{EOPNOTSUPP};
    if (Context::of(context).is_left_behind()) return Context::of(context).left_behind();
    return new Td(Context::of(context));
  });
}

int dealloc_td(ibv_td* verbs) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    Td& td = Td::of(verbs);
    if (const auto unused =
            Context::of(td.context).check_unused(td.users.load(), "destroying a thread domain");
        !unused)
      return unused;
    td.owner().release(td);
    delete &td;
    return {};
  });
}

}  // namespace softhca::abi
