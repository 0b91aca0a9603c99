// Xrcd: an XRC domain, as a program holds it. Several contexts of a process may have opened the
// domain of one file.
//
// Threads  any
#pragma once
#include <atomic>

#include "abi/ibverbs/context.h"

namespace softhca::abi {

class Xrcd final : public ibv_xrcd, public Owned {
 public:
  // FAILS WITH EINVAL, EAGAIN, EBADF, ENOMEM, EOPNOTSUPP
  static Outcome<Xrcd*> open(Context& owner, const ibv_xrcd_init_attr& wanted);
  static Xrcd& of(ibv_xrcd* verbs) { return static_cast<Xrcd&>(*verbs); }

  void abandon(driver::Engine& engine, Time now) override;
  bool holds_others() const override { return true; }

  Context& owner() { return Context::of(context); }
  std::uint32_t number() const { return number_; }

  // Queue pairs and shared receive queues that were made through this handle.
  std::atomic<std::uint32_t> dependants{0};

 private:
  explicit Xrcd(Context& owner) : ibv_xrcd{&owner.context()} {}

  std::uint32_t number_{};
};

// Operations that programs reach through the context.
ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attributes) noexcept;
int close_xrcd(ibv_xrcd* xrcd) noexcept;

}  // namespace softhca::abi
