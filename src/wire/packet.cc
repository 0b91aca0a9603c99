#include "wire/packet.h"

#include "base/cursor.h"

namespace softhca::wire {
namespace {

// BTH byte 1: solicited event, migration request, pad count, transport version.
constexpr unsigned kSolicitedBit = 0x80;
constexpr unsigned kMigratedBit = 0x40;
constexpr unsigned kPadShift = 4;
constexpr unsigned kPadMask = 0x3;
constexpr unsigned kVersionMask = 0x0f;
// BTH bytes 4-7 and 8-11, each as one integer with a 24-bit number below.
constexpr std::uint32_t kFecnBit = 0x8000'0000;
constexpr std::uint32_t kBecnBit = 0x4000'0000;
constexpr std::uint32_t kAckRequestBit = 0x8000'0000;
// AETH syndrome; its top bit is reserved.
constexpr unsigned kAethKindShift = 5;
constexpr unsigned kAethKindMask = 0x3;
constexpr unsigned kAethValueMask = 0x1f;
// FETH: placement type (bits 3:0) and selectivity level (bits 5:4).
constexpr std::uint32_t kFlushMask = 0x3f;

Bth take_bth(Cursor& cursor, unsigned& version) {
  Bth bth;
  bth.opcode = cursor.take_be<std::uint8_t>();
  const unsigned flags = cursor.take_be<std::uint8_t>();
  bth.solicited = (flags & kSolicitedBit) != 0;
  bth.migrated = (flags & kMigratedBit) != 0;
  bth.pad = static_cast<std::uint8_t>(flags >> kPadShift & kPadMask);
  version = flags & kVersionMask;
  bth.pkey = cursor.take_be<std::uint16_t>();
  const auto qpn_word = cursor.take_be<std::uint32_t>();
  bth.fecn = (qpn_word & kFecnBit) != 0;
  bth.becn = (qpn_word & kBecnBit) != 0;
  bth.dest_qpn = {qpn_word & kMask24};
  const auto psn_word = cursor.take_be<std::uint32_t>();
  bth.ack_request = (psn_word & kAckRequestBit) != 0;
  bth.psn = {psn_word & kMask24};
  return bth;
}

void take_aeth(Cursor& cursor, Headers& h) {
  const auto word = cursor.take_be<std::uint32_t>();
  const unsigned syndrome = word >> 24;
  h.aeth_kind = static_cast<AethKind>(syndrome >> kAethKindShift & kAethKindMask);
  h.aeth_value = static_cast<std::uint8_t>(syndrome & kAethValueMask);
  h.msn = {word & kMask24};
}

void take_extension(Cursor& cursor, Header header, Headers& h) {
  switch (header) {
    case Header::None:
      break;
    case Header::Deth:
      h.qkey = cursor.take_be<std::uint32_t>();
      h.source_qpn = {cursor.take_be<std::uint32_t>() & kMask24};
      break;
    case Header::Xrceth:
      h.xrc_srqn = cursor.take_be<std::uint32_t>() & kMask24;
      break;
    case Header::Reth:
      h.remote_address = cursor.take_be<std::uint64_t>();
      h.rkey = {cursor.take_be<std::uint32_t>()};
      h.dma_length = cursor.take_be<std::uint32_t>();
      break;
    case Header::AtomicEth:
      h.remote_address = cursor.take_be<std::uint64_t>();
      h.rkey = {cursor.take_be<std::uint32_t>()};
      h.swap_or_add = cursor.take_be<std::uint64_t>();
      h.compare = cursor.take_be<std::uint64_t>();
      break;
    case Header::Aeth:
      take_aeth(cursor, h);
      break;
    case Header::AtomicAckEth:
      h.original = cursor.take_be<std::uint64_t>();
      break;
    case Header::Imm:
      h.immediate = cursor.take_be<std::uint32_t>();
      break;
    case Header::Ieth:
      h.invalidate_key = {cursor.take_be<std::uint32_t>()};
      break;
    case Header::Feth:
      h.flush = cursor.take_be<std::uint32_t>() & kFlushMask;
      break;
  }
}

// The mirror image of Cursor: integers from front to back into bytes of ours.
class Writer {
 public:
  explicit Writer(Bytes out) : out_(out) {}

  template <class T>
  void put(T value) {
    store_be<T>(out_, at_, value);
    at_ += sizeof value;
  }
  std::size_t written() const { return at_; }

 private:
  Bytes out_;
  std::size_t at_ = 0;
};

void put_bth(Writer& writer, const Bth& bth) {
  writer.put(bth.opcode);
  const unsigned flags = (bth.solicited ? kSolicitedBit : 0) | (bth.migrated ? kMigratedBit : 0) |
                         unsigned{bth.pad} << kPadShift;
  writer.put(static_cast<std::uint8_t>(flags));
  writer.put(bth.pkey);
  writer.put((bth.fecn ? kFecnBit : 0) | (bth.becn ? kBecnBit : 0) |
             (bth.dest_qpn.value & kMask24));
  writer.put((bth.ack_request ? kAckRequestBit : 0) | (bth.psn.value & kMask24));
}

void put_aeth(Writer& writer, const Headers& h) {
  const unsigned syndrome = (static_cast<unsigned>(h.aeth_kind) & kAethKindMask) << kAethKindShift |
                            (h.aeth_value & kAethValueMask);
  writer.put(std::uint32_t{syndrome} << 24 | (h.msn.value & kMask24));
}

void put_extension(Writer& writer, Header header, const Headers& h) {
  switch (header) {
    case Header::None:
      break;
    case Header::Deth:
      writer.put(h.qkey);
      writer.put(h.source_qpn.value & kMask24);
      break;
    case Header::Xrceth:
      writer.put(h.xrc_srqn & kMask24);
      break;
    case Header::Reth:
      writer.put(h.remote_address);
      writer.put(h.rkey.value);
      writer.put(h.dma_length);
      break;
    case Header::AtomicEth:
      writer.put(h.remote_address);
      writer.put(h.rkey.value);
      writer.put(h.swap_or_add);
      writer.put(h.compare);
      break;
    case Header::Aeth:
      put_aeth(writer, h);
      break;
    case Header::AtomicAckEth:
      writer.put(h.original);
      break;
    case Header::Imm:
      writer.put(h.immediate);
      break;
    case Header::Ieth:
      writer.put(h.invalidate_key.value);
      break;
    case Header::Feth:
      writer.put(h.flush & kFlushMask);
      break;
  }
}

}  // namespace

Result<Packet, ParseError> parse(ConstBytes bytes) {
  Cursor cursor(bytes);
  if (!cursor.drop_back(kIcrcBytes)) return ParseError::Truncated;

  Packet packet;
  packet.icrc = load_le<std::uint32_t>(bytes.last(kIcrcBytes));
  unsigned version = 0;
  packet.headers.bth = take_bth(cursor, version);
  if (cursor.failed()) return ParseError::Truncated;
  if (version != 0) return ParseError::BadVersion;
  packet.info = find_opcode(packet.headers.bth.opcode);
  if (packet.info == nullptr) return ParseError::UnknownOpcode;

  for (const Header header : packet.info->headers) take_extension(cursor, header, packet.headers);
  if (cursor.failed()) return ParseError::Truncated;
  if (!cursor.drop_back(packet.headers.bth.pad)) return ParseError::PadTooLong;
  packet.payload = cursor.rest();

  if (!packet.info->has_payload && (!packet.payload.empty() || packet.headers.bth.pad != 0))
    return ParseError::PayloadUnexpected;
  if (packet.info->kind == Kind::Congestion) {
    if (packet.payload.size() < kCnpPayloadBytes) return ParseError::Truncated;
    if (packet.payload.size() > kCnpPayloadBytes) return ParseError::PayloadUnexpected;
  }
  return packet;
}

std::optional<Packet> parse_reserved(ConstBytes bytes) {
  Cursor cursor(bytes);
  Packet packet;
  unsigned version = 0;
  ASSERT(cursor.drop_back(kIcrcBytes));
  packet.icrc = load_le<std::uint32_t>(bytes.last(kIcrcBytes));
  packet.headers.bth = take_bth(cursor, version);
  packet.info = find_reserved_opcode(packet.headers.bth.opcode);
  packet.payload = cursor.rest();
  if (packet.info == nullptr) return std::nullopt;
  return packet;
}

std::size_t emit(const Headers& headers, Bytes out) {
  const OpcodeInfo* info = find_opcode(headers.bth.opcode);
  ASSERT(info != nullptr && headers.bth.pad <= kPadMask && info->header_bytes() <= out.size());
  Writer writer(out);
  put_bth(writer, headers.bth);
  for (const Header header : info->headers) put_extension(writer, header, headers);
  ASSERT(writer.written() == info->header_bytes());
  return writer.written();
}

}  // namespace softhca::wire
