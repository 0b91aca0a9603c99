#include "pcie/fabric.h"

#include <utility>

namespace softhca::pcie {

const Endpoint& Fabric::add(std::string name, const ConfigSpace& config) {
  const auto number = static_cast<std::uint32_t>(endpoints_.size());
  return endpoints_.emplace_back(Endpoint{std::move(name), number, &config});
}

const Endpoint* Fabric::direct_target(RequesterId from, BusAddr at) const {
  if (!shape_.has_switch || shape_.acs_redirect) return nullptr;
  const Endpoint* peer = claims({at.value});
  return peer != nullptr && peer->config->id() != from ? peer : nullptr;
}

const Endpoint* Fabric::claims(PhysAddr at) const {
  for (const Endpoint& endpoint : endpoints_)
    for (std::size_t bar = 0; bar < kBars; ++bar) {
      const auto range = endpoint.config->bar(bar);
      if (range && range->contains(at, 1)) return &endpoint;
    }
  return nullptr;
}

}  // namespace softhca::pcie
