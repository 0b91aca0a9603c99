#include "wire/ip_service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace softhca::wire {
namespace {

TEST(IpService, PortSpacesAreServiceIds) {
  EXPECT_EQ(service_of(PortSpace::Tcp, 7174).value, 0x01061c06u);  // tests/golden/cm-rping.pcap
  EXPECT_EQ(service_of(PortSpace::Udp, 7174).value, 0x01111c06u);  // cm-udaddy.pcap
  EXPECT_EQ(port_of(service_of(PortSpace::Ib, 1)), 1u);
  for (const PortSpace space : {PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib})
    EXPECT_TRUE(is_ip_service(service_of(space, 0xffff)));
  EXPECT_FALSE(is_ip_service({0x01071c06}));
  EXPECT_FALSE(is_ip_service({0x1000'0000'0106'1c06}));
}

TEST(IpService, AddressesOfBothFamiliesComeBack) {
  for (const char* const text : {"192.0.2.1", "fd00::1"}) {
    const IpAddresses addresses{
        .source_port = 0x8ca1, .source = *Gid::parse(text), .destination = *Gid::parse(text)};
    std::vector<std::byte> bytes(kIpServiceBytes, std::byte{0xff});
    emit_ip_service(addresses, bytes);
    EXPECT_EQ(parse_ip_service(bytes), addresses);
  }
}

TEST(IpService, AnIpv4AddressIsItsLastFourBytes) {
  std::vector<std::byte> bytes(kIpServiceBytes, std::byte{0xff});
  const Gid gid = Gid::of_ipv4({192, 0, 2, 1});
  emit_ip_service({.source_port = 1, .source = gid, .destination = gid}, bytes);
  EXPECT_EQ(load_be<std::uint32_t>(bytes, 0), 0x00400001u);
  for (const std::size_t at : {4u, 20u}) {
    EXPECT_TRUE(std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                            bytes.begin() + static_cast<std::ptrdiff_t>(at + 12),
                            [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(load_be<std::uint32_t>(bytes, at + 12), 0xc0000201u);
  }
}

TEST(IpService, AnotherVersionIsNotUnderstood) {
  std::vector<std::byte> bytes(kIpServiceBytes);
  EXPECT_FALSE(parse_ip_service(bytes)) << "IP version 0";
  bytes[1] = std::byte{0x40};
  EXPECT_TRUE(parse_ip_service(bytes));
  bytes[0] = std::byte{0x10};
  EXPECT_FALSE(parse_ip_service(bytes)) << "major version 1";
  bytes[0] = std::byte{0};
  bytes.pop_back();
  EXPECT_FALSE(parse_ip_service(bytes)) << "cut short";
}

}  // namespace
}  // namespace softhca::wire
