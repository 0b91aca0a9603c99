// Lodging: what a process does about a port that SoftHCA processes of another user have.
//
// A port is shared within one user only. Processes of other users lodge: they send from ports of
// their own, get what is for them as mail from those who have the port, and take it when these
// are gone. Who has it is asked of procfs, and that it is SoftHCA, of the beacon (PortGroup).
//
// Threads  owned by the device's owner
// See also ARCHITECTURE.md, "One port, many users"
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "local/qpn_block.h"
#include "os/host_name.h"
#include "os/ip_address.h"

namespace softhca::local {

// How the names start by which the processes of a user that share a port are found:
// "softhca/1/port/PORT/INTERFACE/ADDRESS/UID/".
std::string beacon_prefix(const Domain& domain, const os::IpAddress& address, std::uint32_t uid);

// True iff SoftHCA processes of that user have the port, or wait for it, on any interface that has
// the address ("192.0.2.1").
bool has_beacon(std::uint16_t port, const std::string& address, std::uint32_t uid);

class Lodging {
 public:
  // Between two tries to take the port: soon after something has changed, then more and more
  // rarely.
  static constexpr Duration kFirstPause = milliseconds(1);
  static constexpr Duration kLastPause = milliseconds(50);
  // An unknown user's mail makes us ask who has the port, this often at most.
  static constexpr Duration kAskEvery = milliseconds(100);

  // Nothing unless SoftHCA processes of another user have the port.
  static std::optional<Lodging> begin(const Domain& domain, const os::IpAddress& address);

  // Whether this user has the port. He receives what arrives there anyway, so that he gains
  // nothing by forging mail for this address.
  bool is_holder(std::uint32_t uid, Time now);

  std::optional<std::uint32_t> holder() const { return holder_; }

  // When to try to take the port, although nothing is heard of the holder.
  Time next_try() const { return next_try_; }
  // It was tried, and somebody has the port. True if fd() is another one now.
  bool tried(Time now);
  // Looks whether the process that is watched has ended; if so, it is time to try, and fd() is
  // another one: true.
  bool notice_end(Time now);

  // Readable when a process of the holder has ended. -1: none is watched, next_try() has to do.
  int fd() const { return watch_.fd(); }

 private:
  struct Holder {
    std::uint32_t uid{};
    os::NameWatch watch;  // of the beacon of one of his processes; may be none
  };
  Lodging(const Domain& domain, const os::IpAddress& address)
      : domain_(domain), address_(address) {}
  std::optional<Holder> ask() const;

  Domain domain_;
  os::IpAddress address_;
  std::optional<std::uint32_t> holder_;
  os::NameWatch watch_;
  Duration pause_ = kFirstPause;
  Time next_try_{};
  Time next_ask_{};
};

}  // namespace softhca::local
