// Particulars: what a person wants to know of the objects that a refusal is about.
//
// A reason's row says which rule was broken; this says by what: whose region it is, how long, with
// which rights and registered where; which peer was silent; which attributes are missing.
//
// Threads  called with the device owned
#pragma once
#include <string>

#include "driver/queue_pair.h"
#include "trace/reason.h"

namespace softhca::nic {
struct Silence;
}

namespace softhca::driver {

struct EngineState;

// "queue pair 0x3ed8d1"
std::string name_of(wire::Qpn qpn);

// Sentences, or nothing. `qp` is the queue pair concerned; may be null.
std::string particulars_of(const EngineState& state, const trace::Reason& reason,
                           const QueuePair* qp);

// Of a queue pair that sends again because its peer does not acknowledge: the way there, what was
// heard of the peer, and what to look at in that case.
std::string silence_of(const EngineState& state, const QueuePair& qp, const nic::Silence& silence);

}  // namespace softhca::driver
