#include "abi/rdmacm/addresses.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "abi/entry.h"
#include "abi/rdmacm/tell.h"
#include "base/bytes.h"
#include "os/route.h"

namespace softhca::abi {
namespace {

using enum trace::ReasonId;

constexpr std::uint32_t kBacklogMax = 1024;  // of Linux's rdma_cm, and what 0 means there

Outcome<SocketAddress> address_of(const char* call, const sockaddr& from) {
  const auto address = socket_address(from);
  if (!address) return refuse(call, {.id = AddressFamily}, "", address.error().code);
  return *address;
}

// 127.0.0.1 is every address, as in Linux, unless there is a device of the loopback interface.
bool is_everywhere(const SocketAddress& address) {
  return address.is_any() || address.is_loopback();
}

// The program has bound it to no address of its own.
bool may_choose_source(const Id& id) {
  return id.is_source_chosen || (id.device == nullptr && is_everywhere(id.source));
}

// ENODEV, or EADDRNOTAVAIL: it is not even this host's.
Errno no_device(const char* call, const SocketAddress& address) {
  const auto own = os::route_to(address.address, address.address, address.scope);
  return refuse(call, {.id = NoDeviceForAddress},
                " Address " + os::address_text(address.address) + ".",
                own || own.error().number != EADDRNOTAVAIL ? ENODEV : EADDRNOTAVAIL);
}

Outcome<void> reserve_port(Id& id, const char* call, const SocketAddress& wanted,
                           bool is_of_client) {
  auto port = local::ServicePort::reserve({.space = static_cast<std::uint16_t>(id.ps),
                                           .port = wanted.port,
                                           .address = wanted.address,
                                           .only_ipv6 = id.only_ipv6,
                                           .reuse = id.reuses_address,
                                           .is_of_client = is_of_client});
  if (!port) {
    return refuse(call, {.id = ServiceTaken, .object = wanted.port}, " " + text_of(wanted) + ".",
                  port.error().number);
  }
  id.port = std::move(*port);
  id.source = wanted;
  id.source.port = id.port->port();
  return {};
}

// Where packets to an address leave.
struct Way {
  CmDevice* device{};
  wire::Gid local{};
  wire::Gid remote{};
  SocketAddress source{};
  std::uint32_t neighbour_on{};  // the interface; 0: nobody has to be asked for
};

Outcome<Way> way_of_loopback(Id& id, const SocketAddress& destination) {
  wire::Gid wanted = destination.gid();
  if (destination.is_any()) {  // this host, too
    wanted = {};
    wanted.bytes[15] = 1;
    if (!destination.is_ipv6) wanted = wire::Gid::of_ipv4({127, 0, 0, 1});
  }
  const auto found = id.registry.devices.loopback(wanted);
  if (!found) return no_device("rdma_resolve_addr", destination);
  Way way{.device = found->device, .local = found->gid, .remote = found->gid};
  way.source = {.address = {wanted.bytes}, .is_ipv6 = destination.is_ipv6};
  return way;
}

Outcome<Way> way_to(Id& id, const SocketAddress& destination) {
  if (is_everywhere(destination)) return way_of_loopback(id, destination);
  std::optional<os::IpAddress> source;
  if (!may_choose_source(id)) source = id.source.address;
  const std::uint32_t scope = destination.scope != 0 ? destination.scope : id.source.scope;
  const auto route = os::route_to(destination.address, source, scope);
  // To a group there need be no route if the program says from where.
  const bool is_group = destination.is_multicast();
  if (!route && !(is_group && source))
    return refuse("rdma_resolve_addr", {.id = NoRoute},
                  " To " + os::address_text(destination.address) + ".", route.error().number);
  Way way{.remote = destination.gid()};
  way.source = {
      .address = route ? route->source : *source, .scope = scope, .is_ipv6 = destination.is_ipv6};
  way.local = way.source.gid();
  way.device = id.registry.devices.of_address(way.local);
  if (way.device == nullptr) return no_device("rdma_resolve_addr", way.source);
  if (route && !route->is_local && !is_group) way.neighbour_on = route->interface_index;
  return way;
}

}  // namespace

Outcome<void> bind(Id& id, const sockaddr& wanted) {
  constexpr const char* kCall = "rdma_bind_addr";
  const auto address = address_of(kCall, wanted);
  if (!address) return address.error();
  if (id.stage != Stage::Idle) return wrong_turn(kCall);
  // Also for every address: some programs tell their clients the port before they listen, so
  // nothing that takes long may be left to rdma_listen.
  const std::vector<CmDevice*> devices = id.registry.devices.list();
  for (CmDevice* one : devices) one->open_port();
  CmDevice* const device =
      address->is_any() ? nullptr : id.registry.devices.of_address(address->gid());
  if (device == nullptr && (devices.empty() || !is_everywhere(*address)))
    return no_device(kCall, *address);
  if (const auto reserved = reserve_port(id, kCall, *address, false); !reserved) return reserved;
  if (device != nullptr) {
    id.path.local = address->gid();
    id.settle(*device);
  }
  id.show_addresses();
  id.stage = Stage::Bound;
  return {};
}

Outcome<void> resolve_address(Id& id, const sockaddr* source, const sockaddr& destination,
                              int timeout_ms) {
  constexpr const char* kCall = "rdma_resolve_addr";
  const auto to = address_of(kCall, destination);
  if (!to) return to.error();
  const bool says_source = source != nullptr && source->sa_family != AF_UNSPEC;
  if (says_source && id.stage == Stage::Idle)
    if (const auto bound = bind(id, *source); !bound) return bound;
  if (id.stage != Stage::Idle && id.stage != Stage::Bound) return wrong_turn(kCall);
  const auto way = way_to(id, *to);
  if (!way) return way.error();
  if (!id.port)
    if (const auto reserved = reserve_port(id, kCall, way->source, true); !reserved)
      return reserved;
  id.is_source_chosen |= id.stage == Stage::Idle || may_choose_source(id);
  id.destination = *to;
  id.source = way->source;
  id.source.port = id.port->port();
  id.path.local = way->local;
  id.path.remote = way->remote;
  id.settle(*way->device);
  id.show_addresses();
  if (way->neighbour_on == 0) {
    const std::scoped_lock held(id.registry.lock);
    id.on_resolved(0);
    return {};
  }
  id.stage = Stage::Resolving;
  const auto begun = id.registry.resolver.resolve(id, to->address, way->neighbour_on,
                                                  milliseconds(std::max(timeout_ms, 0)));
  if (begun) return {};
  id.stage = Stage::Bound;
  return refuse(kCall, {.id = NoRoute}, " To " + os::address_text(to->address) + ".",
                begun.error().code);
}

Outcome<void> resolve_route(Id& id) {
  {
    const std::scoped_lock held(id.registry.lock);
    if (id.stage != Stage::Resolved) return wrong_turn("rdma_resolve_route");
  }
  id.path.mtu = id.device->mtu();
  id.show_path();
  const std::scoped_lock held(id.registry.lock);
  id.stage = Stage::Routed;
  id.post({.type = RDMA_CM_EVENT_ROUTE_RESOLVED});
  return {};
}

namespace {

// At every device, or at that of the id's address. One that cannot does not keep the others from
// it.
Outcome<void> listen_at_devices(Id& id, std::uint32_t backlog) {
  std::vector<CmDevice*> devices = {id.device};
  if (id.device == nullptr) devices = id.registry.devices.list();
  wire::Gid address = id.source.gid();
  if (is_everywhere(id.source)) address = address.is_ipv4() ? cm::kEveryIpv4Address : wire::Gid{};
  const bool only_ipv6 = address.is_zero() && (id.only_ipv6 || id.source.is_loopback());
  Outcome<void> outcome = Errno{ENODEV};
  for (CmDevice* device : devices) {
    auto ear = std::make_unique<Listening>(id, *device);
    const auto number =
        told("rdma_listen", device->connections().listen({.service = id.service(),
                                                          .address = address,
                                                          .only_ipv6 = only_ipv6,
                                                          .backlog = backlog,
                                                          .datagrams = id.is_datagram()},
                                                         *ear));
    if (!number) {
      if (id.ears.empty()) outcome = number.error();
      continue;
    }
    ear->number = *number;
    id.ears.push_back(std::move(ear));
    outcome = {};
  }
  return outcome;
}

std::uint32_t backlog_of(int wanted) {
  if (wanted <= 0) return kBacklogMax;
  return std::min(static_cast<std::uint32_t>(wanted), kBacklogMax);
}

Outcome<void> listen(Id& id, int backlog) {
  constexpr const char* kCall = "rdma_listen";
  const std::uint32_t limit = backlog_of(backlog);
  if (id.stage == Stage::Listening) {
    for (const auto& ear : id.ears) ear->device.connections().set_backlog(ear->number, limit);
    return {};
  }
  if (id.stage == Stage::Idle) {
    sockaddr_storage any;
    store({.address = os::IpAddress::of_ipv4({})}, any);
    if (const auto bound = bind(id, reinterpret_cast<const sockaddr&>(any)); !bound) return bound;
  }
  if (id.stage != Stage::Bound) return wrong_turn(kCall);
  if (const auto alone = id.port->listen(); !alone)
    return refuse(kCall, {.id = ServiceTaken, .object = id.source.port},
                  " " + text_of(id.source) + ".", alone.error().number);
  const auto heard = listen_at_devices(id, limit);
  if (heard) id.stage = Stage::Listening;
  return heard;
}

}  // namespace

VERB("RDMACM_1.0", int, rdma_bind_addr, (rdma_cm_id * verbs, sockaddr* address)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    if (address == nullptr) return Errno{EINVAL};
    const auto bound = bind(**id, *address);
    if (!bound) return bound.error();
    return 0;
  });
}

BLOCKING_VERB("RDMACM_1.0", int, rdma_resolve_addr,
              (rdma_cm_id * verbs, sockaddr* source, sockaddr* destination, int timeout_ms)) {
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    if (destination == nullptr) return Errno{EINVAL};
    const auto begun = resolve_address(**id, source, *destination, timeout_ms);
    if (!begun) return begun.error();
    return finish(**id, place);
  });
}

BLOCKING_VERB("RDMACM_1.0", int, rdma_resolve_route, (rdma_cm_id * verbs, int)) {
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    const auto begun = resolve_route(**id);
    if (!begun) return begun.error();
    return finish(**id, place);
  });
}

VERB("RDMACM_1.0", int, rdma_listen, (rdma_cm_id * verbs, int backlog)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    const auto heard = listen(**id, backlog);
    if (!heard) return heard.error();
    return 0;
  });
}

VERB("RDMACM_1.0", __be16, rdma_get_src_port, (rdma_cm_id * id)) {
  const Id* const known = live(id);
  return byte_swapped(known != nullptr ? known->source.port : std::uint16_t{0});
}

VERB("RDMACM_1.0", __be16, rdma_get_dst_port, (rdma_cm_id * id)) {
  const Id* const known = live(id);
  return byte_swapped(known != nullptr ? known->destination.port : std::uint16_t{0});
}

}  // namespace softhca::abi
