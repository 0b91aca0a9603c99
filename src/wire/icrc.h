// ICRC: the checksum that covers what no switch may change.
//
// The CRC-32 of Ethernet over eight bytes of ones, the IP and UDP headers with their mutable
// fields set to ones, the BTH with its byte 4 set to ones, and the rest; stored least significant
// byte first.
//
// Spec  IBTA annex A17.3.3; worked example in icrc_test.cc, from a packet of Linux rxe
#pragma once
#include <array>
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

// icrc_change() for one who asks again and again for packets of a few sizes.
class IcrcChanges {
 public:
  std::uint32_t of(std::uint16_t identification, std::size_t packet_bytes);

 private:
  struct Row {
    std::size_t packet_bytes{};              // 0: not made yet
    std::array<std::uint32_t, 16> of_bit{};  // of the identification
  };
  std::array<Row, 8> rows_;
};

// The same answers as icrc() and check_icrc(), for one who asks for packets of a few paths and
// sizes: what the headers in front of the BTH come to is kept.
class IcrcMemory {
 public:
  std::uint32_t icrc(const Datagram& datagram, ConstBytes packet);
  // `likely`: the identification to try second, where it is hidden.
  IcrcVerdict check(const Datagram& datagram, ConstBytes udp_payload, std::uint16_t likely);

 private:
  struct Row {
    std::size_t packet_bytes{};  // 0: not made yet
    Gid source;
    Gid destination;
    std::uint16_t source_port{};
    std::uint16_t destination_port{};
    std::uint16_t identification{};
    std::uint32_t crc{};
  };
  std::array<Row, 16> rows_;
  IcrcChanges changes_;
};

}  // namespace softhca::wire
