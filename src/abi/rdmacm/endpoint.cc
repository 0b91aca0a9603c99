// Endpoints: an id with its addresses, its way and its queue pair in one call.
#include <cerrno>
#include <memory>
#include <span>

#include "abi/entry.h"
#include "abi/rdmacm/addresses.h"
#include "abi/rdmacm/queue_pair.h"
#include "abi/rdmacm/tell.h"

namespace softhca::abi {
namespace {

constexpr int kPatienceMs = 2'000;

// For requests: each gets a queue pair like `wanted`.
Outcome<void> begin_passive(Id& id, const rdma_addrinfo& from, ibv_pd* domain,
                            const ibv_qp_init_attr* wanted) {
  if (from.ai_src_addr == nullptr) return Errno{EINVAL};
  if (const auto bound = bind(id, *from.ai_src_addr); !bound) return bound;
  if (domain != nullptr) id.pd = domain;
  if (wanted == nullptr) return {};
  id.qp_of_requests = *wanted;
  id.qp_of_requests->qp_type = id.qp_type;
  return {};
}

Outcome<void> begin_active(Id& id, const rdma_addrinfo& to, ibv_pd* domain,
                           ibv_qp_init_attr* wanted, std::uintptr_t place) {
  if (to.ai_dst_addr == nullptr) return Errno{EINVAL};
  if (const auto begun = resolve_address(id, to.ai_src_addr, *to.ai_dst_addr, kPatienceMs); !begun)
    return begun;
  if (const auto resolved = finish(id, place); !resolved) return resolved.error();
  if (const auto begun = resolve_route(id); !begun) return begun;
  if (const auto routed = finish(id, place); !routed) return routed.error();
  if (to.ai_connect_len != 0) {
    const std::span bytes(static_cast<const std::byte*>(to.ai_connect), to.ai_connect_len);
    id.connect_bytes.assign(bytes.begin(), bytes.end());
  }
  if (wanted == nullptr) return {};
  wanted->qp_type = id.qp_type;
  return create_qp(id, domain, *wanted);
}

Outcome<Id*> next_request(Id& listener, std::uintptr_t place) {
  if (!listener.is_synchronous || listener.stage != Stage::Listening)
    return wrong_turn("rdma_get_request", " The id must listen, and be a synchronous one.");
  if (listener.event != nullptr)
    acknowledge(&TakenEvent::of(std::exchange(listener.event, nullptr)));
  const auto taken = listener.events().take(place);
  if (!taken) return taken.error();
  if ((*taken)->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
    acknowledge(*taken);
    return Errno{EINVAL};
  }
  Id& id = Id::of((*taken)->id);
  if (listener.qp_of_requests) {
    ibv_qp_init_attr wanted = *listener.qp_of_requests;
    if (const auto made = create_qp(id, listener.pd, wanted); !made) {
      acknowledge(*taken);
      destroy(id);
      return made.error();
    }
  }
  id.event = *taken;
  return &id;
}

}  // namespace

BLOCKING_VERB("RDMACM_1.0", int, rdma_create_ep,
              (rdma_cm_id * *id, rdma_addrinfo* from, ibv_pd* pd, ibv_qp_init_attr* wanted)) {
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    if (from == nullptr || id == nullptr) return Errno{EINVAL};
    const auto created =
        create_id(nullptr, nullptr, static_cast<rdma_port_space>(from->ai_port_space),
                  static_cast<ibv_qp_type>(from->ai_qp_type));
    if (!created) return created.error();
    const auto begun = (from->ai_flags & RAI_PASSIVE) != 0
                           ? begin_passive(**created, *from, pd, wanted)
                           : begin_active(**created, *from, pd, wanted, place);
    if (!begun) {
      destroy(**created);
      return begun.error();
    }
    *id = *created;
    return 0;
  });
}

VERB("RDMACM_1.0", void, rdma_destroy_ep, (rdma_cm_id * id)) {
  Id* const one = live(id);
  if (one == nullptr) return;
  destroy_qp(*one);
  destroy_srq(*one);
  destroy(*one);
}

BLOCKING_VERB("RDMACM_1.0", int, rdma_get_request, (rdma_cm_id * listener, rdma_cm_id** id)) {
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    const auto known = usable(listener);
    if (!known) return known.error();
    if (id == nullptr) return Errno{EINVAL};
    const auto next = next_request(**known, place);
    if (!next) return next.error();
    *id = *next;
    return 0;
  });
}

}  // namespace softhca::abi
