// ServiceNames: which process of this host listens to a service of the connection manager.
//
// Queue pair 1 is everybody's: a request may come to any process that shares the port, and the name
// of a listener says whose block it is for. Names are gone with their process.
//
// Who does not know a service reads the list of all names. What was found is believed for a while:
// the process that it leads to says itself that nobody listens. Strangers cannot make this process
// read all the time; what comes beyond that is to be dropped, and comes again.
//
// Threads  owned by the device's owner
// See also local/qpn_block.h, driver/live/management_route.h
#pragma once
#include <cstdint>
#include <map>
#include <utility>

#include "base/clock.h"
#include "local/qpn_block.h"
#include "os/host_name.h"
#include "os/ip_address.h"

namespace softhca::local {

class ServiceNames {
 public:
  static constexpr Duration kBelievedFor = milliseconds(100);
  static constexpr std::uint32_t kLooksPerSecond = 1000;

  ServiceNames(const Domain& domain, std::uint32_t block) : domain_(domain), block_(block) {}

  // A zero address stands for every address, ::ffff:0.0.0.0 for every one of IPv4. False if another
  // process listens there.
  bool claim(std::uint64_t service, const os::IpAddress& address);
  void give_back(std::uint64_t service, const os::IpAddress& address);
  // In the child of a fork: the names stay the parent's.
  void abandon() { held_.clear(); }

  enum class Found : std::uint8_t { Nobody, Block, Unknown };  // Unknown: too many were asked for
  struct Listener {
    Found found{};
    std::uint32_t block{};
  };
  // The one at that address first, then one of every address of its family, then one of every
  // address, which may find that it is not meant.
  Listener find(std::uint64_t service, const os::IpAddress& address, Time now);

 private:
  using Key = std::pair<std::uint64_t, os::IpAddress>;
  struct Belief {
    std::uint32_t block{};
    Time until{};
  };
  bool may_look(Time now);

  Domain domain_;
  std::uint32_t block_;
  std::map<Key, os::HostName> held_;
  std::map<Key, Belief> believed_;
  Time second_ends_{};
  std::uint32_t looks_ = 0;  // in this second
};

}  // namespace softhca::local
