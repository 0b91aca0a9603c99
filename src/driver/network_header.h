// What stands in front of a datagram that was received: who sent it, and to which of our addresses.
//
// Spec  IBTA annex A17.4.5.1: the header of IPv6, or that of IPv4 in the last 20 of 40 bytes
#pragma once
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "driver/attributes.h"

namespace softhca::driver {

// The address of the sender, from the address that the datagram came to. `header` are 40 bytes.
// FAILS WITH BadResponse (neither IPv4 nor IPv6), GidIndexUnset (not to an address of ours)
Result<transport::AddressVector, trace::Reason> answer_address(ConstBytes header,
                                                               std::span<const GidEntry> gids);

}  // namespace softhca::driver
