#include "wire/packet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <vector>

#include "base/prng.h"

namespace softhca::wire {
namespace {

// Exactly as large as asked, on the heap: a sanitizer sees every read outside.
using Buffer = std::vector<std::byte>;

Buffer bytes_from(std::initializer_list<unsigned> values) {
  Buffer bytes;
  for (const unsigned value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

std::vector<const OpcodeInfo*> all_opcodes() {
  std::vector<const OpcodeInfo*> all;
  for (unsigned opcode = 0; opcode < 256; ++opcode)
    if (const auto* info = find_opcode(static_cast<std::uint8_t>(opcode))) all.push_back(info);
  return all;
}

// Where the numbers for a packet come from: boundary values or random ones.
using Source = std::function<std::uint64_t()>;

void fill_extension(Header header, const Source& next, Headers& h) {
  const auto u24 = [&] { return static_cast<std::uint32_t>(next()) & kMask24; };
  const auto u32 = [&] { return static_cast<std::uint32_t>(next()); };
  switch (header) {
    case Header::None:
      break;
    case Header::Deth:
      h.qkey = u32(), h.source_qpn = {u24()};
      break;
    case Header::Xrceth:
      h.xrc_srqn = u24();
      break;
    case Header::Reth:
      h.remote_address = next(), h.rkey = {u32()}, h.dma_length = u32();
      break;
    case Header::AtomicEth:
      h.remote_address = next(), h.rkey = {u32()}, h.swap_or_add = next(), h.compare = next();
      break;
    case Header::Aeth:
      h.aeth_kind = static_cast<AethKind>(next() & 3);
      h.aeth_value = static_cast<std::uint8_t>(next() & 31);
      h.msn = {u24()};
      break;
    case Header::AtomicAckEth:
      h.original = next();
      break;
    case Header::Imm:
      h.immediate = u32();
      break;
    case Header::Ieth:
      h.invalidate_key = {u32()};
      break;
    case Header::Feth:
      h.flush = u32() & 0x3f;
      break;
  }
}

Headers headers_from(const OpcodeInfo& info, const Source& next, std::size_t payload_bytes) {
  Headers h;
  h.bth.opcode = info.opcode;
  h.bth.solicited = (next() & 1) != 0;
  h.bth.migrated = (next() & 1) != 0;
  h.bth.pad = pad_for(payload_bytes);
  h.bth.pkey = static_cast<std::uint16_t>(next());
  h.bth.fecn = (next() & 1) != 0;
  h.bth.becn = (next() & 1) != 0;
  h.bth.dest_qpn = {static_cast<std::uint32_t>(next()) & kMask24};
  h.bth.ack_request = (next() & 1) != 0;
  h.bth.psn = {static_cast<std::uint32_t>(next()) & kMask24};
  for (const Header header : info.headers) fill_extension(header, next, h);
  return h;
}

std::vector<std::size_t> payloads_of(const OpcodeInfo& info) {
  if (info.kind == Kind::Congestion) return {16};
  if (!info.has_payload) return {0};
  return {0, 1, 2, 3, 4, 8, 256, kMaxMtu};
}

void expect_round_trip(const OpcodeInfo& info, const Headers& headers, std::size_t payload_bytes,
                       std::byte before) {
  SCOPED_TRACE(info.name);
  Buffer packet(info.header_bytes() + payload_bytes + headers.bth.pad + kIcrcBytes, before);
  ASSERT_EQ(emit(headers, packet), info.header_bytes());
  store_le<std::uint32_t>(packet, packet.size() - kIcrcBytes, 0x1234'5678);
  const auto parsed = parse(packet);
  ASSERT_TRUE(parsed) << static_cast<int>(parsed.error());
  EXPECT_EQ(parsed->info, &info);
  EXPECT_EQ(parsed->headers, headers);
  EXPECT_EQ(parsed->payload.size(), payload_bytes);
  EXPECT_EQ(parsed->payload.data(), packet.data() + info.header_bytes());
  EXPECT_EQ(parsed->icrc, 0x1234'5678u);

  // Reserved bits, too, are the emitter's: it writes the same whatever lay there before.
  Buffer again(packet.size(), ~before);
  ASSERT_EQ(emit(headers, again), info.header_bytes());
  EXPECT_TRUE(std::equal(again.begin(), again.begin() + static_cast<long>(info.header_bytes()),
                         packet.begin()));
}

TEST(Packet, ParsesWhatItEmittedForEveryOpcodeAndBoundary) {
  for (const OpcodeInfo* info : all_opcodes()) {
    for (const std::size_t payload_bytes : payloads_of(*info)) {
      for (const std::uint64_t value :
           {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1},
            std::uint64_t{0xaaaa'aaaa'aaaa'aaaa}, std::uint64_t{0x5555'5555'5555'5555},
            std::uint64_t{0x8000'0000'8080'8000}}) {
        const Headers headers = headers_from(
            *info, [=] { return value; }, payload_bytes);
        expect_round_trip(*info, headers, payload_bytes, std::byte{0xff});
      }
    }
  }
}

TEST(Packet, ParsesWhatItEmittedForRandomValues) {
  Prng prng(3);
  for (int round = 0; round < 50; ++round) {
    for (const OpcodeInfo* info : all_opcodes()) {
      const auto sizes = payloads_of(*info);
      const std::size_t payload_bytes = sizes[prng.below(sizes.size())];
      const Headers headers = headers_from(
          *info, [&] { return prng.next(); }, payload_bytes);
      expect_round_trip(*info, headers, payload_bytes, static_cast<std::byte>(prng.next()));
    }
  }
}

TEST(Packet, LaysOutTheBthAsTheSpecificationDraws) {
  Headers h;
  h.bth = {.opcode = 0x04,
           .solicited = true,
           .migrated = true,
           .pad = 2,
           .pkey = 0x8001,
           .fecn = true,
           .becn = false,
           .dest_qpn = {0x123456},
           .ack_request = true,
           .psn = {0xabcdef}};
  Buffer out(12, std::byte{0xff});
  EXPECT_EQ(emit(h, out), 12u);
  EXPECT_EQ(out, bytes_from({0x04, 0xe0, 0x80, 0x01,  //
                             0x80, 0x12, 0x34, 0x56,  //
                             0x80, 0xab, 0xcd, 0xef}));
}

TEST(Packet, PutsTheXrcTargetBeforeTheRdmaHeader) {
  Headers h;
  h.bth = {.opcode = 0xab, .pkey = 0xffff, .dest_qpn = {1}, .psn = {2}};
  h.xrc_srqn = 0xaabbcc;
  h.remote_address = 0x0102030405060708;
  h.rkey = {0x11121314};
  h.dma_length = 0x21222324;
  h.immediate = 0x31323334;
  Buffer out(36, std::byte{0xff});
  EXPECT_EQ(emit(h, out), 36u);
  EXPECT_EQ(
      out,
      bytes_from({0xab, 0,    0xff, 0xff, 0,    0,    0,    1,   0,    0,    0,    2,     // BTH
                  0,    0xaa, 0xbb, 0xcc,                                                 // XRCETH
                  1,    2,    3,    4,    5,    6,    7,    8,   0x11, 0x12, 0x13, 0x14,  // RETH
                  0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34}));  // and ImmDt
}

// CASES C04: the neighbours of the QPN.
TEST(Packet, IgnoresReservedBitsOnReceive) {
  // An ACK with every reserved bit set: BTH byte 4 (below FECN and BECN), byte 8, AETH bit 31.
  const Buffer bytes = bytes_from({0x11, 0x00, 0xff, 0xff, 0x3f, 0, 0, 7, 0x7f, 0, 0, 9,  //
                                   0x9f, 0,    0,    5,    0,    0, 0, 0});
  const auto packet = parse(bytes);
  ASSERT_TRUE(packet);
  Headers expected;
  expected.bth = {.opcode = 0x11, .pkey = 0xffff, .dest_qpn = {7}, .psn = {9}};
  expected.aeth_value = kCreditsInvalid;
  expected.msn = {5};
  EXPECT_EQ(packet->headers, expected);
}

// CASES C02: no length is taken off before it is known to be there.
TEST(Packet, SaysTruncatedForEveryLengthThatLacksHeaders) {
  for (const OpcodeInfo* info : all_opcodes()) {
    Headers headers;
    headers.bth.opcode = info->opcode;
    const std::size_t reserved = info->kind == Kind::Congestion ? 16 : 0;
    const std::size_t whole = info->header_bytes() + reserved + kIcrcBytes;
    Buffer packet(whole);
    emit(headers, packet);
    for (std::size_t length = 0; length < whole; ++length) {
      const Buffer cut(packet.begin(), packet.begin() + static_cast<long>(length));
      const auto parsed = parse(cut);
      ASSERT_FALSE(parsed) << info->name << " of " << length;
      EXPECT_EQ(parsed.error(), ParseError::Truncated) << info->name << " of " << length;
    }
    EXPECT_TRUE(parse(packet)) << info->name;
  }
}

// What parse should say, worked out from lengths alone.
std::optional<ParseError> expected_error(unsigned opcode, std::size_t pad, std::size_t length) {
  if (length < kBthBytes + kIcrcBytes) return ParseError::Truncated;
  const OpcodeInfo* info = find_opcode(static_cast<std::uint8_t>(opcode));
  if (info == nullptr) return ParseError::UnknownOpcode;
  const std::size_t around = info->header_bytes() + kIcrcBytes;
  if (length < around) return ParseError::Truncated;
  if (length < around + pad) return ParseError::PadTooLong;
  const std::size_t payload = length - around - pad;
  if (info->kind == Kind::Congestion && payload < 16) return ParseError::Truncated;
  if (info->kind == Kind::Congestion && payload > 16) return ParseError::PayloadUnexpected;
  if (!info->has_payload && length != around) return ParseError::PayloadUnexpected;
  return std::nullopt;
}

// CASES C02, C03: all 256 opcodes, every pad, every length.
TEST(Packet, JudgesEveryOpcodePadAndLengthWithoutReadingOutside) {
  for (std::size_t length = 0; length <= 80; ++length) {
    Buffer bytes(length, std::byte{0xff});
    for (unsigned opcode = 0; opcode < 256; ++opcode) {
      for (std::size_t pad = 0; pad < 4; ++pad) {
        if (length > 0) bytes[0] = static_cast<std::byte>(opcode);
        if (length > 1) bytes[1] = static_cast<std::byte>(0xc0 | pad << 4);
        const auto parsed = parse(bytes);
        const auto error = expected_error(opcode, pad, length);
        ASSERT_EQ(static_cast<bool>(parsed), !error) << opcode << ' ' << pad << ' ' << length;
        if (error) {
          ASSERT_EQ(parsed.error(), *error) << opcode << ' ' << pad << ' ' << length;
        }
      }
    }
  }
}

// CASES C03: what a responder refuses instead of leaving its peer to wait.
TEST(Packet, KnowsTheServiceOfAReservedOpcode) {
  Buffer bytes(kBthBytes + 5 + kIcrcBytes);
  int found = 0;
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    bytes[0] = static_cast<std::byte>(opcode);
    const auto parsed = parse(bytes);
    if (parsed || parsed.error() != ParseError::UnknownOpcode) continue;
    const auto reserved = parse_reserved(bytes);
    const auto service = static_cast<Service>(opcode >> 5);
    ASSERT_EQ(reserved.has_value(), service == Service::Rc || service == Service::Xrc) << opcode;
    if (!reserved) continue;
    ++found;
    EXPECT_EQ(reserved->info->service, service);
    EXPECT_EQ(reserved->info->kind, Kind::Reserved);
    EXPECT_TRUE(reserved->info->is_request());
    EXPECT_EQ(reserved->headers.bth.opcode, opcode);
    EXPECT_EQ(reserved->payload.size(), 5u);
  }
  EXPECT_EQ(found, 7 + 9);
}

TEST(Packet, RefusesAnyTransportVersionButZero) {
  Buffer packet(kBthBytes + kIcrcBytes);
  Headers headers;
  headers.bth.opcode = opcode_of(Service::Rc, Operation::SendOnly);
  emit(headers, packet);
  EXPECT_TRUE(parse(packet));
  for (unsigned version = 1; version < 16; ++version) {
    packet[1] = static_cast<std::byte>(version);
    const auto parsed = parse(packet);
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error(), ParseError::BadVersion);
  }
}

TEST(Packet, PadsToAMultipleOfFour) {
  for (std::size_t bytes = 0; bytes < 20; ++bytes) {
    EXPECT_EQ((bytes + pad_for(bytes)) % 4, 0u);
    EXPECT_LT(pad_for(bytes), 4);
  }
}

}  // namespace
}  // namespace softhca::wire
