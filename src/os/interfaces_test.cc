#include "os/interfaces.h"

#include <gtest/gtest.h>
#include <linux/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "os/clock.h"
#include "os/random.h"
#include "os/test_child.h"
#include "os/udp_socket.h"

namespace softhca::os {
namespace {

TEST(Interfaces, AlwaysHasALoopback) {
  const auto all = interfaces();
  ASSERT_TRUE(all) << error_text(all.error());
  const auto lo = std::ranges::find(*all, true, &Interface::loopback);
  ASSERT_NE(lo, all->end());
  EXPECT_EQ(lo->name, "lo");
  EXPECT_GT(lo->index, 0u);
  EXPECT_GE(lo->mtu, 1280u);
  EXPECT_FALSE(lo->speed_mbps);
  EXPECT_FALSE(lo->default_route);
  if (!lo->up) GTEST_SKIP() << "lo is down here";
  const InterfaceAddress expected{IpAddress::of_ipv4({127, 0, 0, 1}), 8, AddressScope::Host};
  ASSERT_FALSE(lo->addresses.empty());
  EXPECT_EQ(lo->addresses[0].address, expected.address);
  EXPECT_EQ(lo->addresses[0].prefix_bits, expected.prefix_bits);
  EXPECT_EQ(lo->addresses[0].scope, expected.scope);
}

TEST(Interfaces, ListsTheDefaultRouteFirstAndIpv4First) {
  const auto all = interfaces();
  ASSERT_TRUE(all);
  std::set<std::uint32_t> indices;
  for (std::size_t i = 0; i < all->size(); ++i) {
    const Interface& one = (*all)[i];
    EXPECT_FALSE(one.name.empty());
    EXPECT_TRUE(indices.insert(one.index).second);
    EXPECT_TRUE(!one.default_route || i == 0);
    EXPECT_TRUE(std::ranges::is_partitioned(
        one.addresses, [](const InterfaceAddress& a) { return a.address.is_ipv4(); }));
  }
}

TEST(Interfaces, NamesAddressesThatCanBeBound) {
  const auto all = interfaces();
  ASSERT_TRUE(all);
  for (const Interface& one : *all)
    for (const InterfaceAddress& address : one.addresses)
      EXPECT_TRUE(UdpSocket::open({.address = address.address, .interface_index = one.index},
                                  UdpUse::SendOnly))
          << one.name << " " << address_text(address.address);
}

TEST(InterfaceWatch, HearsOfItsInterfaceOnly) {
  const int status = run_in_child([] {
    if (::unshare(CLONE_NEWNET) != 0) return 77;
    auto watch = InterfaceWatch::open();
    const auto all = interfaces();
    if (!watch || !all || all->empty()) return 1;
    const std::uint32_t lo = all->front().index;
    if (watch->has_news(lo)) return 2;
    const OwnedFd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    request.ifr_flags = IFF_UP;
    if (::ioctl(any.get(), SIOCSIFFLAGS, &request) != 0) return 3;
    if (watch->has_news(lo + 1)) return 4;
    request.ifr_flags = 0;
    if (::ioctl(any.get(), SIOCSIFFLAGS, &request) != 0) return 5;
    if (!watch->has_news(lo)) return 6;
    return watch->has_news(lo) ? 7 : 0;
  });
  if (status == 77) GTEST_SKIP() << "no permission to make network namespaces";
  EXPECT_EQ(status, 0);
}

TEST(IpAddress, IsPrintedByItsFamily) {
  EXPECT_EQ(address_text(IpAddress::of_ipv4({192, 0, 2, 1})), "192.0.2.1");
  IpAddress v6;
  v6.bytes[0] = 0xfe;
  v6.bytes[1] = 0x80;
  v6.bytes[15] = 9;
  EXPECT_EQ(address_text(v6), "fe80::9");
  EXPECT_TRUE(v6.is_link_local());
  EXPECT_FALSE(v6.is_ipv4());
}

TEST(IpAddress, IsReadAsItIsPrinted) {
  for (const char* const text : {"192.0.2.1", "0.0.0.0", "fe80::9", "::", "::1"}) {
    const auto address = parse_address(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address_text(*address), text);
  }
  for (const char* const text : {"", "192.0.2", "192.0.2.256", "fe80::9%lo", "host"})
    EXPECT_FALSE(parse_address(text)) << text;
}

TEST(Clock, StartsAtZeroAndNeverGoesBack) {
  const Clock clock;
  Time last{};
  for (int i = 0; i < 1000; ++i) {
    const Time now = clock.now();
    ASSERT_LE(last, now);
    last = now;
  }
  EXPECT_LT(last, Time{} + seconds(60));
}

TEST(Random, GivesDifferentSeeds) {
  std::set<std::uint64_t> seeds;
  for (int i = 0; i < 100; ++i) seeds.insert(random_seed());
  EXPECT_EQ(seeds.size(), 100u);
}

TEST(Neighbours, KnowThisHostByItsOwnAddresses) {
  const auto all = interfaces();
  ASSERT_TRUE(all);
  bool asked = false;
  for (const Interface& one : *all) {
    if (!one.up || one.addresses.empty()) continue;
    const auto mac = mac_on_the_way_to(one.addresses.front().address, one.index);
    ASSERT_TRUE(mac) << one.name << ": " << error_text(mac.error());
    EXPECT_EQ(*mac, one.mac) << one.name;
    asked = true;
  }
  if (!asked) GTEST_SKIP() << "no interface has an address";
}

TEST(Neighbours, MapGroupsToTheirEthernetAddresses) {  // RFC 1112, RFC 2464
  const auto four = mac_on_the_way_to(IpAddress::of_ipv4({224, 129, 2, 3}), 1);
  ASSERT_TRUE(four);
  EXPECT_EQ(*four, (MacAddress{0x01, 0x00, 0x5e, 0x01, 0x02, 0x03}));
  IpAddress group;
  group.bytes[0] = 0xff;
  group.bytes[12] = 0xaa;
  group.bytes[15] = 0xbb;
  const auto six = mac_on_the_way_to(group, 1);
  ASSERT_TRUE(six);
  EXPECT_EQ(*six, (MacAddress{0x33, 0x33, 0xaa, 0x00, 0x00, 0xbb}));
}

TEST(Neighbours, SayWhereNoWayLeads) {
  EXPECT_FALSE(mac_on_the_way_to(IpAddress::of_ipv4({192, 0, 2, 77}), 0x7fff'fff0));
}

}  // namespace
}  // namespace softhca::os
