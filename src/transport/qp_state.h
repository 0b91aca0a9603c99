// The states of a queue pair as a table: from, to, service -> required and optional attributes.
//
// Spec  IBTA vol. 1, 10.3.1 and 11.2.5.2 (Modify Queue Pair); man ibv_modify_qp
#pragma once
#include "base/result.h"
#include "trace/reason.h"
#include "transport/attributes.h"

namespace softhca::transport {

// Whether `mask` is allowed for the transition. RESET and ERR can be reached from every state.
// FAILS WITH BadTransition; AttributeMissing or AttributeNotAllowed, with object = the mask bits.
trace::Reason check_transition(QpType type, QpState from, QpState to, QpAttributeMask mask);

// Spec terms: "RESET", "INIT", ...
const char* state_name(QpState state);

}  // namespace softhca::transport
