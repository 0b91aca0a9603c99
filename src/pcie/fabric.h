// Fabric: who is on the bus, and where a request goes: up to the root complex, or to a peer.
//
//   root complex ── RAM
//        │
//      switch            a request comes up from an endpoint; the switch compares its address with
//      ├── NIC           the BARs of the others
//      └── GPU
//
// With ACS redirect on, the switch sends every request up: it is translated there by the IOMMU and
// comes back down, if the root complex routes between peers at all. With it off, a request whose
// address lies in a peer's BAR goes straight there: sooner, and the IOMMU is not asked. That the
// address is compared untranslated is why no bus address may be chosen inside a BAR.
//
// Spec      PCI Express Base, 6.12 (ACS), 1.3 (topology), 2.2.4.1 (routing by address)
// See also  host/root_port.h asks for each access; pcie/config_space.h has the BARs
#pragma once
#include <cstdint>
#include <deque>
#include <string>

#include "pcie/config_space.h"
#include "pcie/port.h"

namespace softhca::pcie {

struct FabricShape {
  bool has_switch = true;  // else each endpoint has a root port of its own
  bool acs_redirect = true;
  bool root_routes_peers = true;  // many root complexes do not
};

struct Endpoint {
  std::string name;
  std::uint32_t number{};  // in the order in which they were added
  const ConfigSpace* config = nullptr;
};

class Fabric {
 public:
  explicit Fabric(const FabricShape& shape = {}) : shape_(shape) {}

  // `config` outlives this; it has the endpoint's requester id and BARs.
  const Endpoint& add(std::string name, const ConfigSpace& config);

  // The peer to which the switch hands a request of `from` by itself; null: it goes up.
  const Endpoint* direct_target(RequesterId from, BusAddr at) const;

  // The function that claims a physical address; null: none. Memory space off: it claims nothing.
  const Endpoint* claims(PhysAddr at) const;

  const FabricShape& shape() const { return shape_; }
  void set_shape(const FabricShape& shape) { shape_ = shape; }

 private:
  FabricShape shape_;
  std::deque<Endpoint> endpoints_;  // addresses stay
};

}  // namespace softhca::pcie
