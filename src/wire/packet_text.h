// One line about a packet; the same in a test, a trace and the command line.
#pragma once
#include <string>

#include "wire/packet.h"

namespace softhca::wire {

// "RC_WRITE_ONLY qp 0x000014 psn 0xabc000 A va 0x33456000 rkey 0x506 len 64 data 64"
std::string packet_text(const Headers& headers, std::size_t payload_bytes);

}  // namespace softhca::wire
