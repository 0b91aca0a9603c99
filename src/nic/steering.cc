#include "nic/steering.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace softhca::nic {

Steering::Id Steering::add(const FlowRule& rule) {
  const auto before = std::ranges::find_if(rules_, [&](const Entry& entry) {
    return entry.rule.kind == rule.kind ? entry.rule.priority > rule.priority
                                        : entry.rule.kind > rule.kind;
  });
  rules_.insert(before, {next_, rule});
  return next_++;
}

void Steering::remove(Id id) {
  std::erase_if(rules_, [&](const Entry& entry) { return entry.id == id; });
}

void Steering::remove_all(wire::Qpn qpn) {
  std::erase_if(rules_, [&](const Entry& entry) { return entry.rule.qpn == qpn; });
}

bool Steering::has_rules(wire::Qpn qpn) const {
  return std::ranges::any_of(rules_, [&](const Entry& entry) { return entry.rule.qpn == qpn; });
}

void Steering::give_to(const FlowRule& rule) {
  if (rule.drop || std::ranges::find(targets_, rule.qpn, &Target::qpn) != targets_.end()) return;
  targets_.push_back({rule.qpn, rule.tag});
}

const std::vector<Steering::Target>& Steering::targets_of(const wire::FrameFields& frame, Who who) {
  targets_.clear();
  const bool is_multicast = frame.is_multicast();
  bool taken = false;
  for (const auto& [id, rule] : rules_) {
    if (who == Who::Sniffers && rule.kind != FlowKind::Sniffer) continue;
    switch (rule.kind) {
      case FlowKind::Normal:
        if (taken || !wire::matches(frame, rule.value, rule.mask)) break;
        taken = !rule.dont_trap;
        give_to(rule);
        break;
      case FlowKind::MulticastDefault:
      case FlowKind::AllDefault:
        if (taken || (rule.kind == FlowKind::MulticastDefault && !is_multicast)) break;
        give_to(rule);
        break;
      case FlowKind::Sniffer:
        give_to(rule);
        break;
    }
  }
  return targets_;
}

namespace {

// Whether an address is what the rule says of the destination.
bool fits(const FlowRule& rule, const std::uint8_t* address) {
  for (std::size_t i = 0; i < std::size(rule.mask.destination); ++i)
    if (((address[i] ^ rule.value.destination[i]) & rule.mask.destination[i]) != 0) return false;
  return true;
}

link::FrameUse use_of(const FlowRule& rule, const wire::MacAddress& own) {
  using link::FrameUse;
  switch (rule.kind) {
    case FlowKind::Normal:
      break;
    case FlowKind::MulticastDefault:
      return FrameUse::Multicasts;
    case FlowKind::AllDefault:
    case FlowKind::Sniffer:
      return FrameUse::Everything;
  }
  if (fits(rule, own.data())) return FrameUse::Own;
  const bool is_multicast = (rule.value.destination[0] & rule.mask.destination[0] & 1) != 0;
  return is_multicast ? FrameUse::Multicasts : FrameUse::Everything;
}

}  // namespace

bool Steering::is_destination(const wire::FrameFields& frame) const {
  constexpr wire::MacAddress kWhole{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
  return std::ranges::any_of(rules_, [&](const Entry& entry) {
    return std::ranges::equal(entry.rule.mask.destination, kWhole) &&
           fits(entry.rule, frame.destination);
  });
}

link::FrameUse Steering::use(const wire::MacAddress& own) const {
  link::FrameUse most = link::FrameUse::None;
  for (const Entry& entry : rules_) most = std::max(most, use_of(entry.rule, own));
  return most;
}

namespace {

// Bits of ibv_rx_hash_fields, in pairs: source, destination.
enum HashField : unsigned { Ipv4 = 0, Ipv6 = 2, TcpPort = 4, UdpPort = 6 };

bool wants(std::uint64_t fields, unsigned bit) { return (fields >> bit & 1) != 0; }

}  // namespace

std::uint32_t spread_hash(const Spreading& spreading, const wire::FrameFields& frame) {
  using wire::FrameLayer;
  std::array<std::uint8_t, 36> input;  // two IPv6 addresses and two ports
  std::size_t bytes = 0;
  const auto add = [&](bool has, unsigned bit, std::span<const std::uint8_t> field) {
    if (!has || !wants(spreading.fields, bit)) return;
    bytes = static_cast<std::size_t>(std::ranges::copy(field, input.begin() + bytes).out -
                                     input.begin());
  };
  add(frame.has(FrameLayer::Ipv4), Ipv4, frame.ipv4_source);
  add(frame.has(FrameLayer::Ipv4), Ipv4 + 1, frame.ipv4_destination);
  add(frame.has(FrameLayer::Ipv6), Ipv6, frame.ipv6_source);
  add(frame.has(FrameLayer::Ipv6), Ipv6 + 1, frame.ipv6_destination);
  for (const auto& [layer, bit] :
       {std::pair{FrameLayer::Tcp, TcpPort}, {FrameLayer::Udp, UdpPort}}) {
    add(frame.has(layer), bit, frame.source_port);
    add(frame.has(layer), bit + 1, frame.destination_port);
  }
  return wire::toeplitz_hash(spreading.key, std::span(input).first(bytes));
}

}  // namespace softhca::nic
