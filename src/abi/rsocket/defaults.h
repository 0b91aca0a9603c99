// Defaults: what a host's administrator has said about rsockets, in files under /etc/rdma/rsocket.
//
// Each has one number: mem_default, wmem_default (bytes of the receive and send ring),
// sqsize_default, rqsize_default, inline_default, iomap_size, polling_time (microseconds),
// wake_up_interval (milliseconds).
#pragma once
#include "base/clock.h"
#include "rsocket/stream.h"

namespace softhca::abi {

struct Defaults {
  rsocket::StreamShape shape{};
  std::uint32_t inline_bytes = 64;
  // Before a thread sleeps: what waking it costs, and the device's thread before it. Stock: 10 us.
  Duration polls = microseconds(200);
  Duration sleeps = milliseconds(5000);  // at most, before it looks again
};

// Read once.
const Defaults& defaults();

}  // namespace softhca::abi
