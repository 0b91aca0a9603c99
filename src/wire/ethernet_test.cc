#include "wire/ethernet.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/prng.h"

namespace softhca::wire {
namespace {

std::vector<std::byte> bytes_of_hex(std::string_view hex) {
  std::vector<std::byte> bytes;
  unsigned digits = 0, value = 0;
  for (const char c : hex) {
    if (c == ' ') continue;
    value = value << 4 | static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10);
    if (++digits % 2 == 0) bytes.push_back(static_cast<std::byte>(value & 0xff));
  }
  return bytes;
}

// 10.0.0.1:1000 -> 10.0.0.2:2000, UDP, as Linux sends it, in a VLAN and without.
constexpr std::string_view kMacs = "020000000002 020000000001";
constexpr std::string_view kIpv4Udp =
    "45b8 001c 0001 4000 40 11 26cf 0a000001 0a000002 03e8 07d0 0008 0000";
constexpr std::string_view kIpv6Tcp =
    "6b812345 0014 06 3f 20010db8000000000000000000000001 20010db8000000000000000000000002 0050 "
    "1f90 00000000 00000000 5002 ffff 0000 0000";

std::vector<std::byte> frame(std::string_view between, std::string_view rest) {
  return bytes_of_hex(std::string(kMacs) + std::string(between) + std::string(rest));
}

TEST(Ethernet, ReadsUdpOverIpv4) {
  const FrameFields fields = fields_of(frame("0800", kIpv4Udp));
  EXPECT_TRUE(fields.has(FrameLayer::Ipv4) && fields.has(FrameLayer::Udp));
  EXPECT_FALSE(fields.has(FrameLayer::Vlan) || fields.has(FrameLayer::Tcp));
  EXPECT_EQ(fields.destination[5], 2);
  EXPECT_EQ(fields.source[5], 1);
  EXPECT_EQ(fields.ipv4_source[3], 1);
  EXPECT_EQ(fields.ipv4_destination[3], 2);
  EXPECT_EQ(fields.traffic_class, 0xb8);
  EXPECT_EQ(fields.hop_limit, 64);
  EXPECT_EQ(fields.protocol, 17);
  EXPECT_EQ(fields.ipv4_flags, 2);  // do not fragment
  EXPECT_EQ(fields.source_port[0] << 8 | fields.source_port[1], 1000);
  EXPECT_EQ(fields.destination_port[0] << 8 | fields.destination_port[1], 2000);
}

TEST(Ethernet, ReadsTcpOverIpv6BehindAVlanTag) {
  const FrameFields fields = fields_of(frame("8100 6005 86dd", kIpv6Tcp));
  EXPECT_TRUE(fields.has(FrameLayer::Vlan) && fields.has(FrameLayer::Ipv6));
  EXPECT_TRUE(fields.has(FrameLayer::Tcp));
  EXPECT_EQ(fields.vlan_tag[0] << 8 | fields.vlan_tag[1], 0x6005);
  EXPECT_EQ(fields.ether_type[0] << 8 | fields.ether_type[1], 0x86dd);
  EXPECT_EQ(fields.traffic_class, 0xb8);
  EXPECT_EQ(fields.flow_label[1] << 16 | fields.flow_label[2] << 8 | fields.flow_label[3], 0x12345);
  EXPECT_EQ(fields.hop_limit, 63);
  EXPECT_EQ(fields.ipv6_destination[15], 2);
  EXPECT_EQ(fields.destination_port[0] << 8 | fields.destination_port[1], 8080);
}

// Whatever is cut off or wrong in a header, what stands before it is told and nothing behind it.
TEST(Ethernet, SaysNothingOfAHeaderThatIsCutShort) {
  for (const auto& whole : {frame("0800", kIpv4Udp), frame("86dd", kIpv6Tcp)})
    for (std::size_t bytes = 0; bytes <= whole.size(); ++bytes) {
      const FrameFields fields = fields_of(ConstBytes(whole).first(bytes));
      const std::size_t ip = fields_of(whole).has(FrameLayer::Ipv4) ? 20 : 40;
      EXPECT_EQ(fields.has(FrameLayer::Ipv4) || fields.has(FrameLayer::Ipv6), bytes >= 14 + ip);
      EXPECT_EQ(fields.has(FrameLayer::Udp) || fields.has(FrameLayer::Tcp), bytes >= 14 + ip + 4);
      if (bytes < 14) {
        EXPECT_TRUE(matches(fields, {}, fields));
      }
    }
  auto short_header = frame("0800", kIpv4Udp);
  short_header[14] = std::byte{0x44};  // a header of 16 bytes is none
  EXPECT_FALSE(fields_of(short_header).has(FrameLayer::Ipv4));
  auto fragment = frame("0800", kIpv4Udp);
  fragment[21] = std::byte{1};  // not the first one: no ports there
  EXPECT_TRUE(fields_of(fragment).has(FrameLayer::Ipv4));
  EXPECT_FALSE(fields_of(fragment).has(FrameLayer::Udp));
}

TEST(Ethernet, NoBytesOfAnybodyMakeItReadBeyondThem) {
  Prng random(7);
  for (int round = 0; round < 20000; ++round) {
    auto bytes = frame(round % 2 == 0 ? "0800" : "86dd", round % 2 == 0 ? kIpv4Udp : kIpv6Tcp);
    for (int change = 0; change < 4; ++change)
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.below(256));
    bytes.resize(random.below(bytes.size() + 1));
    const std::vector<std::byte> exact(bytes.begin(), bytes.end());
    const FrameFields fields = fields_of(exact);
    EXPECT_FALSE(fields.has(FrameLayer::Ipv4) && fields.has(FrameLayer::Ipv6));
  }
}

TEST(Ethernet, AMaskSaysWhichBitsCount) {
  const FrameFields fields = fields_of(frame("0800", kIpv4Udp));
  FrameFields value, mask;
  EXPECT_TRUE(matches(fields, value, mask));
  value.ipv4_source[0] = 10;
  mask.ipv4_source[0] = 0xff;
  EXPECT_TRUE(matches(fields, value, mask));
  value.ipv4_source[3] = 0x81;
  mask.ipv4_source[3] = 0x0f;
  EXPECT_TRUE(matches(fields, value, mask));
  mask.ipv4_source[3] = 0x8f;
  EXPECT_FALSE(matches(fields, value, mask));
}

// The vectors of Microsoft's document, IPv4: with and without the ports of TCP.
TEST(Toeplitz, GivesThePublishedHashes) {
  const std::vector<std::uint8_t> key = {
      0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
      0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
      0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};
  const std::vector<std::uint8_t> first = {66,  9,  149,       187,        161,       142,
                                           100, 80, 2794 >> 8, 2794 & 255, 1766 >> 8, 1766 & 255};
  EXPECT_EQ(toeplitz_hash(key, std::span(first).first(8)), 0x323e8fc2u);
  EXPECT_EQ(toeplitz_hash(key, first), 0x51ccc178u);
  const std::vector<std::uint8_t> second = {
      199, 92, 111, 2, 65, 69, 140, 83, 14230 >> 8, 14230 & 255, 4739 >> 8, 4739 & 255};
  EXPECT_EQ(toeplitz_hash(key, std::span(second).first(8)), 0xd718262au);
  EXPECT_EQ(toeplitz_hash(key, second), 0xc626b0eau);
  EXPECT_EQ(toeplitz_hash(key, {}), 0u);
}

}  // namespace
}  // namespace softhca::wire
