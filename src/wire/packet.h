// Headers, Packet: a RoCEv2 packet as plain values, parsed once; and its bytes, emitted whole.
//
// A packet here is the UDP payload: BTH, extension headers, payload, 0-3 pad bytes, ICRC. Which
// headers count is said by the opcode's row; the others are zero, so that values compare.
//
// Spec        IBTA vol. 1, 9.2 (BTH) and 9.3; annex A17 (RoCEv2)
// Invariants  (1) emit owns every bit of its bytes: parse(emit(h)) == h, whatever lay there before
//             (2) parse never reads past its input and refuses what it does not understand
#pragma once
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "base/result.h"
#include "wire/opcode.h"
#include "wire/psn.h"

namespace softhca::wire {

inline constexpr std::uint16_t kUdpPort = 4791;  // IANA, RoCEv2
inline constexpr std::size_t kBthBytes = 12;
inline constexpr std::size_t kIcrcBytes = 4;
inline constexpr std::size_t kMaxHeaderBytes = 12 + 4 + 28 + 16;  // more than any opcode needs
inline constexpr std::uint32_t kMaxMtu = 4096;
inline constexpr std::size_t kCnpPayloadBytes = 16;  // reserved
inline constexpr std::uint16_t kDefaultPkey = 0xffff;

// ACK syndrome: bits 6:5 are the kind, bits 4:0 its value.
enum class AethKind : std::uint8_t { Ack = 0, RnrNak = 1, Nak = 3 };
enum class NakCode : std::uint8_t {
  SequenceError = 0,
  InvalidRequest = 1,
  RemoteAccess = 2,
  RemoteOperational = 3,
  InvalidRdRequest = 4,
};
inline constexpr std::uint8_t kCreditsInvalid = 31;  // "no end-to-end credits"

struct Bth {
  std::uint8_t opcode{};
  bool solicited{};
  bool migrated{};
  std::uint8_t pad{};  // 0..3
  std::uint16_t pkey{};
  bool fecn{};
  bool becn{};
  Qpn dest_qpn{};
  bool ack_request{};
  Psn psn{};
  friend bool operator==(const Bth&, const Bth&) = default;
};

struct Headers {
  Bth bth;
  // DETH, XRCETH
  std::uint32_t qkey{};
  Qpn source_qpn{};
  std::uint32_t xrc_srqn{};
  // RETH and AtomicETH share address and key
  std::uint64_t remote_address{};
  Key rkey{};
  std::uint32_t dma_length{};
  std::uint64_t swap_or_add{};
  std::uint64_t compare{};
  // AETH
  AethKind aeth_kind{};
  std::uint8_t aeth_value{};  // credits, RNR timer or NakCode
  Msn msn{};
  // AtomicAckETH, ImmDt, IETH, FETH
  std::uint64_t original{};
  std::uint32_t immediate{};  // host order of the 32 bits on the wire
  Key invalidate_key{};
  std::uint32_t flush{};
  friend bool operator==(const Headers&, const Headers&) = default;
};

enum class ParseError : std::uint8_t {
  Truncated,
  BadVersion,
  UnknownOpcode,
  PadTooLong,
  PayloadUnexpected,
};

struct Packet {
  const OpcodeInfo* info{};
  Headers headers;
  ConstBytes payload;    // without pad
  std::uint32_t icrc{};  // as found; checking it is wire/icrc.h's
};

// `bytes` is the whole UDP payload. Reserved bits are ignored. Pad bytes must be there, but need
// not be what pad_for says; a CNP must carry its 16 reserved bytes, which are its payload.
Result<Packet, ParseError> parse(ConstBytes bytes);

// A packet of RC or XRC whose opcode is not defined: what follows the BTH is its payload. Nothing
// for those of other services. REQUIRES: parse() says UnknownOpcode.
std::optional<Packet> parse_reserved(ConstBytes bytes);

// Writes BTH and extension headers. Gives how many bytes: find_opcode(...)->header_bytes().
// REQUIRES: a known opcode, pad <= 3, room for header_bytes().
std::size_t emit(const Headers& headers, Bytes out);

constexpr std::uint8_t pad_for(std::size_t payload_bytes) {
  return static_cast<std::uint8_t>((4 - payload_bytes % 4) % 4);
}

}  // namespace softhca::wire
