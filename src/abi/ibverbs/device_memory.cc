#include "abi/ibverbs/device_memory.h"

#include <cstring>

#include "abi/entry.h"
#include "driver/engine.h"

namespace softhca::abi {
namespace {

int memcpy_to_dm(ibv_dm* dm, std::uint64_t offset, const void* from, std::size_t length) noexcept {
  return answer_errno([&] {
    return Dm::of(dm).copy_to(offset, {static_cast<const std::byte*>(from), length});
  });
}

int memcpy_from_dm(void* to, ibv_dm* dm, std::uint64_t offset, std::size_t length) noexcept {
  return answer_errno([&] {
    return Dm::of(dm).copy_from(offset, {static_cast<std::byte*>(to), length});
  });
}

}  // namespace

Dm::Dm(Context& owner) : ibv_dm{} {
  context = &owner.context();
  ibv_dm::memcpy_to_dm = abi::memcpy_to_dm;
  ibv_dm::memcpy_from_dm = abi::memcpy_from_dm;
}

Outcome<Dm*> Dm::create(Context& owner, const ibv_alloc_dm_attr& wanted) {
  if (wanted.comp_mask != 0) return Errno{EINVAL};
  std::unique_ptr<Dm> dm(new Dm(owner));
  if (owner.is_left_behind()) {
    if (wanted.length == 0) return Errno{EINVAL};
    if (wanted.length > nic::kDeviceMemoryBytes) return Errno{ENOMEM};
    dm->in_child_.resize(wanted.length);
  } else {
    const auto handle = owner.command([&](driver::Engine& engine, Time) {
      return engine.alloc_dm(wanted.length, wanted.log_align_req);
    });
    if (!handle) return handle.error();
    dm->handle = *handle;
  }
  owner.adopt(*dm);
  return dm.release();
}

Outcome<void> Dm::destroy() {
  if (in_child_.empty()) {
    const auto gone =
        owner().take_off([&](driver::Engine& engine, Time) { return engine.free_dm(handle); });
    if (!gone) return gone;
  }
  owner().release(*this);
  return {};
}

void Dm::abandon(driver::Engine& engine, Time) {
  if (in_child_.empty() && !is_import_) [[maybe_unused]]
    const auto gone = engine.free_dm(handle);
}

Outcome<void> Dm::copy_to(std::uint64_t offset, ConstBytes from) {
  if (in_child_.empty())
    return owner().command(
        [&](driver::Engine& engine, Time) { return engine.copy_to_dm(handle, offset, from); });
  const auto bad = driver::Engine::check_dm_copy(in_child_.size(), offset, from.size());
  if (bad) return errno_of(bad.id);
  if (!from.empty()) std::memcpy(in_child_.data() + offset, from.data(), from.size());
  return {};
}

Outcome<void> Dm::copy_from(std::uint64_t offset, Bytes to) {
  if (in_child_.empty())
    return owner().command(
        [&](driver::Engine& engine, Time) { return engine.copy_from_dm(handle, offset, to); });
  const auto bad = driver::Engine::check_dm_copy(in_child_.size(), offset, to.size());
  if (bad) return errno_of(bad.id);
  if (!to.empty()) std::memcpy(to.data(), in_child_.data() + offset, to.size());
  return {};
}

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attributes) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_dm*> {
    const auto dm = Dm::create(Context::of(context), *attributes);
    if (!dm) return dm.error();
    return *dm;
  });
}

int free_dm(ibv_dm* verbs) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    Dm& dm = Dm::of(verbs);
    const auto gone = dm.destroy();
    if (gone) delete &dm;
    return gone;
  });
}

ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* dm, std::uint64_t offset, std::size_t length,
                  unsigned access) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_mr*> {
    if (pd->context != dm->context) return Errno{EINVAL};
    const auto mr = Mr::create_on_device(Pd::of(pd), {dm->handle, offset, length}, access);
    if (!mr) return mr.error();
    return *mr;
  });
}

}  // namespace softhca::abi
