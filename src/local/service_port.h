// ServicePort: a port of one of the connection manager's port spaces, as a program binds it.
//
// No two processes of this host (network namespace), whatever their users, have the same port at
// the same address, and it is free as soon as its process is gone: it is a name (os/host_name.h)
// that says what others need to judge. Who wants a port takes such a name and then looks at those
// of the others, so never two have it; that one of them gets it is what the lock is for.
//
// To look at those of the others is to read all names of the host, and takes the longer the more
// there are. A client, which only wants some port, does without: it takes one at every address, so
// that two clients meet at its name, and all others leave a mark at their port, which it looks for.
//
// Rules     as Linux's rdma_cm: two conflict if they have an address in common, unless both may be
//           reused. Whoever listens shares with nobody
// Threads   any
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "os/host_name.h"
#include "os/ip_address.h"
#include "os/system_error.h"

namespace softhca::local {

class ServicePort {
 public:
  struct Wish {
    std::uint16_t space{};    // the number of a wire::PortSpace
    std::uint16_t port{};     // 0: any that nobody has
    os::IpAddress address{};  // zero: every address; ::ffff:0.0.0.0: every one of IPv4
    bool only_ipv6{};         // every address is every one of IPv6
    bool reuse{};
    bool is_of_client{};  // never listens: of port 0, nobody shall have the port elsewhere
  };

  // FAILS WITH EADDRINUSE, also if 32 have the port, at other addresses or shared; EADDRNOTAVAIL:
  // every port that the system gives out is taken
  static Result<ServicePort, os::SystemError> reserve(const Wish& wish);

  // From now on nobody shares it. FAILS WITH EADDRINUSE if somebody does; all is then as before
  Result<void, os::SystemError> listen();

  std::uint16_t port() const { return wish_.port; }

 private:
  ServicePort(const Wish& wish, std::string name, os::HostName held,
              std::optional<os::HostName> mark)
      : wish_(wish), name_(std::move(name)), held_(std::move(held)), mark_(std::move(mark)) {}
  static Result<ServicePort, os::SystemError> reserve_any(Wish wish);
  static Result<ServicePort, os::SystemError> reserve_for_client(Wish wish);
  Wish wish_;
  std::string name_;
  os::HostName held_;
  std::optional<os::HostName> mark_;  // none: a client's
};

}  // namespace softhca::local
