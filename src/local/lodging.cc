#include "local/lodging.h"

#include <algorithm>
#include <cerrno>

#include "os/bound_sockets.h"

namespace softhca::local {

namespace {

std::string beacons_of_port(std::uint16_t port) {
  return "softhca/1/port/" + std::to_string(port) + "/";
}

// Who has the port, if it is one other user.
std::optional<std::uint32_t> other_user_at(const Domain& domain, const os::IpAddress& address) {
  const auto bound = os::bound_udp_sockets(address, domain.port);
  if (!bound || bound->empty()) return std::nullopt;
  const std::uint32_t uid = bound->front().uid;
  const bool one_user = std::ranges::all_of(*bound, [&](const os::BoundSocket& socket) {
    return socket.uid == uid && socket.inode != 0;
  });
  if (!one_user || uid == os::own_uid() || !os::names_one_user(uid)) return std::nullopt;
  return uid;
}

}  // namespace

std::string beacon_prefix(const Domain& domain, const os::IpAddress& address, std::uint32_t uid) {
  return beacons_of_port(domain.port) + std::to_string(domain.interface_index) + "/" +
         os::address_text(address) + "/" + std::to_string(uid) + "/";
}

bool has_beacon(std::uint16_t port, const std::string& address, std::uint32_t uid) {
  const std::string prefix = beacons_of_port(port);
  const std::string wanted = "/" + address + "/" + std::to_string(uid) + "/";
  return std::ranges::any_of(os::host_names(prefix), [&](const std::string& name) {
    const std::size_t interface_end = name.find('/', prefix.size());
    return interface_end != std::string::npos &&
           name.compare(interface_end, wanted.size(), wanted) == 0;
  });
}

std::optional<Lodging> Lodging::begin(const Domain& domain, const os::IpAddress& address) {
  Lodging lodging(domain, address);
  auto holder = lodging.ask();
  if (!holder) return std::nullopt;
  lodging.holder_ = holder->uid;
  lodging.watch_ = std::move(holder->watch);
  return lodging;
}

// A beacon counts if it is the holder's own: anybody may take a name that says so. Where too many
// watch it the name has to do, and no end is noticed early.
std::optional<Lodging::Holder> Lodging::ask() const {
  const auto uid = other_user_at(domain_, address_);
  if (!uid) return std::nullopt;
  for (const std::string& name : os::host_names(beacon_prefix(domain_, address_, *uid))) {
    auto watch = os::NameWatch::start(name);
    if (watch && watch->uid() == *uid) return Holder{*uid, std::move(*watch)};
    if (!watch && watch.error().number == EAGAIN) return Holder{*uid, {}};
  }
  return std::nullopt;
}

bool Lodging::is_holder(std::uint32_t uid, Time now) {
  if (holder_ != uid && next_ask_ <= now) {
    next_ask_ = now + kAskEvery;
    const auto holder = ask();
    if (holder && holder_ != holder->uid) {
      holder_ = holder->uid;
      pause_ = kFirstPause;
      next_try_ = now;
    }
  }
  return holder_ == uid;
}

bool Lodging::tried(Time now) {
  next_try_ = now + pause_;
  pause_ = std::min(kLastPause, pause_ * 2);
  const bool watched = watch_.is_running();
  if (watched && watch_.uid() == holder_) return false;
  auto holder = ask();
  holder_ = holder ? std::optional(holder->uid) : std::nullopt;
  watch_ = holder ? std::move(holder->watch) : os::NameWatch();
  return watched || watch_.is_running();
}

bool Lodging::notice_end(Time now) {
  if (!watch_.is_over()) return false;
  watch_.stop();
  pause_ = kFirstPause;
  next_try_ = now;
  return true;
}

}  // namespace softhca::local
