// PcapFormat: capture files, as bytes.
//
// The classic format with nanoseconds, link type Ethernet. MAC addresses are locally administered
// and made from the GIDs; an identification that is not known is written as 0. The 40 bytes of
// format are written here and not by libpcap: linked statically, that library brings D-Bus and
// netlink code into a library which is injected into other people's programs.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "link/link.h"

namespace softhca::link {

inline constexpr std::size_t kPcapHeadBytes = 24;

std::array<std::byte, kPcapHeadBytes> pcap_head();

// One frame. `stamp_ns` counts from 1970.
void append_pcap_record(std::vector<std::byte>& to, const Frame& frame, std::int64_t stamp_ns);

}  // namespace softhca::link
