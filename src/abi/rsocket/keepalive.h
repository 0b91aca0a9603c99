// Keepalive: asks the peers of some sockets from time to time whether they are there.
//
// A thread of ours does it, as long as there is such a socket: a peer that is gone shows as a
// failed request, which wakes who sleeps.
//
// Threads  any
#pragma once
#include <memory>

#include "base/clock.h"

namespace softhca::abi {

class StreamSocket;

// From now on, every `period`; also to change it. FAILS silently where there is no memory for it
void start_keepalive(const std::shared_ptr<StreamSocket>& socket, Duration period);
void stop_keepalive(const StreamSocket& socket);

}  // namespace softhca::abi
