#include "rsocket/message.h"

#include <gtest/gtest.h>

namespace softhca::rsocket {
namespace {

TEST(Message, KindIsInTheUpperThreeBits) {
  EXPECT_EQ(immediate_of({Kind::Bytes, 5}), 5u);
  EXPECT_EQ(immediate_of({Kind::Credits, 0x1234}), 0x80001234u);
  EXPECT_EQ(immediate_of({Kind::Mapped, 3}), 0xc0000003u);
  EXPECT_EQ(immediate_of({Kind::Control, 2}), 0xe0000002u);
  for (const std::uint32_t immediate : {0u, 0x1fffffffu, 0x80001234u, 0xe0000000u, 0xffffffffu})
    EXPECT_EQ(immediate_of(message_of(immediate)), immediate);
}

TEST(Message, ListedBuffersAreInTheOrderOfTheirReader) {
  std::array<std::byte, kBufferBytes> entry;
  store_buffer(entry, {0x0102030405060708, 0x11121314, 0x21222324}, false);
  EXPECT_EQ(load_le<std::uint64_t>(entry), 0x0102030405060708u);
  EXPECT_EQ(load_le<std::uint32_t>(entry, 8), 0x11121314u);
  EXPECT_EQ(load_le<std::uint32_t>(entry, 12), 0x21222324u);
  store_buffer(entry, {0x0102030405060708, 0x11121314, 0x21222324}, true);
  EXPECT_EQ(load_be<std::uint64_t>(entry), 0x0102030405060708u);
  EXPECT_EQ(load_be<std::uint32_t>(entry, 12), 0x21222324u);
}

TEST(Message, MappingsSurviveTheirList) {
  std::array<std::byte, kMappingBytes> entry;
  const Mapping mapping{0x1000, {0x7f0012345678, 0x201, 4096}};
  store_mapping(entry, mapping, false);
  EXPECT_EQ(load_mapping(entry), mapping);
  store_mapping(entry, mapping, true);
  EXPECT_EQ(load_be<std::uint64_t>(entry), mapping.offset);
  EXPECT_EQ(load_be<std::uint32_t>(entry, 16), mapping.buffer.key);
}

TEST(Message, GreetingIsFortyBytesInNetworkOrder) {
  const Greeting greeting{.maps = true,
                          .credits = 384,
                          .mappings = 512,
                          .list = {0x7f00aabbccdd, 0x203, 2},
                          .first = {0x7f0011223344, 0x204, 65536}};
  const auto bytes = greeting_bytes(greeting);
  EXPECT_EQ(load_be<std::uint32_t>(bytes), 0x01020180u);  // version 1, maps, 384 credits
  EXPECT_EQ(load_be<std::uint32_t>(bytes, 4), 130u);      // 512 mappings
  EXPECT_EQ(load_be<std::uint64_t>(bytes, 8), greeting.list.address);
  EXPECT_EQ(load_be<std::uint32_t>(bytes, 20), 2u);
  EXPECT_EQ(load_be<std::uint64_t>(bytes, 24), greeting.first.address);
  EXPECT_EQ(load_be<std::uint32_t>(bytes, 36), 65536u);
  EXPECT_EQ(parse_greeting(bytes), greeting);
}

TEST(Message, GreetingOfAnotherVersionOrTooShortIsNone) {
  auto bytes = greeting_bytes({.credits = 1});
  EXPECT_TRUE(parse_greeting(bytes));
  EXPECT_FALSE(parse_greeting(ConstBytes(bytes).first(kGreetingBytes - 1)));
  std::array<std::byte, 56> padded{};
  std::ranges::copy(bytes, padded.begin());
  EXPECT_TRUE(parse_greeting(padded));
  bytes[0] = std::byte{2};
  EXPECT_FALSE(parse_greeting(bytes));
}

TEST(Message, WhoHasNoListOfMappingsHasNoMappings) {
  auto bytes = greeting_bytes({.maps = true, .mappings = 7});
  EXPECT_EQ(parse_greeting(bytes)->mappings, 7u);
  bytes[1] = std::byte{0};
  EXPECT_EQ(parse_greeting(bytes)->mappings, 0u);
}

TEST(Message, BigEndianPeersAreKnown) {
  EXPECT_TRUE(parse_greeting(greeting_bytes({.big_endian = true}))->big_endian);
  EXPECT_FALSE(parse_greeting(greeting_bytes({}))->big_endian);
}

TEST(Message, ManyMappingsAreToldInStepsOf256) {
  EXPECT_EQ(tellable_mappings(0), 0u);
  EXPECT_EQ(tellable_mappings(128), 128u);
  EXPECT_EQ(tellable_mappings(200), 128u);
  EXPECT_EQ(tellable_mappings(300), 256u);
  EXPECT_EQ(tellable_mappings(1'000'000), 127u * 256);
}

}  // namespace
}  // namespace softhca::rsocket
