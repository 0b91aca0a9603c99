// Address handles: made of an address, or of what came in front of a datagram.
#include "abi/ibverbs/ah.h"

#include <algorithm>
#include <cstring>

#include "abi/entry.h"
#include "abi/qp_attributes.h"
#include "driver/network_header.h"
#include "os/interfaces.h"

namespace softhca::abi {

Ah::Ah(Pd& domain, const transport::AddressVector& address)
    : ibv_ah{domain.context, &domain, 0}, domain_(&domain), address_(address) {
  domain.owner().adopt(*this);
}

Ah::~Ah() { --Device::of(context->device).address_handles; }

Outcome<Ah*> Ah::create(Pd& domain, const ibv_ah_attr& attributes) {
  const transport::AddressVector address = address_of(attributes);
  if (domain.owner().is_left_behind()) return domain.owner().left_behind();
  if (address.port != 1) return errno_of(trace::ReasonId::AttributeOutOfRange);
  const trace::Reason fault = domain.owner().device().run([&](driver::Engine& engine, Time) {
    const trace::Reason bad = engine.check_address(address);
    if (bad) engine.tell_refused("creating an address handle", bad);
    return bad;
  });
  if (fault) return errno_of(fault.id);
  std::atomic<std::uint32_t>& existing = Device::of(domain.context->device).address_handles;
  if (++existing > nic::kMaxAhs) {
    --existing;
    return errno_of(trace::ReasonId::LimitExceeded);
  }
  return new Ah(domain, address);
}

driver::DatagramTarget Ah::target(std::uint32_t qpn, std::uint32_t qkey) {
  return {.address = address_, .pd = domain().number(), .qpn = {qpn}, .qkey = qkey};
}

namespace {

// The way back to whom a datagram came from.
Outcome<ibv_ah_attr> way_back(Context& context, std::uint8_t port, const ibv_wc& wc,
                              const ibv_grh* grh) {
  if (port != 1 || (wc.wc_flags & IBV_WC_GRH) == 0 || grh == nullptr) return Errno{EINVAL};
  const auto address = context.device().look([&](const driver::Engine& engine) {
    return driver::answer_address(std::as_bytes(std::span(grh, 1)), engine.gids());
  });
  if (!address) return errno_of(address.error().id);
  ibv_ah_attr attributes = as_verbs(*address);
  attributes.port_num = port;
  attributes.sl = wc.sl;
  return attributes;
}

}  // namespace

VERB("IBVERBS_1.1", ibv_ah*, ibv_create_ah, (ibv_pd * pd, ibv_ah_attr* attributes)) {
  return answer_pointer([&]() -> Outcome<ibv_ah*> {
    const auto ah = Ah::create(Pd::of(pd), *attributes);
    if (!ah) return ah.error();
    return *ah;
  });
}

VERB("IBVERBS_1.1", int, ibv_init_ah_from_wc,
     (ibv_context * context, std::uint8_t port, ibv_wc* wc, ibv_grh* grh,
      ibv_ah_attr* attributes)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto back = way_back(Context::of(context), port, *wc, grh);
    if (!back) return back.error();
    *attributes = *back;
    return 0;
  });
}

VERB("IBVERBS_1.1", ibv_ah*, ibv_create_ah_from_wc,
     (ibv_pd * pd, ibv_wc* wc, ibv_grh* grh, std::uint8_t port)) {
  return answer_pointer([&]() -> Outcome<ibv_ah*> {
    const auto back = way_back(Context::of(pd->context), port, *wc, grh);
    if (!back) return back.error();
    const auto ah = Ah::create(Pd::of(pd), *back);
    if (!ah) return ah.error();
    return *ah;
  });
}

// A VLAN's tag is the kernel's business, which has an interface for each.
VERB("IBVERBS_1.1", int, ibv_resolve_eth_l2_from_gid,
     (ibv_context * context, ibv_ah_attr* attributes, std::uint8_t mac[6], std::uint16_t* vid)) {
  return answer_errno([&]() -> Outcome<void> {
    constexpr std::uint16_t kNoVlan = 0xffff;
    if (Context::of(context).is_left_behind()) return Context::of(context).left_behind();
    const transport::AddressVector address = address_of(*attributes);
    const trace::Reason bad = Context::of(context).device().look(
        [&](const driver::Engine& engine) { return engine.check_address(address); });
    if (bad) return errno_of(bad.id);
    const auto found = os::mac_on_the_way_to(
        {address.destination.bytes}, Device::of(context->device).description().interface_index);
    if (!found) return Errno{found.error().number};
    std::ranges::copy(*found, mac);
    if (vid != nullptr) *vid = kNoVlan;
    return {};
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
