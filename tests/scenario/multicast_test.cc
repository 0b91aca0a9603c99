// Multicast groups between simulated hosts.
#include "forge.h"
#include "pair.h"

namespace softhca::sim {
namespace {

using trace::Counter;
using trace::ReasonId;
using transport::QpState;
using transport::WorkOpcode;

constexpr std::uint32_t kGroupQkey = 0x4321;
const wire::Gid kGroup = wire::Gid::of_ipv4({239, 1, 2, 3});

// Three hosts, each with memory and queue pairs of datagrams.
struct Crowd {
  explicit Crowd(WorldSettings settings = {}) : world(with_three(settings)) {}
  static WorldSettings with_three(WorldSettings settings) {
    settings.hosts = 3;
    return settings;
  }

  struct Member {
    Host* host{};
    std::uint32_t pd{};
    VirtAddr memory;
    wire::Key key;
    driver::CompletionQueue* cq{};
    driver::QueuePair* qp{};
  };
  Member member(std::size_t on, std::uint32_t qkey = kGroupQkey) {
    Host& host = world.host(on);
    driver::Engine& engine = host.engine();
    Member m;
    m.host = &host;
    const auto pd = engine.alloc_pd();
    EXPECT_TRUE(pd);
    m.pd = *pd;
    m.memory = host.allocate(2 * kPage4K);
    const auto region = engine.register_memory(m.pd, m.memory, 2 * kPage4K, {m.memory.value},
                                               driver::AccessFlags::of_bits(1), world.now());
    EXPECT_TRUE(region);
    m.key = region->key;
    const auto cq = engine.create_cq(64, nullptr, world.now());
    EXPECT_TRUE(cq);
    m.cq = *cq;
    driver::Engine::QueuePairSpec spec;
    spec.pd = m.pd;
    spec.type = transport::QpType::Ud;
    spec.send_cq = spec.receive_cq = m.cq;
    spec.capacity = {16, 16, 1, 1, 0};
    const auto qp = engine.create_qp(spec, world.now());
    EXPECT_TRUE(qp);
    m.qp = *qp;
    using enum transport::QpAttribute;
    transport::QpAttributes attributes;
    attributes.port = 1;
    attributes.qkey = qkey;
    const auto to = [&](QpState state, transport::QpAttributeMask mask) {
      attributes.state = state;
      EXPECT_TRUE(engine.modify_qp(*m.qp, attributes, mask | State, world.now()));
    };
    to(QpState::Init, transport::QpAttributeMask(PkeyIndex) | Port | Qkey);
    to(QpState::Rtr, {});
    to(QpState::Rts, SqPsn);
    const std::array into{driver::Sge{m.memory.value + kPage4K, 1024, m.key.value}};
    for (std::uint64_t i = 0; i < 4; ++i)
      EXPECT_TRUE(engine.post_receive(*m.qp, {100 + i, into}, false, world.now()));
    return m;
  }
  static ReasonId attach(const Member& m, const wire::Gid& group = kGroup) {
    const auto attached = m.host->engine().attach_multicast(*m.qp, group);
    return attached ? ReasonId::None : attached.error().id;
  }
  void send(const Member& from, wire::Qpn qpn = {0xff'ffff}) {
    const std::array bytes{driver::Sge{from.memory.value, 64, from.key.value}};
    driver::SendRequest request;
    request.opcode = WorkOpcode::Send;
    request.sges = bytes;
    request.target.address.is_global = true;
    request.target.address.destination = kGroup;
    request.target.pd = from.pd;
    request.target.qpn = qpn;
    request.target.qkey = kGroupQkey;
    EXPECT_TRUE(from.host->engine().post_send(*from.qp, request, false, world.now()));
    world.pass(seconds(1));
  }
  // How many messages have come since the last time.
  std::size_t received(const Member& m) {
    std::array<driver::Completion, 16> done;
    const std::size_t count = m.cq->poll(done);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(done[i].byte_count, 104u);
    return count;
  }

  World world;
};

// IBTA 10.5.2: one copy for each queue pair, on every host, the sender's too; none for the others.
TEST(Multicast, EveryMemberGetsOneCopy) {
  Crowd t;
  const auto sender = t.member(0);
  const auto beside = t.member(0);
  const auto one = t.member(1);
  const auto two = t.member(1);
  const auto outside = t.member(1);
  const auto elsewhere = t.member(2);
  for (const auto* m : {&sender, &beside, &one, &two}) EXPECT_EQ(t.attach(*m), ReasonId::None);
  EXPECT_EQ(t.attach(two), ReasonId::None) << "once more changes nothing";
  t.send(sender);
  for (const auto* m : {&sender, &beside, &one, &two}) EXPECT_EQ(t.received(*m), 1u);
  EXPECT_EQ(t.received(outside), 0u);
  EXPECT_EQ(t.received(elsewhere), 0u);
  EXPECT_EQ(t.world.host(2).counter(Counter::PacketsReceived), 0u);
  t.send(elsewhere);
  for (const auto* m : {&sender, &beside, &one, &two}) EXPECT_EQ(t.received(*m), 1u);
  EXPECT_EQ(t.received(elsewhere), 0u);
}

TEST(Multicast, EndsWithDetaching) {
  Crowd t;
  const auto sender = t.member(0);
  const auto one = t.member(1);
  const auto two = t.member(1);
  driver::Engine& engine = one.host->engine();
  EXPECT_EQ(t.attach(one), ReasonId::None);
  EXPECT_EQ(t.attach(two), ReasonId::None);
  EXPECT_TRUE(engine.detach_multicast(*one.qp, kGroup));
  t.send(sender);
  EXPECT_EQ(t.received(one), 0u);
  EXPECT_EQ(t.received(two), 1u);
  EXPECT_FALSE(engine.detach_multicast(*one.qp, kGroup));
  const auto busy = engine.destroy_qp(*two.qp, t.world.now());  // C70
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().id, ReasonId::ObjectBusy);
  EXPECT_TRUE(engine.detach_multicast(*two.qp, kGroup));
  const std::uint64_t before = t.world.host(1).counter(Counter::PacketsReceived);
  t.send(sender);
  EXPECT_EQ(t.world.host(1).counter(Counter::PacketsReceived), before);
  EXPECT_TRUE(engine.destroy_qp(*two.qp, t.world.now()));
}

// A group has one QPN, and each queue pair its own Q_Key.
TEST(Multicast, IsNotHeardByAWrongQpnOrKey) {
  Crowd t;
  const auto sender = t.member(0);
  const auto one = t.member(1);
  const auto other_key = t.member(1, kGroupQkey + 1);
  EXPECT_EQ(t.attach(one), ReasonId::None);
  EXPECT_EQ(t.attach(other_key), ReasonId::None);
  t.send(sender, one.qp->qpn());
  EXPECT_EQ(t.received(one), 0u);
  EXPECT_EQ(t.world.host(1).counter(Counter::PacketsDropped), 1u);
  t.send(sender);
  EXPECT_EQ(t.received(one), 1u);
  EXPECT_EQ(t.received(other_key), 0u);
  EXPECT_EQ(t.world.host(1).counter(Counter::QkeyMismatches), 1u);
}

TEST(Multicast, IsNoWayForNotificationsOfCongestion) {
  Crowd t;
  const auto one = t.member(1);
  EXPECT_EQ(t.attach(one), ReasonId::None);
  Forge forge(t.world);
  wire::Headers headers;
  headers.bth.opcode = 0x81;
  headers.bth.becn = true;
  headers.bth.pkey = wire::kDefaultPkey;
  headers.bth.dest_qpn = {0xff'ffff};
  forge.send(headers, {.source = wire::Gid::of_ipv4({10, 9, 9, 9}), .destination = kGroup},
             wire::kCnpPayloadBytes);
  EXPECT_EQ(one.host->counter(Counter::PacketsReceived), 1u);
  EXPECT_EQ(one.host->counter(Counter::PacketsMalformed), 0u);
  EXPECT_EQ(one.host->counter(Counter::CnpsIgnored), 0u);
}

TEST(Multicast, IsForDatagramsAndMulticastAddresses) {
  Crowd t;
  const auto one = t.member(1);
  wire::Gid v6;
  v6.bytes = {0xff, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  EXPECT_EQ(t.attach(one, v6), ReasonId::None);
  EXPECT_EQ(t.attach(one, one.host->gid()), ReasonId::NotMulticast);
  EXPECT_EQ(t.attach(one, wire::Gid::of_ipv4({223, 255, 255, 255})), ReasonId::NotMulticast);
  EXPECT_EQ(t.attach(one, wire::Gid::of_ipv4({240, 0, 0, 0})), ReasonId::NotMulticast);
  Pair pair;
  const auto refused = pair.a.host->engine().attach_multicast(*pair.connection.a.qp, kGroup);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().id, ReasonId::MulticastService);
}

}  // namespace
}  // namespace softhca::sim
