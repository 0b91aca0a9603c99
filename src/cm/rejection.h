// Rejection: why a peer refuses, as a reason that a person can act on.
#pragma once
#include "trace/reason.h"
#include "wire/cm_message.h"

namespace softhca::cm {

// The reason's object is the number that the peer gave.
trace::Reason reason_of(wire::RejReason reason);
trace::Reason reason_of(wire::SidrStatus status);

}  // namespace softhca::cm
