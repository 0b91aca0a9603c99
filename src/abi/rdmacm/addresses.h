// Where an id is: its own address and port, and the way to the peer's.
#pragma once
#include "abi/rdmacm/id.h"

namespace softhca::abi {

// All of these fail as the calls that they stand for.
Outcome<void> bind(Id& id, const sockaddr& address);
Outcome<void> resolve_address(Id& id, const sockaddr* source, const sockaddr& destination,
                              int timeout_ms);
Outcome<void> resolve_route(Id& id);

}  // namespace softhca::abi
