#include "nic/steering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace softhca::nic {
namespace {

wire::FrameFields frame_to(std::uint8_t last) {
  wire::FrameFields fields;
  fields.destination[0] = 2;
  fields.destination[5] = last;
  return fields;
}

FlowRule rule_for(std::uint8_t last, std::uint32_t qpn, std::uint16_t priority = 0) {
  FlowRule rule{.priority = priority, .tag = qpn + 100, .value = {}, .mask = {}, .qpn = {qpn}};
  rule.value.destination[5] = last;
  rule.mask.destination[5] = 0xff;
  return rule;
}

std::vector<std::uint32_t> qpns(const std::vector<Steering::Target>& targets) {
  std::vector<std::uint32_t> numbers;
  for (const auto& target : targets) numbers.push_back(target.qpn.value);
  return numbers;
}

using Numbers = std::vector<std::uint32_t>;

TEST(Steering, TheFirstRuleThatMatchesTakesTheFrame) {
  Steering steering;
  steering.add(rule_for(1, 10));
  steering.add(rule_for(1, 11));
  const Steering::Id urgent = steering.add(rule_for(1, 12, 0));
  EXPECT_EQ(qpns(steering.targets_of(frame_to(1))), Numbers{10});
  EXPECT_EQ(steering.targets_of(frame_to(1))[0].tag, 110u);
  EXPECT_EQ(qpns(steering.targets_of(frame_to(2))), Numbers{});
  steering.remove_all({10});
  EXPECT_EQ(qpns(steering.targets_of(frame_to(1))), Numbers{11});
  steering.remove_all({11});
  EXPECT_EQ(qpns(steering.targets_of(frame_to(1))), Numbers{12});
  steering.remove(urgent);
  EXPECT_EQ(steering.size(), 0u);
  EXPECT_FALSE(steering.has_rules({12}));
}

TEST(Steering, ADroppedFrameGoesNowhereButToSniffers) {
  Steering steering;
  FlowRule drop = rule_for(1, 10);
  drop.drop = true;
  steering.add(drop);
  steering.add(rule_for(1, 11, 1));
  steering.add({.kind = FlowKind::AllDefault, .value = {}, .mask = {}, .qpn = {12}});
  steering.add({.kind = FlowKind::Sniffer, .value = {}, .mask = {}, .qpn = {13}});
  EXPECT_EQ(qpns(steering.targets_of(frame_to(1))), Numbers{13});
  EXPECT_EQ(qpns(steering.targets_of(frame_to(2))), (Numbers{12, 13}));
}

TEST(Steering, NobodyGetsAFrameTwice) {
  Steering steering;
  FlowRule both = rule_for(1, 10);
  both.dont_trap = true;
  steering.add(both);
  steering.add(rule_for(1, 10, 1));
  steering.add({.kind = FlowKind::Sniffer, .value = {}, .mask = {}, .qpn = {10}});
  EXPECT_EQ(qpns(steering.targets_of(frame_to(1))), Numbers{10});
}

TEST(Steering, TheMulticastDefaultGetsMulticastOnly) {
  Steering steering;
  steering.add({.kind = FlowKind::MulticastDefault, .value = {}, .mask = {}, .qpn = {10}});
  EXPECT_EQ(qpns(steering.targets_of(frame_to(1))), Numbers{});
  wire::FrameFields multicast = frame_to(1);
  multicast.destination[0] = 1;
  EXPECT_EQ(qpns(steering.targets_of(multicast)), Numbers{10});
}

TEST(Steering, SniffersCanBeAskedForAlone) {
  Steering steering;
  steering.add(rule_for(1, 10));
  steering.add({.kind = FlowKind::AllDefault, .value = {}, .mask = {}, .qpn = {11}});
  steering.add({.kind = FlowKind::Sniffer, .value = {}, .mask = {}, .qpn = {12}});
  EXPECT_EQ(qpns(steering.targets_of(frame_to(1), Steering::Who::Sniffers)), Numbers{12});
}

TEST(Steering, ADestinationIsNamedByItsWholeAddress) {
  Steering steering;
  steering.add({.kind = FlowKind::AllDefault, .value = {}, .mask = {}, .qpn = {10}});
  steering.add(rule_for(1, 10));
  EXPECT_FALSE(steering.is_destination(frame_to(1)));
  FlowRule whole = rule_for(1, 10);
  whole.value.destination[0] = 2;
  std::ranges::fill(whole.mask.destination, std::uint8_t{0xff});
  steering.add(whole);
  EXPECT_TRUE(steering.is_destination(frame_to(1)));
  EXPECT_FALSE(steering.is_destination(frame_to(2)));
}

TEST(Steering, ThePortLetsInWhatTheRulesCanMatch) {
  using link::FrameUse;
  const wire::MacAddress own{2, 0, 0, 0, 0, 1};
  Steering steering;
  EXPECT_EQ(steering.use(own), FrameUse::None);
  steering.add({.value = {}, .mask = {}, .qpn = {10}});  // of any destination
  steering.add(rule_for(1, 10));
  EXPECT_EQ(steering.use(own), FrameUse::Own);
  FlowRule group = rule_for(9, 10);
  group.value.destination[0] = group.mask.destination[0] = 1;
  const Steering::Id id = steering.add(group);
  EXPECT_EQ(steering.use(own), FrameUse::Multicasts);
  steering.add({.kind = FlowKind::MulticastDefault, .value = {}, .mask = {}, .qpn = {10}});
  steering.remove(id);
  EXPECT_EQ(steering.use(own), FrameUse::Multicasts);
  steering.add(rule_for(2, 10));
  EXPECT_EQ(steering.use(own), FrameUse::Everything);
}

TEST(Spreading, HashesTheFieldsThatWereAskedForAndThatAreThere) {
  Spreading spreading{.key = std::vector<std::uint8_t>(40), .fields = 0b11};  // IPv4
  for (std::size_t i = 0; i < spreading.key.size(); ++i)
    spreading.key[i] = static_cast<std::uint8_t>(7 * i + 1);
  wire::FrameFields frame;
  EXPECT_EQ(spread_hash(spreading, frame), 0u);
  frame.add(wire::FrameLayer::Ipv4);
  frame.add(wire::FrameLayer::Udp);
  frame.ipv4_source[3] = 1;
  frame.ipv4_destination[3] = 2;
  frame.source_port[1] = 9;
  const std::array<std::uint8_t, 8> addresses = {0, 0, 0, 1, 0, 0, 0, 2};
  EXPECT_EQ(spread_hash(spreading, frame), wire::toeplitz_hash(spreading.key, addresses));
  spreading.fields |= 1u << 6 | 1u << 7;  // UDP ports
  const std::array<std::uint8_t, 12> all = {0, 0, 0, 1, 0, 0, 0, 2, 0, 9, 0, 0};
  EXPECT_EQ(spread_hash(spreading, frame), wire::toeplitz_hash(spreading.key, all));
}

}  // namespace
}  // namespace softhca::nic
