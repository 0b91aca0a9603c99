// Address handles. No service that uses them is offered yet; programs create them to find out
// whether an address can be reached at all.
#include <algorithm>

#include "abi/entry.h"
#include "abi/ibverbs/memory.h"
#include "abi/qp_attributes.h"

namespace softhca::abi {
namespace {

class Ah final : public ibv_ah, public Owned {
 public:
  explicit Ah(Pd& domain) : ibv_ah{domain.context, &domain, 0} {
    ++domain.address_handles;
    domain.owner().adopt(*this);
  }
  ~Ah() override {
    --domain().address_handles;
    --Device::of(context->device).address_handles;
  }
  static Ah& of(ibv_ah* verbs) { return static_cast<Ah&>(*verbs); }

  void abandon(driver::Engine&, Time) override {}

  Pd& domain() { return Pd::of(pd); }
};

trace::ReasonId fault_of(const transport::AddressVector& address,
                         std::span<const driver::GidEntry> gids) {
  using enum trace::ReasonId;
  if (!address.is_global) return NoGrh;
  if (address.port != 1) return AttributeOutOfRange;
  if (address.destination.is_zero()) return DestinationGidZero;
  const auto source =
      std::ranges::find(gids, std::uint32_t{address.source_gid_index}, &driver::GidEntry::index);
  if (source == gids.end()) return GidIndexUnset;
  if (source->gid.is_ipv4() != address.destination.is_ipv4()) return GidFamilyDiffers;
  return None;
}

}  // namespace

VERB("IBVERBS_1.1", ibv_ah*, ibv_create_ah, (ibv_pd * pd, ibv_ah_attr* attributes)) {
  return answer_pointer([&]() -> Outcome<ibv_ah*> {
    Pd& domain = Pd::of(pd);
    const transport::AddressVector address = address_of(*attributes);
    if (domain.owner().is_left_behind()) return domain.owner().left_behind();
    const trace::ReasonId fault = domain.owner().device().look(
        [&](const driver::Engine& engine) { return fault_of(address, engine.gids()); });
    if (fault != trace::ReasonId::None) return errno_of(fault);
    std::atomic<std::uint32_t>& existing = Device::of(pd->context->device).address_handles;
    if (++existing > nic::kMaxAhs) {
      --existing;
      return errno_of(trace::ReasonId::LimitExceeded);
    }
    return new Ah(domain);
  });
}

VERB("IBVERBS_1.1", int, ibv_destroy_ah, (ibv_ah * verbs)) {
  return answer_errno([&]() -> Outcome<void> {
    Ah& ah = Ah::of(verbs);
    ah.domain().owner().release(ah);
    delete &ah;
    return {};
  });
}

}  // namespace softhca::abi
