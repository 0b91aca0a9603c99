#include "abi/ibverbs/flow.h"

#include <cstring>

#include "abi/entry.h"
#include "abi/ibverbs/qp.h"
#include "abi/qp_attributes.h"

namespace softhca::abi {
namespace {

using wire::FrameFields;
using wire::FrameLayer;

// A rule that is being put together of the specifications behind an ibv_flow_attr.
class RuleBuilder {
 public:
  // FAILS WITH EINVAL (malformed), EOPNOTSUPP (a kind that is not offered)
  Outcome<void> add(ConstBytes spec) {
    const auto type = load_le<std::uint32_t>(spec);
    switch (type) {
      case IBV_FLOW_SPEC_ETH:
        return take<ibv_flow_spec_eth>(spec, [](const auto& f, FrameFields& to) {
          put(f.dst_mac, to.destination);
          put(f.src_mac, to.source);
          put(f.ether_type, to.ether_type);
          put(f.vlan_tag, to.vlan_tag);
        });
      case IBV_FLOW_SPEC_IPV4:
        demand(FrameLayer::Ipv4);
        return take<ibv_flow_spec_ipv4>(spec, [](const auto& f, FrameFields& to) {
          put(f.src_ip, to.ipv4_source);
          put(f.dst_ip, to.ipv4_destination);
        });
      case IBV_FLOW_SPEC_IPV4_EXT:
        demand(FrameLayer::Ipv4);
        return take<ibv_flow_spec_ipv4_ext>(spec, [](const auto& f, FrameFields& to) {
          put(f.src_ip, to.ipv4_source);
          put(f.dst_ip, to.ipv4_destination);
          put(f.proto, to.protocol);
          put(f.tos, to.traffic_class);
          put(f.ttl, to.hop_limit);
          put(f.flags, to.ipv4_flags);
        });
      case IBV_FLOW_SPEC_IPV6:
        demand(FrameLayer::Ipv6);
        return take<ibv_flow_spec_ipv6>(spec, [](const auto& f, FrameFields& to) {
          put(f.src_ip, to.ipv6_source);
          put(f.dst_ip, to.ipv6_destination);
          put(f.flow_label, to.flow_label);
          put(f.next_hdr, to.protocol);
          put(f.traffic_class, to.traffic_class);
          put(f.hop_limit, to.hop_limit);
        });
      case IBV_FLOW_SPEC_TCP:
      case IBV_FLOW_SPEC_UDP:
        demand(type == IBV_FLOW_SPEC_TCP ? FrameLayer::Tcp : FrameLayer::Udp);
        return take<ibv_flow_spec_tcp_udp>(spec, [](const auto& f, FrameFields& to) {
          put(f.src_port, to.source_port);
          put(f.dst_port, to.destination_port);
        });
      case IBV_FLOW_SPEC_ACTION_TAG:
        if (spec.size() < sizeof(ibv_flow_spec_action_tag)) return Errno{EINVAL};
        rule_.tag = load_le<ibv_flow_spec_action_tag>(spec).tag_id;
        return {};
      case IBV_FLOW_SPEC_ACTION_DROP:
        rule_.drop = true;
        return {};
      default:
        return Errno{EOPNOTSUPP};
    }
  }

  nic::FlowRule& rule() { return rule_; }

 private:
  // Both sides hold bytes as on the wire.
  template <class From, class To>
  static void put(const From& from, To& to) {
    static_assert(sizeof from == sizeof to);
    std::memcpy(&to, &from, sizeof to);
  }

  template <class Spec, class Put>
  Outcome<void> take(ConstBytes bytes, Put&& put_fields) {
    if (bytes.size() < sizeof(Spec)) return Errno{EINVAL};
    const Spec spec = load_le<Spec>(bytes);
    put_fields(spec.val, rule_.value);
    put_fields(spec.mask, rule_.mask);
    return {};
  }

  void demand(FrameLayer layer) {
    rule_.value.add(layer);
    rule_.mask.add(layer);
  }

  nic::FlowRule rule_;
};

Outcome<nic::FlowRule> rule_of(const ibv_flow_attr& attributes) {
  if (attributes.port != 1 || attributes.comp_mask != 0) return Errno{EINVAL};
  constexpr std::uint32_t kFlags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
  if ((attributes.flags & ~kFlags) != 0) return Errno{EOPNOTSUPP};
  const std::uint32_t kind = number_of(attributes.type);
  if (kind > IBV_FLOW_ATTR_SNIFFER) return Errno{EINVAL};
  RuleBuilder builder;
  nic::FlowRule& rule = builder.rule();
  rule.kind = static_cast<nic::FlowKind>(kind);
  rule.priority = attributes.priority;
  rule.dont_trap = (attributes.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP) != 0;
  const auto* at = reinterpret_cast<const std::byte*>(&attributes + 1);
  for (unsigned i = 0; i < attributes.num_of_specs; ++i) {
    std::uint16_t bytes = 0;  // behind the 32 bits of the type
    std::memcpy(&bytes, at + sizeof(std::uint32_t), sizeof bytes);
    if (bytes < sizeof(std::uint32_t) + sizeof bytes) return Errno{EINVAL};
    if (const auto added = builder.add({at, bytes}); !added) return added.error();
    at += bytes;
  }
  return rule;
}

}  // namespace

Outcome<Flow*> Flow::create(Qp& qp, const ibv_flow_attr& attributes) {
  const auto rule = rule_of(attributes);
  if (!rule) return rule.error();
  std::unique_ptr<Flow> flow(new Flow(qp.owner()));
  const auto id = qp.owner().command(
      [&](driver::Engine& engine, Time) { return engine.create_flow(qp.pair(), *rule); });
  if (!id) return id.error();
  flow->handle = *id;
  qp.owner().adopt(*flow);
  return flow.release();
}

Outcome<void> Flow::destroy() {
  const auto gone = owner().take_off([&](driver::Engine& engine, Time) -> Outcome<void> {
    engine.destroy_flow(handle);
    return {};
  });
  if (gone) owner().release(*this);
  return gone;
}

void Flow::abandon(driver::Engine& engine, Time) { engine.destroy_flow(handle); }

ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* attributes) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_flow*> {
    const auto flow = Flow::create(Qp::of(qp), *attributes);
    if (!flow) return flow.error();
    return *flow;
  });
}

int destroy_flow(ibv_flow* verbs) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    Flow& flow = Flow::of(verbs);
    const auto gone = flow.destroy();
    if (gone) delete &flow;
    return gone;
  });
}

}  // namespace softhca::abi
