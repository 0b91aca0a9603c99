#include "local/service_port.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "os/bound_sockets.h"
#include "os/random.h"

namespace softhca::local {

namespace {

using Wish = ServicePort::Wish;

// The kernel lists page by page: a name that goes meanwhile may hide another.
constexpr int kLooks = 2;
constexpr int kGuesses = 8;
constexpr int kMarks = 32;
constexpr os::IpAddress kEveryAddress;
constexpr os::IpAddress kEveryIpv4 = os::IpAddress::of_ipv4({});

std::string names_in_space(std::uint16_t space) {
  return "softhca/1/rdma-port/" + std::to_string(space) + "/";
}

std::string names_at_port(const Wish& wish) {
  return names_in_space(wish.space) + std::to_string(wish.port) + "/";
}

// Those who share need a name each; of the others there is one at most.
std::string name_for(const Wish& wish) {
  const std::uint64_t which = wish.reuse ? os::random_seed() : 0;
  return names_at_port(wish) + (wish.reuse ? "shared" : "alone") + (wish.only_ipv6 ? "6/" : "/") +
         os::address_text(wish.address) + "/" + std::to_string(which);
}

// What the name of anybody says; nothing if it is not in our form.
std::optional<Wish> wish_in(const std::string& name) {
  Wish wish;
  char kind[8] = "";
  char address[40] = "";
  if (std::sscanf(name.c_str(), "softhca/1/rdma-port/%hu/%hu/%7[a-z6]/%39[0-9a-f.:]/", &wish.space,
                  &wish.port, kind, address) != 4)
    return std::nullopt;
  const auto parsed = os::parse_address(address);
  if (!parsed) return std::nullopt;
  const std::string_view what(kind);
  wish.address = *parsed;
  wish.only_ipv6 = what.ends_with('6');
  wish.reuse = what.starts_with("shared");
  return wish;
}

bool covers(const Wish& wish, const os::IpAddress& address) {
  if (wish.address == address) return true;
  if (!address.is_ipv4()) return wish.address == kEveryAddress;
  return wish.address == kEveryIpv4 || (wish.address == kEveryAddress && !wish.only_ipv6);
}

bool conflict(const Wish& one, const Wish& other) {
  return (covers(one, other.address) || covers(other, one.address)) && !(one.reuse && other.reuse);
}

std::string marks_at_port(const Wish& wish) {
  return "softhca/1/rdma-port-mark/" + std::to_string(wish.space) + "/" +
         std::to_string(wish.port) + "/";
}

// REQUIRES: it is taken before the name. A client that does not see it has its own name by then.
Result<os::HostName, os::SystemError> take_mark(const Wish& wish) {
  const std::string prefix = marks_at_port(wish);
  for (int i = 0; i < kMarks; ++i) {
    auto mark = os::HostName::take(prefix + std::to_string(i));
    if (mark || mark.error().number != EADDRINUSE) return mark;
  }
  return os::SystemError{EADDRINUSE, "bind"};
}

// Held while one takes a name and looks; gone with its holder.
std::string lock_of(const Wish& wish) {
  return "softhca/1/rdma-port-lock/" + std::to_string(wish.space) + "/" + std::to_string(wish.port);
}

// Takes the name, which stands for the wish, beside `own`, which this process has for it already.
// Without the lock two who want the same port at once may both be refused; neither gets what the
// other has.
Result<os::HostName, os::SystemError> take(const Wish& wish, const std::string& name,
                                           const std::string& own = {}) {
  const auto lock = os::HostName::take_in_time(lock_of(wish));
  auto taken = os::HostName::take(name);
  if (!taken) return taken;
  for (int look = 0; look < kLooks; ++look)
    for (const std::string& theirs : os::host_names(names_at_port(wish))) {
      if (theirs == name || theirs == own) continue;
      const auto other = wish_in(theirs);
      if (other && conflict(wish, *other)) return os::SystemError{EADDRINUSE, "bind"};
    }
  return taken;
}

// In no order, so that callers do not meet.
std::vector<std::uint16_t> free_ports(std::uint16_t space, const os::PortRange& range, Prng& prng) {
  std::set<std::uint16_t> taken;
  for (const std::string& name : os::host_names(names_in_space(space)))
    if (const auto wish = wish_in(name)) taken.insert(wish->port);
  std::vector<std::uint16_t> free;
  for (std::uint32_t port = range.first; port <= range.last; ++port)
    if (!taken.contains(static_cast<std::uint16_t>(port)))
      free.push_back(static_cast<std::uint16_t>(port));
  if (!free.empty())
    std::rotate(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(prng.below(free.size())),
                free.end());
  return free;
}

}  // namespace

Result<ServicePort, os::SystemError> ServicePort::reserve(const Wish& wish) {
  if (wish.port == 0) return reserve_any(wish);
  auto mark = take_mark(wish);
  if (!mark) return mark.error();
  std::string name = name_for(wish);
  auto held = take(wish, name);
  if (!held) return held.error();
  return ServicePort(wish, std::move(name), std::move(*held), std::move(*mark));
}

Result<ServicePort, os::SystemError> ServicePort::reserve_for_client(Wish wish) {
  wish.address = kEveryAddress;
  wish.only_ipv6 = false;
  std::string name = name_for(wish);
  auto held = os::HostName::take(name);
  if (!held) return held.error();
  if (os::any_is_held(marks_at_port(wish), kMarks)) return os::SystemError{EADDRINUSE, "bind"};
  return ServicePort(wish, std::move(name), std::move(*held), std::nullopt);
}

// A guess is mostly right.
Result<ServicePort, os::SystemError> ServicePort::reserve_any(Wish wish) {
  const os::PortRange range = os::ephemeral_ports();
  Prng prng(os::random_seed());
  for (int guess = 0; guess < kGuesses; ++guess) {
    wish.port = static_cast<std::uint16_t>(range.first +
                                           prng.below(std::uint64_t{range.last} - range.first + 1));
    auto reserved = wish.is_of_client && !wish.reuse ? reserve_for_client(wish) : reserve(wish);
    if (reserved || reserved.error().number != EADDRINUSE) return reserved;
  }
  for (const std::uint16_t port : free_ports(wish.space, range, prng)) {
    wish.port = port;
    auto reserved = reserve(wish);
    if (reserved || reserved.error().number != EADDRINUSE) return reserved;
  }
  return os::SystemError{EADDRNOTAVAIL, "bind"};
}

Result<void, os::SystemError> ServicePort::listen() {
  if (!wish_.reuse) return {};
  Wish alone = wish_;
  alone.reuse = false;
  std::string name = name_for(alone);
  auto held = take(alone, name, name_);
  if (!held) return held.error();
  wish_ = alone;
  name_ = std::move(name);
  held_ = std::move(*held);
  return {};
}

}  // namespace softhca::local
