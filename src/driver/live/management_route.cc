#include "driver/live/management_route.h"

#include <type_traits>

#include "cm/agent.h"
#include "wire/packet.h"

namespace softhca::driver {

using Listener = local::ServiceNames::Listener;
using Found = local::ServiceNames::Found;

namespace {

// By this host's id.
Listener route_by(wire::CommId id) {
  const std::uint32_t block = cm::block_of(id);
  if (!local::can_be_owned(block)) return {};
  return {Found::Block, block};
}

}  // namespace

Listener management_route(ConstBytes packet,
                          const std::function<Listener(wire::ServiceId)>& find_service) {
  const auto parsed = wire::parse(packet);
  if (!parsed) return {};
  const auto mad = wire::parse_cm(parsed->payload);
  if (!mad) return {};
  return std::visit(
      [&](const auto& message) -> Listener {
        using Message = std::decay_t<decltype(message)>;
        if constexpr (std::is_same_v<Message, wire::CmReq> ||
                      std::is_same_v<Message, wire::CmSidrReq>)
          return find_service(message.service);
        else if constexpr (std::is_same_v<Message, wire::CmSidrRep>)
          return route_by(message.request_id);
        else
          return route_by(message.remote_id);
      },
      mad->message);
}

}  // namespace softhca::driver
