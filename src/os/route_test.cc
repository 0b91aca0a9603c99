#include "os/route.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>

#include "os/test_child.h"

namespace softhca::os {
namespace {

IpAddress at(const char* text) {
  const auto address = parse_address(text);
  EXPECT_TRUE(address) << text;
  return address.value_or(IpAddress{});
}

// A host with two interfaces and a router; what `body` says is looked at in a child, which prints.
void on_a_host(const std::function<void()>& body) {
  const int status = run_in_child([&] {
    const int own = ::geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET;
    if (::unshare(own) != 0) return kChildSkips;
    constexpr const char* kSetUp =
        "{ ip link set lo up && ip link add left type veth peer name right && "
        "ip link set right up && ip link set left up && "
        "ip address add 192.0.2.1/24 dev left && ip address add 192.0.2.2/24 dev left && "
        "ip address add 198.51.100.1/24 dev right && ip route add default via 192.0.2.254 && "
        "ip -6 address add fd00::1/64 dev left nodad && "
        "ip -6 address add fd00::2/128 dev right nodad && "
        "ip -6 address add fe80::5/64 dev left nodad && "
        "ip -6 address add fe80::5/64 dev right nodad && "
        "ip route add blackhole 203.0.113.0/25 && ip route add prohibit 203.0.113.128/25 && "
        "ip -6 route add unreachable fd01::/64; } >/dev/null 2>&1";
    if (std::system(kSetUp) != 0) return kChildSkips;
    body();
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  if (status == kChildSkips) GTEST_SKIP() << "no namespace of its own, or no veth, or no ip";
  EXPECT_EQ(status, 0);
}

void expect(const Result<Route, SystemError>& route, const char* source, const char* interface,
            bool is_local) {
  ASSERT_TRUE(route) << error_text(route.error());
  EXPECT_EQ(address_text(route->source), source);
  EXPECT_EQ(route->interface_index, if_nametoindex(interface));
  EXPECT_EQ(route->is_local, is_local);
}

void expect_none(const Result<Route, SystemError>& route, int error) {
  ASSERT_FALSE(route) << address_text(route->source);
  EXPECT_EQ(route.error().number, error) << error_text(route.error());
}

TEST(Route, LeadsToNeighboursAndByTheRouter) {
  on_a_host([] {
    expect(route_to(at("192.0.2.9")), "192.0.2.1", "left", false);
    expect(route_to(at("198.51.100.9")), "198.51.100.1", "right", false);
    expect(route_to(at("8.8.8.8")), "192.0.2.1", "left", false);
    expect(route_to(at("fd00::9")), "fd00::1", "left", false);
  });
}

TEST(Route, GoesFromTheSourceThatIsAskedFor) {
  on_a_host([] {
    expect(route_to(at("8.8.8.8"), at("192.0.2.2")), "192.0.2.2", "left", false);
    expect(route_to(at("192.0.2.1"), at("198.51.100.1")), "198.51.100.1", "left", true);
    expect_none(route_to(at("8.8.8.8"), at("192.0.2.3")), EADDRNOTAVAIL);
    expect_none(route_to(at("fd00::9"), at("fd00::3")), EADDRNOTAVAIL);
    expect_none(route_to(at("fd00::9"), at("192.0.2.1")), EADDRNOTAVAIL);
    expect_none(route_to(at("8.8.8.8"), at("127.0.0.1")), ENETUNREACH);
  });
}

TEST(Route, OfAnAddressOfThisHostNamesItsInterface) {
  on_a_host([] {
    expect(route_to(at("127.0.0.1")), "127.0.0.1", "lo", true);
    expect(route_to(at("127.1.2.3")), "127.0.0.1", "lo", true);
    expect(route_to(at("::1")), "::1", "lo", true);
    expect(route_to(at("192.0.2.2")), "192.0.2.1", "left", true);  // the first of that network
    expect(route_to(at("198.51.100.1")), "198.51.100.1", "right", true);
    expect(route_to(at("fd00::1")), "fd00::1", "left", true);
  });
}

TEST(Route, OfALinkLocalAddressNeedsItsScope) {
  on_a_host([] {
    const std::uint32_t left = if_nametoindex("left");
    const std::uint32_t right = if_nametoindex("right");
    expect_none(route_to(at("fe80::9")), EINVAL);
    expect(route_to(at("fe80::9"), {}, left), "fe80::5", "left", false);
    expect(route_to(at("fe80::9"), {}, right), "fe80::5", "right", false);
    expect(route_to(at("fe80::5"), {}, right), "fe80::5", "right", true);
    expect(route_to(at("fe80::9"), at("fe80::5"), right), "fe80::5", "right", false);
    expect(route_to(at("fe80::9"), at("fd00::1"), left), "fd00::1", "left", false);
    // For others it is nothing.
    expect(route_to(at("192.0.2.9"), {}, right), "192.0.2.1", "left", false);
  });
}

TEST(Route, OfAGroupIsThatOfItsSource) {
  on_a_host([] {
    expect(route_to(at("224.1.2.3")), "192.0.2.1", "left", false);
    expect(route_to(at("224.1.2.3"), at("198.51.100.1")), "198.51.100.1", "right", false);
    expect(route_to(at("ff0e::7"), at("fd00::1")), "fd00::1", "left", false);
    expect(route_to(at("ff0e::7"), at("fd00::2")), "fd00::2", "right", false);
    EXPECT_TRUE(route_to(at("ff0e::7")));
    expect(route_to(at("ff02::7"), {}, if_nametoindex("right")), "fe80::5", "right", false);
  });
}

TEST(Route, IsRefusedWhereNoWayLeads) {
  on_a_host([] {
    expect_none(route_to(at("203.0.113.1")), ENETUNREACH);
    expect_none(route_to(at("203.0.113.129")), EACCES);
    expect_none(route_to(at("255.255.255.255")), ENETUNREACH);
    expect_none(route_to(at("fd01::1")), EHOSTUNREACH);
    expect_none(route_to(at("fd02::1")), ENETUNREACH);
    expect_none(route_to(at("fe80::9"), {}, 0x7fff'fff0), ENETUNREACH);
  });
}

}  // namespace
}  // namespace softhca::os
