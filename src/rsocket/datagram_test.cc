#include "rsocket/datagram.h"

#include <gtest/gtest.h>

namespace softhca::rsocket {
namespace {

Endpoint ipv4() {
  return {.address = {std::byte{192}, std::byte{0}, std::byte{2}, std::byte{1}}, .port = 7471};
}
Endpoint ipv6() {
  Endpoint endpoint{.is_ipv6 = true, .port = 7471, .flow = 5};
  endpoint.address[0] = std::byte{0xfe};
  endpoint.address[15] = std::byte{0x07};
  return endpoint;
}

TEST(Datagram, SourceOfIpv4TakesEightBytes) {
  std::array<std::byte, kSourceBytesMax> header{};
  EXPECT_EQ(store_source(header, ipv4()), 8u);
  EXPECT_EQ(load_be<std::uint64_t>(header), 0x04081d2fc0000201u);
  EXPECT_EQ(parse_source(header)->endpoint, ipv4());
  EXPECT_EQ(parse_source(header)->bytes, 8u);
}

TEST(Datagram, SourceOfIpv6HasItsFlow) {
  std::array<std::byte, kSourceBytesMax> header{};
  EXPECT_EQ(store_source(header, ipv6()), 24u);
  EXPECT_EQ(load_be<std::uint32_t>(header), 0x06181d2fu);
  EXPECT_EQ(parse_source(header)->endpoint, ipv6());
  EXPECT_EQ(parse_source(header)->bytes, 24u);
}

TEST(Datagram, SourceThatIsCutOrOfAnotherKindIsNone) {
  std::array<std::byte, kSourceBytesMax> header{};
  store_source(header, ipv6());
  for (std::size_t bytes = 0; bytes < header.size(); ++bytes)
    EXPECT_FALSE(parse_source(ConstBytes(header).first(bytes))) << bytes;
  header[1] = std::byte{8};
  EXPECT_FALSE(parse_source(header));
  header[0] = std::byte{5};
  EXPECT_FALSE(parse_source(header));
}

TEST(Datagram, IntroductionTellsTheQueuePair) {
  std::array<std::byte, kIntroductionBytesMax> header{};
  const Introduction introduction{
      .has_bytes = true, .qpn = 0x345678, .address = ipv4().address, .bytes = 16};
  EXPECT_EQ(store_introduction(header, introduction), 16u);
  EXPECT_EQ(load_be<std::uint64_t>(header), 0x5555555504001000u);
  EXPECT_EQ(load_be<std::uint64_t>(header, 8), 0x00345678c0000201u);
  const auto parsed = parse_introduction(header);
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(parsed->has_bytes);
  EXPECT_EQ(parsed->qpn, 0x345678u);
  EXPECT_EQ(parsed->address, ipv4().address);
  EXPECT_EQ(parsed->bytes, 16u);
}

TEST(Datagram, AnswersHaveNoBytes) {
  std::array<std::byte, kIntroductionBytesMax> header{};
  EXPECT_EQ(store_introduction(header, {.qpn = 7, .is_ipv6 = true, .address = ipv6().address}),
            28u);
  const auto parsed = parse_introduction(header);
  ASSERT_TRUE(parsed);
  EXPECT_FALSE(parsed->has_bytes);
  EXPECT_TRUE(parsed->is_ipv6);
  EXPECT_EQ(parsed->address, ipv6().address);
}

TEST(Datagram, WhatIsNoIntroductionIsNone) {
  std::array<std::byte, kIntroductionBytesMax> header{};
  store_introduction(header, {.is_ipv6 = true});
  for (std::size_t bytes = 0; bytes < header.size(); ++bytes)
    EXPECT_FALSE(parse_introduction(ConstBytes(header).first(bytes))) << bytes;
  for (const std::size_t at : {0u, 4u, 5u, 6u}) {
    auto other = header;
    other[at] ^= std::byte{1};
    EXPECT_FALSE(parse_introduction(other)) << at;
  }
}

}  // namespace
}  // namespace softhca::rsocket
