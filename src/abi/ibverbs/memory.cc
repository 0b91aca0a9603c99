#include "abi/ibverbs/memory.h"

#include <optional>
#include <span>
#include <vector>

#include "abi/entry.h"
#include "abi/qp_attributes.h"

namespace softhca::abi {
namespace {

ibv_mr* register_memory(ibv_pd* pd, const Mr::Request& request) {
  return answer_pointer([&]() -> Outcome<ibv_mr*> {
    const auto mr = Mr::create(Pd::of(pd), request);
    if (!mr) return mr.error();
    return *mr;
  });
}

}  // namespace

Outcome<Mr*> Mr::create(Pd& domain, const Request& request) {
  std::unique_ptr<Mr> mr(new Mr(domain));
  const VirtAddr address{reinterpret_cast<std::uintptr_t>(request.start)};
  const auto region = domain.owner().command([&](driver::Engine& engine, Time now) {
    return engine.register_memory(
        domain.number(), address, request.length, WireAddr{request.io_address},
        driver::AccessFlags::of_bits(request.access), now, request.caller);
  });
  if (!region) return region.error();
  mr->addr = request.start;
  mr->take(*region);
  mr->length = request.length;  // also where that says "everything"
  return mr.release();
}

Outcome<Mr*> Mr::create_on_device(Pd& domain, const driver::Engine::DeviceRange& range,
                                  unsigned access) {
  std::unique_ptr<Mr> mr(new Mr(domain));
  const auto region = domain.owner().command([&](driver::Engine& engine, Time now) {
    return engine.register_dm(domain.number(), range, driver::AccessFlags::of_bits(access), now);
  });
  if (!region) return region.error();
  mr->take(*region);
  return mr.release();
}

Outcome<Mr*> Mr::create_on_dma_buf(Pd& domain, const DmaBufRange& range, std::uint64_t io_address,
                                   unsigned access) {
  Context& owner = domain.owner();
  if (owner.is_left_behind()) return owner.left_behind();
  std::unique_ptr<Mr> mr(new Mr(domain));
  auto buffer =
      os::DmaBuf::map(range.fd, range.offset, range.bytes, (access & IBV_ACCESS_LOCAL_WRITE) != 0);
  if (!buffer) {
    const int number = buffer.error().number;
    if (number != ENOTTY && number != EINVAL) return Errno{number};
    const trace::Reason reason{.id = trace::ReasonId::NotDmaBuf,
                               .object = static_cast<std::uint32_t>(range.fd),
                               .length = range.bytes};
    owner.device().look(
        [&](const driver::Engine& engine) { engine.tell("registration of a dma-buf", reason); });
    return errno_of(reason.id);
  }
  mr->dma_buf_.emplace(std::move(*buffer));
  const auto region = owner.command([&](driver::Engine& engine, Time now) {
    return engine.register_mapped(domain.number(), mr->dma_buf_->bytes(), WireAddr{io_address},
                                  driver::AccessFlags::of_bits(access), now);
  });
  if (!region) return region.error();
  mr->addr = reinterpret_cast<void*>(range.offset);
  mr->take(*region);
  return mr.release();
}

void Mr::take(const driver::Region& region) {
  length = region.length;
  handle = region.key.index();
  lkey = rkey = region.key.value;
  owner().adopt(*this);
}

Outcome<Mr*> Mr::create_null(Pd& domain) {
  std::unique_ptr<Mr> mr(new Mr(domain));
  const auto key = domain.owner().command(
      [&](driver::Engine& engine, Time) { return engine.register_nothing(domain.number()); });
  if (!key) return key.error();
  mr->length = SIZE_MAX;
  mr->handle = key->index();
  mr->lkey = mr->rkey = key->value;
  domain.owner().adopt(*mr);
  return mr.release();
}

// Windows of the program may still be bound to it.
void Mr::abandon(driver::Engine& engine, Time now) {
  if (is_import_) return;
  engine.unbind_windows(key());
  [[maybe_unused]] const auto gone = engine.deregister_memory(key(), now);
}

namespace {

std::optional<driver::Prefetch> prefetch_of(unsigned advice) {
  switch (advice) {
    case IBV_ADVISE_MR_ADVICE_PREFETCH:
      return driver::Prefetch::ForReading;
    case IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE:
      return driver::Prefetch::ForWriting;
    case IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT:
      return driver::Prefetch::PresentOnly;
    default:
      return std::nullopt;
  }
}

}  // namespace

// Without FLUSH a device may do it later. Ours does it at once, and does not tell what went wrong.
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, std::uint32_t flags, ibv_sge* list,
              std::uint32_t count) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    const auto how = prefetch_of(number_of(advice));
    if (!how) return Errno{EOPNOTSUPP};
    if ((flags & ~std::uint32_t{IBV_ADVISE_MR_FLAG_FLUSH}) != 0) return Errno{EINVAL};
    if (list == nullptr || count == 0) return Errno{EINVAL};
    std::vector<driver::Sge> about;
    for (const ibv_sge& sge : std::span(list, count))
      about.push_back({sge.addr, sge.length, sge.lkey});
    const bool wait = (flags & IBV_ADVISE_MR_FLAG_FLUSH) != 0;
    return Context::of(pd->context).command([&](driver::Engine& engine, Time now) {
      return engine.advise(Pd::of(pd).number(), *how, about, wait, now);
    });
  });
}

VERB("IBVERBS_1.1", ibv_mr*, ibv_reg_mr,
     (ibv_pd * pd, void* addr, std::size_t length, int access)) {
  return register_memory(pd, {addr, length, reinterpret_cast<std::uintptr_t>(addr),
                              static_cast<unsigned>(access), caller_of_this()});
}

VERB("IBVERBS_1.7", ibv_mr*, ibv_reg_mr_iova,
     (ibv_pd * pd, void* addr, std::size_t length, std::uint64_t iova, int access)) {
  return register_memory(pd, {addr, length, iova, static_cast<unsigned>(access), caller_of_this()});
}

VERB("IBVERBS_1.8", ibv_mr*, ibv_reg_mr_iova2,
     (ibv_pd * pd, void* addr, std::size_t length, std::uint64_t iova, unsigned access)) {
  return register_memory(pd, {addr, length, iova, access, caller_of_this()});
}

VERB("IBVERBS_1.12", ibv_mr*, ibv_reg_dmabuf_mr,
     (ibv_pd * pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
      int access)) {
  return answer_pointer([&]() -> Outcome<ibv_mr*> {
    const auto mr = Mr::create_on_dma_buf(Pd::of(pd), {fd, offset, length}, iova,
                                          static_cast<unsigned>(access));
    if (!mr) return mr.error();
    return *mr;
  });
}

VERB("IBVERBS_1.1", int, ibv_dereg_mr, (ibv_mr * verbs)) {
  return answer_errno([&]() -> Outcome<void> {
    Mr& mr = Mr::of(verbs);
    const auto gone = mr.owner().take_off(
        [&](driver::Engine& engine, Time now) { return engine.deregister_memory(mr.key(), now); });
    if (!gone) return gone;
    mr.owner().release(mr);
    delete &mr;
    return {};
  });
}

namespace {

constexpr int kRegionChanges =
    IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;

Outcome<driver::Engine::RegionChange> change_of(const Mr& mr, int flags, ibv_pd* pd, void* addr,
                                                std::size_t length, int access) {
  if (flags == 0 || (flags & ~kRegionChanges) != 0) return Errno{EINVAL};
  driver::Engine::RegionChange change;
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    if (addr == nullptr || length == 0) return Errno{EINVAL};
    change.buffer = {{reinterpret_cast<std::uintptr_t>(addr)}, length};
  }
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) {
    if (pd == nullptr || pd->context != mr.context) return Errno{EINVAL};
    change.pd = Pd::of(pd).number();
  }
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0)
    change.access = driver::AccessFlags::of_bits(static_cast<unsigned>(access));
  return change;
}

Outcome<void> change_region(Mr& mr, int flags, ibv_pd* pd, void* addr, std::size_t length,
                            int access) {
  const auto change = change_of(mr, flags, pd, addr, length, access);
  if (!change) return change.error();
  const auto changed = mr.owner().command([&](driver::Engine& engine, Time now) {
    return engine.change_memory(mr.key(), *change, now);
  });
  if (!changed) return changed;
  if (change->buffer) {
    mr.addr = addr;
    mr.length = length;
  }
  if (change->pd) mr.move_to(pd);
  return {};
}

}  // namespace

// What fails changes nothing, which is what IBV_REREG_MR_ERR_INPUT says: the old region is valid.
VERB("IBVERBS_1.1", int, ibv_rereg_mr,
     (ibv_mr * verbs, int flags, ibv_pd* pd, void* addr, std::size_t length, int access)) {
  const int code =
      answer_errno([&] { return change_region(Mr::of(verbs), flags, pd, addr, length, access); });
  return code == 0 ? 0 : IBV_REREG_MR_ERR_INPUT;
}

ibv_mr* alloc_null_mr(ibv_pd* pd) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_mr*> {
    const auto mr = Mr::create_null(Pd::of(pd));
    if (!mr) return mr.error();
    return *mr;
  });
}

}  // namespace softhca::abi
