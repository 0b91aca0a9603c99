// Dm: memory on the device, as a program holds it.
//
// In a forked child the device is out of reach; what is allocated there is memory of the child's
// own, which it can copy to and from and nothing else.
//
// Threads  any
#pragma once
#include <vector>

#include "abi/ibverbs/memory.h"

namespace softhca::abi {

class Dm final : public ibv_dm, public Owned {
 public:
  // FAILS WITH EINVAL, ENOMEM
  static Outcome<Dm*> create(Context& owner, const ibv_alloc_dm_attr& wanted);
  // Another handle on device memory of the context's family. FAILS WITH ENOENT
  static Outcome<Dm*> import(Context& owner, std::uint32_t handle);
  static void unimport(Dm& imported);
  static Dm& of(ibv_dm* verbs) { return static_cast<Dm&>(*verbs); }

  // FAILS WITH EBUSY
  Outcome<void> destroy();
  void abandon(driver::Engine& engine, Time now) override;
  bool holds_others() const override { return true; }

  // FAILS WITH EINVAL; EPERM for memory of a device that was left behind
  Outcome<void> copy_to(std::uint64_t offset, ConstBytes from);
  Outcome<void> copy_from(std::uint64_t offset, Bytes to);

  Context& owner() { return Context::of(context); }

 private:
  explicit Dm(Context& owner);

  bool is_import_ = false;
  std::vector<std::byte> in_child_;  // empty: the memory is the device's
};

// Operations that programs reach through the context.
ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attributes) noexcept;
int free_dm(ibv_dm* dm) noexcept;
ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* dm, std::uint64_t offset, std::size_t length,
                  unsigned access) noexcept;

}  // namespace softhca::abi
