#include "wire/cm_message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

namespace softhca::wire {
namespace {

constexpr std::size_t kMessageAt = 24;

std::vector<std::byte> random_mad(Prng& prng, std::size_t message) {
  std::vector<std::byte> bytes(kMadBytes);
  for (std::byte& b : bytes) b = static_cast<std::byte>(prng.below(256));
  const std::byte front[] = {std::byte{1}, std::byte{7}, std::byte{2}, std::byte{3}};
  std::ranges::copy(front, bytes.begin());
  store_be(Bytes(bytes), 16, static_cast<std::uint16_t>(kFirstCmAttribute + message));
  return bytes;
}

// Which bytes are the fields of a message: those that change what is parsed.
std::vector<std::byte> mask_of(std::size_t message) {
  std::vector<std::byte> mask(kMadBytes);
  Prng prng(1);
  const auto zeros = [&] {
    auto bytes = random_mad(prng, message);
    std::fill(bytes.begin() + 4, bytes.begin() + 16, std::byte{0});
    std::fill(bytes.begin() + 18, bytes.end(), std::byte{0});
    return bytes;
  }();
  const auto plain = parse_cm(zeros);
  EXPECT_TRUE(plain);
  for (std::size_t bit = kMessageAt * 8; bit < kMadBytes * 8; ++bit) {
    auto changed = zeros;
    const auto one = static_cast<std::byte>(1u << bit % 8);
    changed[bit / 8] |= one;
    const auto parsed = parse_cm(changed);
    if (parsed && !(*parsed == *plain)) mask[bit / 8] |= one;
  }
  return mask;
}

TEST(CmMessage, WritesBackEveryBitThatItReads) {
  Prng prng(7);
  for (std::size_t message = 0; message < std::variant_size_v<CmMessage>; ++message) {
    const auto mask = mask_of(message);
    for (int round = 0; round < 200; ++round) {
      const auto bytes = random_mad(prng, message);
      const auto mad = parse_cm(bytes);
      ASSERT_TRUE(mad);
      ASSERT_EQ(mad->message.index(), message);
      const CmMadBytes again = emit_cm(*mad);
      for (std::size_t i = kMessageAt; i < kMadBytes; ++i)
        ASSERT_EQ(again[i], bytes[i] & mask[i]) << "message " << message << " byte " << i;
      EXPECT_TRUE(std::equal(again.begin() + 8, again.begin() + 18, bytes.begin() + 8));
      EXPECT_TRUE(std::equal(again.begin() + 20, again.begin() + 24, bytes.begin() + 20));
      const auto reparsed = parse_cm(again);
      ASSERT_TRUE(reparsed);
      EXPECT_EQ(*reparsed, *mad);
    }
  }
}

// How many bits of each message are reserved, counted in the tables of the specification.
TEST(CmMessage, ReservesWhatTheTablesReserve) {
  constexpr std::size_t kReservedBits[] = {
      8 + 32 + 2 * (6 + 3 + 3),  // REQ
      6 + 3,                     // MRA
      6 + 1,                     // REJ
      4,                         // REP
      0,
      8,
      0,  // RTU, DREQ, DREP
      16,
      0,  // SIDR_REQ, SIDR_REP
  };
  for (std::size_t message = 0; message < std::variant_size_v<CmMessage>; ++message) {
    std::size_t reserved = 0;
    const auto mask = mask_of(message);
    for (std::size_t i = kMessageAt; i < kMadBytes; ++i)
      reserved += 8u - static_cast<std::size_t>(std::popcount(std::to_integer<unsigned>(mask[i])));
    EXPECT_EQ(reserved, kReservedBits[message]) << "message " << message;
  }
}

TEST(CmMessage, PutsFieldsWhereTheTablesSay) {
  CmReq req;
  req.local_id = {0x01020304};
  req.vendor_id = 0x050607;
  req.path_mtu = 5;
  req.rnr_retry_count = 6;
  req.max_cm_retries = 15;
  req.srq = true;
  req.extended_transport = 1;
  req.primary.flow_label = 0xabcde;
  req.primary.packet_rate = 18;
  req.alternate.ack_timeout = 31;
  req.private_bytes[0] = std::byte{0x77};
  const CmMadBytes bytes = emit_cm({.transaction = 9, .modifier = 0x11223344, .message = req});
  const auto at = [&](std::size_t i) { return std::to_integer<unsigned>(bytes[i]); };
  EXPECT_EQ(load_be<std::uint64_t>(bytes, 8), 9u);
  EXPECT_EQ(load_be<std::uint32_t>(bytes, 20), 0x11223344u);
  EXPECT_EQ(load_be<std::uint32_t>(bytes, kMessageAt), 0x01020304u);
  EXPECT_EQ(load_be<std::uint32_t>(bytes, kMessageAt + 4), 0x050607u);
  EXPECT_EQ(at(kMessageAt + 50), 0x56u);
  EXPECT_EQ(at(kMessageAt + 51), 0xf9u);
  EXPECT_EQ(load_be<std::uint32_t>(bytes, kMessageAt + 88), 0xabcde012u);
  EXPECT_EQ(at(kMessageAt + 139), 0xf8u);
  EXPECT_EQ(at(kMessageAt + 140), 0x77u);

  CmRep rep;
  rep.qpn = {0x111111};
  rep.vendor_id = 0xa1b2c3;
  const CmMadBytes reply = emit_cm({.message = rep});
  EXPECT_EQ(load_be<std::uint32_t>(reply, kMessageAt + 12), 0x111111a1u);
  EXPECT_EQ(load_be<std::uint32_t>(reply, kMessageAt + 16), 0xb2u);
  EXPECT_EQ(load_be<std::uint32_t>(reply, kMessageAt + 20), 0xc3u);

  CmSidrRep sidr;
  sidr.vendor_id = 0xa1b2c3;
  sidr.qpn = {0x222222};
  const CmMadBytes resolved = emit_cm({.message = sidr});
  EXPECT_EQ(load_be<std::uint16_t>(resolved, kMessageAt + 6), 0xa1b2u);
  EXPECT_EQ(load_be<std::uint32_t>(resolved, kMessageAt + 8), 0x222222c3u);
}

TEST(CmMessage, RefusesWhatIsNoDatagramOfTheConnectionManager) {
  Prng prng(3);
  const auto good = random_mad(prng, 0);
  for (const std::size_t length : {std::size_t{0}, std::size_t{23}, std::size_t{255}}) {
    const std::vector<std::byte> shorter(good.begin(),
                                         good.begin() + static_cast<std::ptrdiff_t>(length));
    const auto parsed = parse_cm(shorter);
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error(), CmParseError::WrongLength);
  }
  auto longer = good;
  longer.push_back({});
  EXPECT_FALSE(parse_cm(longer));
  for (std::size_t i = 0; i < 4; ++i) {
    auto other = good;
    other[i] ^= std::byte{0x80};
    const auto parsed = parse_cm(other);
    ASSERT_FALSE(parsed) << i;
    EXPECT_EQ(parsed.error(), CmParseError::NotCm);
  }
  for (const unsigned number : {0x01u, 0x0fu, 0x19u, 0x1au, 0xffffu}) {
    const auto attribute = static_cast<std::uint16_t>(number);
    auto other = good;
    store_be(Bytes(other), 16, attribute);
    const auto parsed = parse_cm(other);
    ASSERT_FALSE(parsed) << attribute;
    EXPECT_EQ(parsed.error(), CmParseError::UnknownAttribute);
  }
}

}  // namespace
}  // namespace softhca::wire
