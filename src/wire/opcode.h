// Opcode: one row per BTH opcode; offsets and lengths are computed from it, never written twice.
//
// Spec  IBTA vol. 1, 9.2.1 (OpCode), 9.2.2-9.2.8 (extension headers)
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace softhca::wire {

enum class Header : std::uint8_t {
  None,
  Deth,
  Xrceth,
  Reth,
  AtomicEth,
  Aeth,
  AtomicAckEth,
  Imm,
  Ieth,
  Feth,
};

constexpr std::size_t size_of(Header header) {
  switch (header) {
    case Header::None:
      return 0;
    case Header::Deth:
      return 8;
    case Header::Xrceth:
      return 4;
    case Header::Reth:
      return 16;
    case Header::AtomicEth:
      return 28;
    case Header::Aeth:
      return 4;
    case Header::AtomicAckEth:
      return 8;
    case Header::Imm:
      return 4;
    case Header::Ieth:
      return 4;
    case Header::Feth:
      return 4;
  }
  return 0;
}

// The upper three bits of the opcode.
enum class Service : std::uint8_t { Rc = 0, Uc = 1, Rd = 2, Ud = 3, Cnp = 4, Xrc = 5 };

// The lower five bits, common to all services that have the operation.
enum class Operation : std::uint8_t {
  SendFirst = 0x00,
  SendMiddle = 0x01,
  SendLast = 0x02,
  SendLastImm = 0x03,
  SendOnly = 0x04,
  SendOnlyImm = 0x05,
  WriteFirst = 0x06,
  WriteMiddle = 0x07,
  WriteLast = 0x08,
  WriteLastImm = 0x09,
  WriteOnly = 0x0a,
  WriteOnlyImm = 0x0b,
  ReadRequest = 0x0c,
  ReadResponseFirst = 0x0d,
  ReadResponseMiddle = 0x0e,
  ReadResponseLast = 0x0f,
  ReadResponseOnly = 0x10,
  Acknowledge = 0x11,
  AtomicAcknowledge = 0x12,
  CompareSwap = 0x13,
  FetchAdd = 0x14,
  SendLastInvalidate = 0x16,
  SendOnlyInvalidate = 0x17,
  Flush = 0x1c,
  AtomicWrite = 0x1d,
};

// What a packet is about, without its place in the message.
enum class Kind : std::uint8_t {
  Send,
  Write,
  ReadRequest,
  ReadResponse,
  Acknowledge,
  Atomic,
  AtomicAcknowledge,
  Flush,
  AtomicWrite,
  Congestion,
  Reserved,  // a request, as far as anybody knows
};
enum class Place : std::uint8_t { First, Middle, Last, Only };

struct OpcodeInfo {
  std::uint8_t opcode{};
  std::string_view name;  // "RC_SEND_FIRST"
  Service service{};
  Operation operation{};
  Kind kind{};
  Place place{};
  bool has_payload{};
  std::array<Header, 3> headers{};  // after the BTH, in order; None where unused

  constexpr bool starts() const { return place == Place::First || place == Place::Only; }
  constexpr bool ends() const { return place == Place::Last || place == Place::Only; }
  constexpr bool has(Header header) const {
    return headers[0] == header || headers[1] == header || headers[2] == header;
  }
  // Bytes of BTH and extension headers.
  constexpr std::size_t header_bytes() const {
    return 12 + size_of(headers[0]) + size_of(headers[1]) + size_of(headers[2]);
  }
  constexpr bool is_request() const {
    return kind == Kind::Send || kind == Kind::Write || kind == Kind::ReadRequest ||
           kind == Kind::Atomic || kind == Kind::Flush || kind == Kind::AtomicWrite ||
           kind == Kind::Reserved;
  }
};

constexpr std::uint8_t opcode_of(Service service, Operation operation) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(service) << 5 |
                                   static_cast<unsigned>(operation));
}

// Null if the opcode is not defined.
const OpcodeInfo* find_opcode(std::uint8_t opcode);
// For opcodes of RC and XRC that are not defined, which a responder has to refuse; else null. The
// row stands for all of a service.
const OpcodeInfo* find_reserved_opcode(std::uint8_t opcode);

// For SEND and WRITE of RC: the operation at `place`, with or without immediate data.
Operation send_operation(Place place, bool with_immediate);
// At the place where the message ends.
Operation send_invalidate_operation(Place place);
Operation write_operation(Place place, bool with_immediate);
Operation read_response_operation(Place place);

}  // namespace softhca::wire
