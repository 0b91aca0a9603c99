// Which process of this host a management datagram is for: whoever listens to the service of a
// request, and whose communication id everything else names.
#pragma once
#include <functional>

#include "base/bytes.h"
#include "local/service_names.h"
#include "wire/cm_message.h"

namespace softhca::driver {

// `packet` is a whole UDP payload for queue pair 1. Nobody: what names no block, is no datagram of
// a connection manager, or asks for a service that nobody has.
local::ServiceNames::Listener management_route(
    ConstBytes packet,
    const std::function<local::ServiceNames::Listener(wire::ServiceId)>& find_service);

}  // namespace softhca::driver
