#include "wire/opcode.h"

#include <algorithm>
#include <iterator>

#include "base/assert.h"
#include "wire/packet.h"

namespace softhca::wire {
namespace {

using enum Service;
using enum Place;
using enum Header;
using Op = Operation;
using K = Kind;

constexpr bool kPayload = true;
constexpr bool kBare = false;

constexpr OpcodeInfo row(Service service, Operation operation, std::string_view name, Kind kind,
                         Place place, bool has_payload, std::array<Header, 3> headers = {}) {
  return {
      opcode_of(service, operation), name, service, operation, kind, place, has_payload, headers};
}

constexpr OpcodeInfo kOpcodes[] = {
    row(Rc, Op::SendFirst, "RC_SEND_FIRST", K::Send, First, kPayload),
    row(Rc, Op::SendMiddle, "RC_SEND_MIDDLE", K::Send, Middle, kPayload),
    row(Rc, Op::SendLast, "RC_SEND_LAST", K::Send, Last, kPayload),
    row(Rc, Op::SendLastImm, "RC_SEND_LAST_IMM", K::Send, Last, kPayload, {Imm}),
    row(Rc, Op::SendOnly, "RC_SEND_ONLY", K::Send, Only, kPayload),
    row(Rc, Op::SendOnlyImm, "RC_SEND_ONLY_IMM", K::Send, Only, kPayload, {Imm}),
    row(Rc, Op::WriteFirst, "RC_WRITE_FIRST", K::Write, First, kPayload, {Reth}),
    row(Rc, Op::WriteMiddle, "RC_WRITE_MIDDLE", K::Write, Middle, kPayload),
    row(Rc, Op::WriteLast, "RC_WRITE_LAST", K::Write, Last, kPayload),
    row(Rc, Op::WriteLastImm, "RC_WRITE_LAST_IMM", K::Write, Last, kPayload, {Imm}),
    row(Rc, Op::WriteOnly, "RC_WRITE_ONLY", K::Write, Only, kPayload, {Reth}),
    row(Rc, Op::WriteOnlyImm, "RC_WRITE_ONLY_IMM", K::Write, Only, kPayload, {Reth, Imm}),
    row(Rc, Op::ReadRequest, "RC_READ_REQUEST", K::ReadRequest, Only, kBare, {Reth}),
    row(Rc, Op::ReadResponseFirst, "RC_READ_RESP_FIRST", K::ReadResponse, First, kPayload, {Aeth}),
    row(Rc, Op::ReadResponseMiddle, "RC_READ_RESP_MIDDLE", K::ReadResponse, Middle, kPayload),
    row(Rc, Op::ReadResponseLast, "RC_READ_RESP_LAST", K::ReadResponse, Last, kPayload, {Aeth}),
    row(Rc, Op::ReadResponseOnly, "RC_READ_RESP_ONLY", K::ReadResponse, Only, kPayload, {Aeth}),
    row(Rc, Op::Acknowledge, "RC_ACK", K::Acknowledge, Only, kBare, {Aeth}),
    row(Rc, Op::AtomicAcknowledge, "RC_ATOMIC_ACK", K::AtomicAcknowledge, Only, kBare,
        {Aeth, AtomicAckEth}),
    row(Rc, Op::CompareSwap, "RC_CMP_SWAP", K::Atomic, Only, kBare, {AtomicEth}),
    row(Rc, Op::FetchAdd, "RC_FETCH_ADD", K::Atomic, Only, kBare, {AtomicEth}),
    row(Rc, Op::SendLastInvalidate, "RC_SEND_LAST_INV", K::Send, Last, kPayload, {Ieth}),
    row(Rc, Op::SendOnlyInvalidate, "RC_SEND_ONLY_INV", K::Send, Only, kPayload, {Ieth}),
    row(Rc, Op::Flush, "RC_FLUSH", K::Flush, Only, kBare, {Feth, Reth}),
    row(Rc, Op::AtomicWrite, "RC_ATOMIC_WRITE", K::AtomicWrite, Only, kPayload, {Reth}),

    row(Uc, Op::SendFirst, "UC_SEND_FIRST", K::Send, First, kPayload),
    row(Uc, Op::SendMiddle, "UC_SEND_MIDDLE", K::Send, Middle, kPayload),
    row(Uc, Op::SendLast, "UC_SEND_LAST", K::Send, Last, kPayload),
    row(Uc, Op::SendLastImm, "UC_SEND_LAST_IMM", K::Send, Last, kPayload, {Imm}),
    row(Uc, Op::SendOnly, "UC_SEND_ONLY", K::Send, Only, kPayload),
    row(Uc, Op::SendOnlyImm, "UC_SEND_ONLY_IMM", K::Send, Only, kPayload, {Imm}),
    row(Uc, Op::WriteFirst, "UC_WRITE_FIRST", K::Write, First, kPayload, {Reth}),
    row(Uc, Op::WriteMiddle, "UC_WRITE_MIDDLE", K::Write, Middle, kPayload),
    row(Uc, Op::WriteLast, "UC_WRITE_LAST", K::Write, Last, kPayload),
    row(Uc, Op::WriteLastImm, "UC_WRITE_LAST_IMM", K::Write, Last, kPayload, {Imm}),
    row(Uc, Op::WriteOnly, "UC_WRITE_ONLY", K::Write, Only, kPayload, {Reth}),
    row(Uc, Op::WriteOnlyImm, "UC_WRITE_ONLY_IMM", K::Write, Only, kPayload, {Reth, Imm}),

    row(Ud, Op::SendOnly, "UD_SEND_ONLY", K::Send, Only, kPayload, {Deth}),
    row(Ud, Op::SendOnlyImm, "UD_SEND_ONLY_IMM", K::Send, Only, kPayload, {Deth, Imm}),

    // The operation bits of a CNP, 0x01, mean nothing of their own.
    row(Cnp, Op::SendMiddle, "CNP", K::Congestion, Only, kPayload),

    // Only requests name the shared receive queue; answers go to the requester as in RC.
    row(Xrc, Op::SendFirst, "XRC_SEND_FIRST", K::Send, First, kPayload, {Xrceth}),
    row(Xrc, Op::SendMiddle, "XRC_SEND_MIDDLE", K::Send, Middle, kPayload, {Xrceth}),
    row(Xrc, Op::SendLast, "XRC_SEND_LAST", K::Send, Last, kPayload, {Xrceth}),
    row(Xrc, Op::SendLastImm, "XRC_SEND_LAST_IMM", K::Send, Last, kPayload, {Xrceth, Imm}),
    row(Xrc, Op::SendOnly, "XRC_SEND_ONLY", K::Send, Only, kPayload, {Xrceth}),
    row(Xrc, Op::SendOnlyImm, "XRC_SEND_ONLY_IMM", K::Send, Only, kPayload, {Xrceth, Imm}),
    row(Xrc, Op::WriteFirst, "XRC_WRITE_FIRST", K::Write, First, kPayload, {Xrceth, Reth}),
    row(Xrc, Op::WriteMiddle, "XRC_WRITE_MIDDLE", K::Write, Middle, kPayload, {Xrceth}),
    row(Xrc, Op::WriteLast, "XRC_WRITE_LAST", K::Write, Last, kPayload, {Xrceth}),
    row(Xrc, Op::WriteLastImm, "XRC_WRITE_LAST_IMM", K::Write, Last, kPayload, {Xrceth, Imm}),
    row(Xrc, Op::WriteOnly, "XRC_WRITE_ONLY", K::Write, Only, kPayload, {Xrceth, Reth}),
    row(Xrc, Op::WriteOnlyImm, "XRC_WRITE_ONLY_IMM", K::Write, Only, kPayload, {Xrceth, Reth, Imm}),
    row(Xrc, Op::ReadRequest, "XRC_READ_REQUEST", K::ReadRequest, Only, kBare, {Xrceth, Reth}),
    row(Xrc, Op::ReadResponseFirst, "XRC_READ_RESP_FIRST", K::ReadResponse, First, kPayload,
        {Aeth}),
    row(Xrc, Op::ReadResponseMiddle, "XRC_READ_RESP_MIDDLE", K::ReadResponse, Middle, kPayload),
    row(Xrc, Op::ReadResponseLast, "XRC_READ_RESP_LAST", K::ReadResponse, Last, kPayload, {Aeth}),
    row(Xrc, Op::ReadResponseOnly, "XRC_READ_RESP_ONLY", K::ReadResponse, Only, kPayload, {Aeth}),
    row(Xrc, Op::Acknowledge, "XRC_ACK", K::Acknowledge, Only, kBare, {Aeth}),
    row(Xrc, Op::AtomicAcknowledge, "XRC_ATOMIC_ACK", K::AtomicAcknowledge, Only, kBare,
        {Aeth, AtomicAckEth}),
    row(Xrc, Op::CompareSwap, "XRC_CMP_SWAP", K::Atomic, Only, kBare, {Xrceth, AtomicEth}),
    row(Xrc, Op::FetchAdd, "XRC_FETCH_ADD", K::Atomic, Only, kBare, {Xrceth, AtomicEth}),
    row(Xrc, Op::SendLastInvalidate, "XRC_SEND_LAST_INV", K::Send, Last, kPayload, {Xrceth, Ieth}),
    row(Xrc, Op::SendOnlyInvalidate, "XRC_SEND_ONLY_INV", K::Send, Only, kPayload, {Xrceth, Ieth}),
};

constexpr std::uint8_t kNoRow = 0xff;
static_assert(std::size(kOpcodes) < kNoRow);

// Which row an opcode has: the hot path looks opcodes up by index, never by search.
constexpr std::array<std::uint8_t, 256> kRowOf = [] {
  std::array<std::uint8_t, 256> rows{};
  rows.fill(kNoRow);
  for (std::size_t i = 0; i < std::size(kOpcodes); ++i)
    rows[kOpcodes[i].opcode] = static_cast<std::uint8_t>(i);
  return rows;
}();

constexpr bool no_opcode_has_two_rows() {
  std::size_t used = 0;
  for (const std::uint8_t row : kRowOf) used += row != kNoRow ? 1u : 0u;
  return used == std::size(kOpcodes);
}
static_assert(no_opcode_has_two_rows());
static_assert(std::ranges::all_of(kOpcodes, [](const OpcodeInfo& info) {
  return info.header_bytes() <= kMaxHeaderBytes;
}));

}  // namespace

const OpcodeInfo* find_opcode(std::uint8_t opcode) {
  const std::uint8_t row = kRowOf[opcode];
  return row == kNoRow ? nullptr : &kOpcodes[row];
}

const OpcodeInfo* find_reserved_opcode(std::uint8_t opcode) {
  static constexpr OpcodeInfo kReserved[] = {
      row(Rc, {}, "RC_RESERVED", K::Reserved, Only, kPayload),
      row(Xrc, {}, "XRC_RESERVED", K::Reserved, Only, kPayload)};
  if (find_opcode(opcode) != nullptr) return nullptr;
  const auto* const found =
      std::ranges::find(kReserved, static_cast<Service>(opcode >> 5), &OpcodeInfo::service);
  return found == std::end(kReserved) ? nullptr : found;
}

Operation send_operation(Place place, bool with_immediate) {
  switch (place) {
    case First:
      return Op::SendFirst;
    case Middle:
      return Op::SendMiddle;
    case Last:
      return with_immediate ? Op::SendLastImm : Op::SendLast;
    case Only:
      return with_immediate ? Op::SendOnlyImm : Op::SendOnly;
  }
  ASSERT(false);
  return {};
}

Operation send_invalidate_operation(Place place) {
  ASSERT(place == Last || place == Only);
  return place == Last ? Op::SendLastInvalidate : Op::SendOnlyInvalidate;
}

Operation write_operation(Place place, bool with_immediate) {
  switch (place) {
    case First:
      return Op::WriteFirst;
    case Middle:
      return Op::WriteMiddle;
    case Last:
      return with_immediate ? Op::WriteLastImm : Op::WriteLast;
    case Only:
      return with_immediate ? Op::WriteOnlyImm : Op::WriteOnly;
  }
  ASSERT(false);
  return {};
}

Operation read_response_operation(Place place) {
  switch (place) {
    case First:
      return Op::ReadResponseFirst;
    case Middle:
      return Op::ReadResponseMiddle;
    case Last:
      return Op::ReadResponseLast;
    case Only:
      return Op::ReadResponseOnly;
  }
  ASSERT(false);
  return {};
}

}  // namespace softhca::wire
