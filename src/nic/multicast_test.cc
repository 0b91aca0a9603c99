// Multicast groups of one device.
#include "nic/multicast.h"

#include <gtest/gtest.h>

#include "nic/limits.h"

namespace softhca::nic {
namespace {

wire::Gid group_number(std::uint32_t number) {
  return wire::Gid::of_ipv4(
      {239, 1, static_cast<std::uint8_t>(number >> 8), static_cast<std::uint8_t>(number)});
}

TEST(MulticastGroups, KnowTheirMembers) {
  Multicast groups;
  EXPECT_TRUE(groups.is_empty());
  EXPECT_FALSE(groups.attach(group_number(1), {7}));
  EXPECT_FALSE(groups.attach(group_number(1), {8}));
  EXPECT_FALSE(groups.attach(group_number(2), {7}));
  EXPECT_EQ(groups.members(group_number(1)).size(), 2u);
  EXPECT_TRUE(groups.is_member(group_number(2), {7}));
  EXPECT_FALSE(groups.is_member(group_number(2), {8}));
  EXPECT_EQ(groups.groups_of({7}).size(), 2u);
  groups.detach(group_number(1), {7});
  groups.detach(group_number(1), {8});
  EXPECT_TRUE(groups.members(group_number(1)).empty());
  groups.detach(group_number(2), {7});
  EXPECT_TRUE(groups.is_empty());
}

// C74: as many as advertised, and not one more.
TEST(MulticastGroups, AreAsManyAndAsLargeAsAdvertised) {
  Multicast groups;
  for (std::uint32_t i = 0; i < kMaxMulticastGroups; ++i)
    EXPECT_FALSE(groups.attach(group_number(i), {1}));
  EXPECT_EQ(groups.attach(group_number(kMaxMulticastGroups), {1}).id,
            trace::ReasonId::LimitExceeded);
  for (std::uint32_t i = 2; i <= kMaxMulticastMembers; ++i)
    EXPECT_FALSE(groups.attach(group_number(0), {i}));
  EXPECT_EQ(groups.attach(group_number(0), {0}).id, trace::ReasonId::LimitExceeded);
}

TEST(MulticastGroups, HaveAddressesOfTheirOwn) {
  EXPECT_TRUE(wire::Gid::of_ipv4({224, 0, 0, 0}).is_multicast());
  EXPECT_TRUE(wire::Gid::of_ipv4({239, 255, 255, 255}).is_multicast());
  EXPECT_FALSE(wire::Gid::of_ipv4({223, 255, 255, 255}).is_multicast());
  EXPECT_FALSE(wire::Gid::of_ipv4({240, 0, 0, 0}).is_multicast());
  wire::Gid v6;
  v6.bytes[0] = 0xff;
  EXPECT_TRUE(v6.is_multicast());
  v6.bytes[0] = 0xfe;
  EXPECT_FALSE(v6.is_multicast());
}

}  // namespace
}  // namespace softhca::nic
