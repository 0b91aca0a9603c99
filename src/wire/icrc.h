// ICRC: the checksum that covers what no switch may change.
//
// The CRC-32 of Ethernet over eight bytes of ones, the IP and UDP headers with their mutable
// fields set to ones, the BTH with its byte 4 set to ones, and the rest; stored least significant
// byte first. Computed by libdeflate.
//
// Spec  IBTA annex A17.3.3; worked example in icrc_test.cc, from a packet of Linux rxe
#pragma once
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "wire/datagram.h"

namespace softhca::wire {

// The ICRC of a datagram whose UDP payload, without the four ICRC bytes, is `packet`.
// REQUIRES: datagram.identification is known if IPv4.
std::uint32_t icrc(const Datagram& datagram, ConstBytes packet);

// What the ICRC of an IPv4 datagram with identification 0 is XORed with when the identification is
// another. `packet_bytes` as above: without the ICRC.
std::uint32_t icrc_change(std::uint16_t identification, std::size_t packet_bytes);

// The identification of an IPv4 datagram where it is hidden: the one that makes the ICRC right.
// Nothing if none does.
std::optional<std::uint16_t> find_identification(const Datagram& datagram, ConstBytes udp_payload);

enum class IcrcVerdict : std::uint8_t {
  Right,
  Solved,  // right for exactly one identification, which is hidden: a 16-bit check only
  Wrong,
};

// `udp_payload` includes the four ICRC bytes. With a hidden identification, 0 is tried first, then
// the one that would make the CRC right is solved for (CRCs are linear).
IcrcVerdict check_icrc(const Datagram& datagram, ConstBytes udp_payload);

}  // namespace softhca::wire
