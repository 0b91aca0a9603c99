// Protection domains and memory regions as programs hold them.
//
// Threads  any
#pragma once
#include <atomic>

#include "abi/ibverbs/context.h"

namespace softhca::abi {

class Pd final : public ibv_pd, public Owned {
 public:
  // FAILS WITH ENOMEM
  static Outcome<Pd*> create(Context& owner);
  static Pd& of(ibv_pd* verbs) { return static_cast<Pd&>(*verbs); }

  void abandon(driver::Engine& engine, Time now) override;

  Context& owner() { return Context::of(context); }
  std::uint32_t number() const { return handle; }

  // Address handles of this domain, which the device does not know of.
  std::atomic<std::uint32_t> address_handles{0};

 private:
  explicit Pd(Context& owner) : ibv_pd{&owner.context(), 0} {}
};

class Mr final : public ibv_mr, public Owned {
 public:
  struct Request {
    void* start{};
    std::size_t length{};
    std::uint64_t io_address{};
    unsigned access{};
  };
  // FAILS WITH EFAULT, EINVAL, ENOMEM, EOPNOTSUPP
  static Outcome<Mr*> create(Pd& domain, const Request& request);
  // FAILS WITH ENOMEM
  static Outcome<Mr*> create_null(Pd& domain);
  // Of memory on the device. FAILS WITH EINVAL, ENOMEM
  static Outcome<Mr*> create_on_device(Pd& domain, const driver::Engine::DeviceRange& range,
                                       unsigned access);
  static Mr& of(ibv_mr* verbs) { return static_cast<Mr&>(*verbs); }

  void abandon(driver::Engine& engine, Time now) override;

  Context& owner() { return Context::of(context); }
  wire::Key key() const { return {lkey}; }

 private:
  explicit Mr(Pd& domain) : ibv_mr{} {
    context = domain.context;
    pd = &domain;
  }
  void take(const driver::Region& region);
};

// Operations that programs reach through the context.
ibv_mr* alloc_null_mr(ibv_pd* pd) noexcept;

}  // namespace softhca::abi
