// Caller: who drives a device, and whether it will be back in a moment.
//
// A program that polls wants its completion now and will call again at once; an acknowledgement
// may wait for that. One who may leave leaves nothing undone.
#pragma once
#include <cstdint>

namespace softhca::nic {

enum class Caller : std::uint8_t { MayLeave, ComesBack };

}  // namespace softhca::nic
