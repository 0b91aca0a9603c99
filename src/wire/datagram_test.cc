#include "wire/datagram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

namespace softhca::wire {
namespace {

using Buffer = std::vector<std::byte>;

Buffer packet_of(const Datagram& datagram, std::size_t udp_payload_bytes) {
  Buffer packet(kMaxIpUdpBytes + udp_payload_bytes, std::byte{0xff});
  const std::size_t headers = emit_ip_udp(datagram, udp_payload_bytes, packet);
  packet.resize(headers + udp_payload_bytes);
  packet.shrink_to_fit();
  return packet;
}

Datagram ipv4() {
  return {.source = Gid::of_ipv4({192, 168, 77, 2}),
          .destination = Gid::of_ipv4({192, 168, 77, 3}),
          .source_port = 0xc121,
          .identification = std::uint16_t{0xea1a}};
}
Datagram ipv6() {
  return {.source = *Gid::parse("fd77::2"),
          .destination = *Gid::parse("fd77::3"),
          .source_port = 0xc121,
          .traffic_class = 0xab,
          .flow_label = 0x12345};
}

std::string hex(ConstBytes bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(b) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

TEST(Datagram, WritesTheHeadersThatLinuxWrote) {
  // The first packet of tests/golden/send.pcap, captured from Linux 6.1 rxe.
  Buffer out(28, std::byte{0xff});
  EXPECT_EQ(emit_ip_udp(ipv4(), 80, out), 28u);
  EXPECT_EQ(hex(out), "4500006cea1a400040113510c0a84d02c0a84d03c12112b700580000");
}

TEST(Datagram, WritesIpv6Headers) {
  Buffer out(48, std::byte{0xff});
  EXPECT_EQ(emit_ip_udp(ipv6(), 80, out), 48u);
  EXPECT_EQ(hex(out),
            "6ab12345"
            "0058"
            "11"
            "40"
            "fd770000000000000000000000000002"
            "fd770000000000000000000000000003"
            "c12112b700580000");
}

TEST(Datagram, ParsesWhatItEmitted) {
  Prng prng(4);
  for (int i = 0; i < 20'000; ++i) {
    Datagram d = prng.chance(1, 2) ? ipv4() : ipv6();
    for (std::size_t byte = 12; byte < 16; ++byte)
      d.source.bytes[byte] = static_cast<std::uint8_t>(prng.next());
    d.source_port = static_cast<std::uint16_t>(prng.next());
    d.destination_port = static_cast<std::uint16_t>(prng.next());
    d.traffic_class = static_cast<std::uint8_t>(prng.next());
    d.hop_limit = static_cast<std::uint8_t>(prng.next());
    if (d.is_ipv4()) {
      d.identification = static_cast<std::uint16_t>(prng.next());
      d.dont_fragment = prng.chance(1, 2);
    } else {
      d.flow_label = static_cast<std::uint32_t>(prng.next()) & 0xf'ffff;
    }
    const std::size_t bytes = prng.below(2000);
    const Buffer packet = packet_of(d, bytes);
    const auto parsed = parse_ip_udp(packet);
    ASSERT_TRUE(parsed);
    ASSERT_EQ(parsed->datagram, d);
    ASSERT_EQ(parsed->udp_payload.size(), bytes);
    ASSERT_EQ(parsed->udp_payload.data() + bytes, packet.data() + packet.size());
  }
}

TEST(Datagram, MakesIpv4ChecksumsThatAddUpToAllOnes) {
  Prng prng(5);
  for (int i = 0; i < 1000; ++i) {
    Datagram d = ipv4();
    d.identification = static_cast<std::uint16_t>(prng.next());
    d.traffic_class = static_cast<std::uint8_t>(prng.next());
    const Buffer packet = packet_of(d, prng.below(4096));
    std::uint32_t sum = 0;
    for (std::size_t at = 0; at < kIpv4Bytes; at += 2) sum += load_be<std::uint16_t>(packet, at);
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    ASSERT_EQ(sum, 0xffffu);
  }
}

TEST(Datagram, RefusesEveryTruncation) {
  for (const Datagram& d : {ipv4(), ipv6()}) {
    const Buffer packet = packet_of(d, 20);
    for (std::size_t length = 0; length < packet.size(); ++length) {
      const Buffer cut(packet.begin(), packet.begin() + static_cast<long>(length));
      EXPECT_FALSE(parse_ip_udp(cut)) << length;
    }
  }
}

TEST(Datagram, CutsThePaddingOfShortEthernetFrames) {
  for (const Datagram& d : {ipv4(), ipv6()}) {
    Buffer packet = packet_of(d, 5);
    packet.resize(packet.size() + 13);
    const auto parsed = parse_ip_udp(packet);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->udp_payload.size(), 5u);
  }
}

// `packet` with one byte replaced.
Buffer with_byte(Buffer packet, std::size_t at, unsigned value) {
  packet.at(at) = static_cast<std::byte>(value);
  return packet;
}

TEST(Datagram, RefusesWhatIsNotOnePlainUdpDatagram) {
  const Buffer v4 = packet_of(ipv4(), 20);
  const Buffer v6 = packet_of(ipv6(), 20);
  ASSERT_TRUE(parse_ip_udp(v4) && parse_ip_udp(v6));
  EXPECT_FALSE(parse_ip_udp(with_byte(v4, 0, 0x55)));  // version 5
  EXPECT_FALSE(parse_ip_udp(with_byte(v4, 0, 0x46)));  // options
  EXPECT_FALSE(parse_ip_udp(with_byte(v4, 0, 0x44)));  // shorter than a header
  EXPECT_FALSE(parse_ip_udp(with_byte(v4, 6, 0x20)));  // more fragments
  EXPECT_FALSE(parse_ip_udp(with_byte(v4, 7, 0x01)));  // a later fragment
  EXPECT_FALSE(parse_ip_udp(with_byte(v4, 9, 6)));     // TCP
  EXPECT_FALSE(parse_ip_udp(with_byte(v4, 3, 19)));    // total length below a header
  EXPECT_FALSE(parse_ip_udp(with_byte(v4, 3, 27)));    // and below IP and UDP header
  EXPECT_FALSE(parse_ip_udp(with_byte(v4, 25, 7)));    // UDP length below its header
  EXPECT_FALSE(parse_ip_udp(with_byte(v4, 25, 29)));   // UDP longer than IP
  EXPECT_FALSE(parse_ip_udp(with_byte(v6, 6, 0)));     // an extension header
  EXPECT_FALSE(parse_ip_udp(with_byte(v6, 45, 7)));
  EXPECT_FALSE(parse_ip_udp(with_byte(v6, 45, 29)));
}

TEST(Datagram, RefusesIpv4MappedAddressesInIpv6) {
  // Taken for IPv4 they would let an IPv6 packet speak for an IPv4 peer.
  for (const std::size_t address_at : {std::size_t{8}, std::size_t{24}}) {
    Buffer packet = packet_of(ipv6(), 20);
    const Gid mapped = Gid::of_ipv4({10, 0, 0, 1});
    const auto bytes = bytes_of(mapped.bytes);
    std::copy(bytes.begin(), bytes.end(), packet.begin() + static_cast<long>(address_at));
    EXPECT_FALSE(parse_ip_udp(packet));
  }
}

// RFC 3168, 5: 3 is CE; the rest of the byte is the differentiated services field.
TEST(Datagram, IsMarkedByOneOfFourCodes) {
  for (const unsigned dscp : {0u, 0x68u, 0xfcu})
    for (const unsigned ecn : {0u, 1u, 2u, 3u}) {
      const auto traffic_class = static_cast<std::uint8_t>(dscp | ecn);
      EXPECT_EQ(is_marked(traffic_class), ecn == 3);
      EXPECT_EQ(with_ecn(traffic_class, kEcnCapable), dscp | 2);
    }
}

}  // namespace
}  // namespace softhca::wire
