// Interfaces: the network interfaces of this network namespace and their addresses, and to which
// Ethernet addresses packets go from there.
//
// Asked over rtnetlink, so that the answer is about the namespace of the caller; sysfs may be
// mounted from another one.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "os/ip_address.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

enum class AddressScope : std::uint8_t { Global, Site, Link, Host, Nowhere };

struct InterfaceAddress {
  IpAddress address;
  std::uint8_t prefix_bits{};  // of the family: 24 for 192.0.2.1/24
  AddressScope scope{};
};

struct Interface {
  std::string name;
  std::uint32_t index{};
  bool up{};       // switched on by the administrator
  bool running{};  // has a carrier
  bool loopback{};
  bool default_route{};  // the default route of IPv4, else of IPv6, leaves here
  std::string kind;      // as the kernel calls it: "bridge", "veth", ...; empty: hardware
  std::uint32_t mtu{};
  std::array<std::uint8_t, 6> mac{};        // zeros where there is none
  std::optional<std::uint32_t> speed_mbps;  // nothing where the driver does not say
  std::vector<InterfaceAddress> addresses;  // usable ones only, IPv4 first

  bool is_bridge() const { return kind == "bridge"; }
};

// Hears when an interface comes, goes or changes: its state, its MTU, its addresses.
class InterfaceWatch {
 public:
  static Result<InterfaceWatch, SystemError> open();

  int fd() const { return fd_.get(); }  // readable when there may be news
  // Whether there was news of this interface since the last call. Never waits.
  bool has_news(std::uint32_t interface_index);

 private:
  explicit InterfaceWatch(OwnedFd fd) : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

// The interface of the default route first (the lowest metric wins), then by index.
Result<std::vector<Interface>, SystemError> interfaces();

using MacAddress = std::array<std::uint8_t, 6>;

// Of the next hop on the way to `address` by this interface; the interface's own address, zeros for
// loopback, where that is this host; zeros on an interface without such addresses (a tunnel); that
// of the group for multicast. What the kernel does not know yet it is made to ask for, and waited
// for as long as `patience` lasts. FAILS WITH ENETUNREACH and the like: there is no way;
// EHOSTUNREACH: nobody has answered yet
Result<MacAddress, SystemError> mac_on_the_way_to(const IpAddress& address,
                                                  std::uint32_t interface_index,
                                                  Duration patience = seconds(1));

}  // namespace softhca::os
