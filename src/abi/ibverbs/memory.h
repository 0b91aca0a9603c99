// Protection domains and memory regions as programs hold them.
//
// Threads  any
#pragma once
#include <atomic>

#include "abi/ibverbs/context.h"

namespace softhca::abi {

class Pd final : public ibv_pd, public Owned {
 public:
  Pd(Context& owner, std::uint32_t number) : ibv_pd{&owner.context(), number} {}
  static Pd& of(ibv_pd* verbs) { return static_cast<Pd&>(*verbs); }

  void abandon(driver::Engine& engine, Time now) override;

  Context& owner() { return Context::of(context); }
  std::uint32_t number() const { return handle; }

  // Address handles of this domain, which the device does not know of.
  std::atomic<std::uint32_t> address_handles{0};
};

class Mr final : public ibv_mr, public Owned {
 public:
  Mr(Pd& domain, void* start, const driver::Region& region);
  static Mr& of(ibv_mr* verbs) { return static_cast<Mr&>(*verbs); }

  void abandon(driver::Engine& engine, Time now) override;

  Context& owner() { return Context::of(context); }
  wire::Key key() const { return {lkey}; }
};

}  // namespace softhca::abi
