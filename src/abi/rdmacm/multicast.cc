#include "abi/rdmacm/multicast.h"

#include <algorithm>
#include <cerrno>
#include <optional>

#include "abi/entry.h"
#include "abi/gid.h"
#include "abi/rdmacm/tell.h"

namespace softhca::abi {
namespace {

constexpr std::uint32_t kEverybody = 0xffffff;
constexpr std::uint8_t kHops = 1;  // of groups, as Linux's rdma_cm has it for RoCE

// Linux knows groups by address alone.
bool is_same(const sockaddr_storage& a, const sockaddr& b) {
  const auto one = socket_address(reinterpret_cast<const sockaddr&>(a));
  const auto other = socket_address(b);
  return one && other && one->address == other->address;
}

Outcome<void> join(Id& id, const sockaddr* address, void* context, bool only_sends) {
  if (address == nullptr) return Errno{EINVAL};
  const auto group = socket_address(*address);
  if (!group)
    return refuse("rdma_join_multicast", {.id = trace::ReasonId::AddressFamily}, "",
                  group.error().code);
  if (!id.is_datagram())
    return refuse("rdma_join_multicast", {.id = trace::ReasonId::MulticastService});
  if (!group->is_multicast())
    return refuse("rdma_join_multicast", {.id = trace::ReasonId::NotMulticast});
  if (id.device == nullptr)
    return wrong_turn("rdma_join_multicast", " The id is bound to no device yet.");
  Membership& membership = id.memberships.emplace_back();
  store(*group, membership.address);
  membership.context = context;
  membership.only_sends = only_sends;
  membership.group = as_verbs(group->gid());
  const std::scoped_lock held(id.registry.lock);
  id.post({.type = RDMA_CM_EVENT_MULTICAST_JOIN}, nullptr, &membership);
  return {};
}

// `place` of id.memberships goes.
void leave(Id& id, std::list<Membership>::iterator place) {
  {
    const std::scoped_lock held(id.registry.lock);
    id.events().forget(*place);
  }
  if (id.event != nullptr && TakenEvent::of(id.event).from.membership == &*place)
    acknowledge(&TakenEvent::of(std::exchange(id.event, nullptr)));
  if (place->attached != nullptr) ibv_detach_mcast(place->attached, &place->group, 0);
  place->acknowledged.wait("rdma_leave_multicast");
  id.memberships.erase(place);
}

// Now that the program hears that it has joined.
Outcome<void> attach(Id& id, Membership& membership) {
  if (id.qp == nullptr || membership.only_sends) return {};
  const int code = ibv_attach_mcast(id.qp, &membership.group, 0);
  if (code != 0) return Errno{code};
  membership.attached = id.qp;
  return {};
}

}  // namespace

void describe_join(TakenEvent& event) {
  Id& id = *event.from.about;
  Membership& membership = *event.from.membership;
  cm::Path path = id.path;
  path.remote = gid_of(membership.group);
  path.hop_limit = kHops;
  path.traffic_class = id.type_of_service;
  event.param.ud.private_data = membership.context;
  event.param.ud.ah_attr = address_of_path(path, id.qp_side());
  event.param.ud.qp_num = kEverybody;
  event.param.ud.qkey = RDMA_UDP_QKEY;
  if (const auto attached = attach(id, membership); !attached) {
    event.event = RDMA_CM_EVENT_MULTICAST_ERROR;
    event.status = -attached.error().code;
  }
}

void leave_all(Id& id) {
  while (!id.memberships.empty()) leave(id, id.memberships.begin());
}

BLOCKING_VERB("RDMACM_1.0", int, rdma_join_multicast,
              (rdma_cm_id * verbs, sockaddr* address, void* context)) {
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    const auto joined = join(**id, address, context, false);
    if (!joined) return joined.error();
    return finish(**id, place);
  });
}

BLOCKING_VERB("RDMACM_1.1", int, rdma_join_multicast_ex,
              (rdma_cm_id * verbs, rdma_cm_join_mc_attr_ex* wanted, void* context)) {
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    constexpr std::uint32_t kKnown = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    if (wanted == nullptr || (wanted->comp_mask & kKnown) != kKnown ||
        (wanted->comp_mask & ~kKnown) != 0 ||
        wanted->join_flags > RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER)
      return Errno{EINVAL};
    const auto joined = join(**id, wanted->addr, context,
                             wanted->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER);
    if (!joined) return joined.error();
    return finish(**id, place);
  });
}

VERB("RDMACM_1.0", int, rdma_leave_multicast, (rdma_cm_id * verbs, sockaddr* address)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto known = usable(verbs);
    if (!known) return known.error();
    Id& id = **known;
    if (address == nullptr) return Errno{EINVAL};
    const auto place = std::ranges::find_if(
        id.memberships, [&](const Membership& one) { return is_same(one.address, *address); });
    if (place == id.memberships.end()) return Errno{EADDRNOTAVAIL};
    leave(id, place);
    return 0;
  });
}

}  // namespace softhca::abi
