// Ah: an address handle, as a program holds it. The device does not know of it: a work request
// takes the address along.
//
// Threads  any
#pragma once
#include "abi/ibverbs/memory.h"

namespace softhca::abi {

class Ah final : public ibv_ah, public Owned {
 public:
  // FAILS WITH EINVAL, ENOMEM
  static Outcome<Ah*> create(Pd& domain, const ibv_ah_attr& attributes);
  ~Ah() override;
  static Ah& of(ibv_ah* verbs) { return static_cast<Ah&>(*verbs); }

  void abandon(driver::Engine&, Time) override {}

  Pd& domain() { return Pd::of(pd); }
  driver::DatagramTarget target(std::uint32_t qpn, std::uint32_t qkey);

 private:
  Ah(Pd& domain, const transport::AddressVector& address);

  PdUse domain_;
  transport::AddressVector address_;
};

}  // namespace softhca::abi
