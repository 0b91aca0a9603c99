// Streaming worlds: two ends of an rsocket connection over a queue pair that is reliable and slow
// at random. Both programs write, read, map memory, write into what the other has mapped, and shut
// down, when they like; shapes of rings and queues are random, one of the ends may list its buffers
// in the other order of bytes.
//
// Oracle  each end reads exactly the other's bytes, in order; what was mapped holds what was placed
//         there before the bytes that follow; no request leaves the memory it is for, or the send
//         queue; and at last both ends know that it is over.
#pragma once
#include <cstdint>
#include <string>

namespace softhca::rsocket {

struct StreamingOutcome {
  std::string wrong;  // "" if nothing
  std::uint64_t bytes{};
  std::uint64_t placed{};
  std::uint64_t waits{};  // of a message for a receive
  std::uint64_t half_shut{};
};

// Everything about a world follows from its seed.
StreamingOutcome run_streaming_world(std::uint64_t seed);

}  // namespace softhca::rsocket
