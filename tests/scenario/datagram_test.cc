// Unreliable datagrams between simulated hosts: what arrives, what is dropped, who hears of it.
#include <set>

#include "pair.h"

namespace softhca::sim {
namespace {

using driver::CompletionOpcode;
using trace::Counter;
using trace::ReasonId;
using transport::QpState;
using transport::Status;
using transport::WorkOpcode;

constexpr std::uint32_t kQkey = 0x1234;
constexpr std::uint32_t kHeaderBytes = 40;

// Two hosts with a datagram queue pair each; a message lies at the start of each buffer.
struct DatagramPair {
  explicit DatagramPair(const WorldSettings& settings = {}) : pair({}, settings) {
    a = make_end(pair.connection.a);
    b = make_end(pair.connection.b);
  }

  Connection::End make_end(const Connection::End& like) {
    Connection::End end = like;
    driver::Engine& engine = end.host->engine();
    const auto cq = engine.create_cq(64, nullptr, pair.world.now());
    EXPECT_TRUE(cq);
    end.cq = *cq;
    driver::Engine::QueuePairSpec spec;
    spec.pd = end.pd;
    spec.type = transport::QpType::Ud;
    spec.send_cq = spec.receive_cq = end.cq;
    spec.capacity = {16, 16, 2, 2, 64};
    const auto qp = engine.create_qp(spec, pair.world.now());
    EXPECT_TRUE(qp);
    end.qp = *qp;
    to_state(end, QpState::Init);
    to_state(end, QpState::Rtr);
    to_state(end, QpState::Rts);
    return end;
  }
  void to_state(const Connection::End& end, QpState state) {
    using enum transport::QpAttribute;
    transport::QpAttributes attributes;
    attributes.state = state;
    attributes.port = 1;
    attributes.qkey = kQkey;
    transport::QpAttributeMask mask = State;
    if (state == QpState::Init) mask = mask | PkeyIndex | Port | Qkey;
    if (state == QpState::Rts && end.qp->state() == QpState::Rtr) mask = mask | SqPsn;
    EXPECT_TRUE(end.host->engine().modify_qp(*end.qp, attributes, mask, pair.world.now()));
  }
  driver::DatagramTarget to(const Connection::End& from, const Connection::End& peer) const {
    driver::DatagramTarget target;
    target.address.is_global = true;
    target.address.destination = peer.host->gid();
    target.address.traffic_class = 0x24;
    target.pd = from.pd;
    target.qpn = peer.qp->qpn();
    target.qkey = kQkey;
    return target;
  }
  void send(const Connection::End& from, const driver::DatagramTarget& target, std::uint32_t bytes,
            std::uint64_t wr_id = 1) {
    const Buffer& buffer = from.host == a.host ? pair.a : pair.b;
    std::array sges{buffer.sge(0, bytes)};
    driver::SendRequest request{.wr_id = wr_id,
                                .opcode = WorkOpcode::SendImm,
                                .flags = {},
                                .sges = sges,
                                .immediate = 0xa1b2c3d4,
                                .rkey = {},
                                .target = target};
    pair.post(from, request);
  }
  void receive(const Connection::End& end, std::uint64_t wr_id, std::uint32_t bytes) {
    const Buffer& buffer = end.host == a.host ? pair.a : pair.b;
    std::array sges{buffer.sge(4096, bytes)};
    pair.post_receive(end, wr_id, sges);
  }
  std::vector<std::byte> received(const Connection::End& end, std::uint32_t bytes) {
    const Buffer& buffer = end.host == a.host ? pair.a : pair.b;
    return end.host->load({buffer.start.value + 4096}, bytes);
  }
  std::uint64_t count(const Connection::End& end, Counter counter) {
    return end.host->counter(counter);
  }

  Pair pair;
  Connection::End a;
  Connection::End b;
};

// The Internet checksum of an IPv4 header, over all of it: 0 if it is right.
std::uint32_t checksum(ConstBytes header) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < header.size(); i += 2)
    sum += std::to_integer<std::uint32_t>(header[i]) << 8 |
           std::to_integer<std::uint32_t>(header[i + 1]);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return ~sum & 0xffff;
}

// CASES C08: what lay in the buffer before does not show.
TEST(Datagram, AnIpv4HeaderStandsInTheLastTwentyOfFortyBytes) {
  for (const std::byte before : {std::byte{0x60}, std::byte{0xff}}) {
    DatagramPair t;
    t.pair.world.host(1).fill(t.pair.b.start, kBufferBytes, before);
    t.pair.world.host(0).fill(t.pair.a.start, kBufferBytes, std::byte{0x77});
    t.receive(t.b, 7, 200);
    t.send(t.a, t.to(t.a, t.b), 101);
    t.pair.settle();

    const auto sent = t.pair.completions(t.a);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].status, Status::Success);
    EXPECT_EQ(sent[0].opcode, CompletionOpcode::Send);
    const auto done = t.pair.completions(t.b);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].wr_id, 7u);
    EXPECT_EQ(done[0].status, Status::Success);
    EXPECT_EQ(done[0].opcode, CompletionOpcode::Receive);
    EXPECT_EQ(done[0].byte_count, kHeaderBytes + 101);
    EXPECT_EQ(done[0].source_qpn, t.a.qp->qpn());
    EXPECT_TRUE(done[0].with_network_header);
    EXPECT_TRUE(done[0].with_immediate);
    EXPECT_EQ(done[0].immediate, 0xa1b2c3d4u);

    const auto bytes = t.received(t.b, 200);
    const ConstBytes header = ConstBytes(bytes).subspan(20, 20);
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + 20,
                            [](std::byte x) { return x == std::byte{0}; }));
    EXPECT_EQ(header[0], std::byte{0x45});
    EXPECT_EQ(header[1], std::byte{0x24});
    // IP, UDP, BTH, DETH, immediate, 101 bytes and 3 of padding, ICRC
    EXPECT_EQ(load_be<std::uint16_t>(header, 2), 20 + 8 + 12 + 8 + 4 + 104 + 4);
    EXPECT_EQ(checksum(header), 0u);
    EXPECT_TRUE(std::ranges::equal(header.subspan(12, 4), bytes_of(t.a.host->gid().bytes).last(4)));
    EXPECT_TRUE(std::ranges::equal(header.subspan(16, 4), bytes_of(t.b.host->gid().bytes).last(4)));
    EXPECT_TRUE(t.pair.is_filled(t.pair.b, 4096 + kHeaderBytes, 101, std::byte{0x77}));
    EXPECT_TRUE(t.pair.is_filled(t.pair.b, 4096 + kHeaderBytes + 101, 100, before));
  }
}

TEST(Datagram, AnIpv6HeaderFillsAllForty) {
  WorldSettings settings;
  settings.ipv6 = true;
  DatagramPair t(settings);
  t.receive(t.b, 7, 200);
  t.send(t.a, t.to(t.a, t.b), 8);
  t.pair.settle();
  ASSERT_EQ(t.pair.completions(t.b).size(), 1u);
  const auto bytes = t.received(t.b, kHeaderBytes);
  EXPECT_EQ(load_be<std::uint32_t>(bytes, 0), 0x6240'0000u);  // version 6, traffic class 24h
  EXPECT_EQ(load_be<std::uint16_t>(bytes, 4), 8 + 12 + 8 + 4 + 8 + 4);
  EXPECT_EQ(bytes[6], std::byte{17});
  EXPECT_TRUE(
      std::ranges::equal(ConstBytes(bytes).subspan(8, 16), bytes_of(t.a.host->gid().bytes)));
  EXPECT_TRUE(
      std::ranges::equal(ConstBytes(bytes).subspan(24, 16), bytes_of(t.b.host->gid().bytes)));
}

TEST(Datagram, WhatCannotBeReceivedIsDroppedAndCountedAndTheNextArrives) {
  DatagramPair t;
  t.send(t.a, t.to(t.a, t.b), 64);  // no receive
  t.pair.settle();
  EXPECT_EQ(t.count(t.b, Counter::DatagramsDropped), 1u);
  t.receive(t.b, 7, kHeaderBytes + 64);
  t.send(t.a, t.to(t.a, t.b), 65);  // too small
  t.pair.settle();
  EXPECT_EQ(t.count(t.b, Counter::DatagramsDropped), 2u);
  driver::DatagramTarget wrong = t.to(t.a, t.b);
  wrong.qkey = kQkey + 1;
  t.send(t.a, wrong, 64);
  t.pair.settle();
  EXPECT_EQ(t.count(t.b, Counter::QkeyMismatches), 1u);
  EXPECT_TRUE(t.pair.completions(t.b).empty());
  EXPECT_TRUE(t.pair.is_filled(t.pair.b, 0, kBufferBytes, std::byte{0x11}));

  driver::DatagramTarget own = t.to(t.a, t.b);
  own.qkey = 0x8000'0000;  // the queue pair's own
  t.send(t.a, own, 64);
  t.pair.settle();
  EXPECT_EQ(t.pair.completions(t.a).size(), 4u);
  const auto done = t.pair.completions(t.b);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 7u);
  EXPECT_EQ(t.b.qp->state(), QpState::Rts);
  t.pair.expect_surroundings_untouched();
}

// C10-93 and 10.3.1.6: more than a packet holds is a length error; only the sending half stops.
TEST(Datagram, OneThatIsTooLongStopsSendingUntilTheStateIsSet) {
  DatagramPair t;
  t.receive(t.a, 7, 200);
  t.send(t.a, t.to(t.a, t.b), 4096);
  t.send(t.a, t.to(t.a, t.b), 4097, 2);
  t.send(t.a, t.to(t.a, t.b), 8, 3);
  t.pair.settle();
  auto done = t.pair.completions(t.a);
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].status, Status::Success);
  EXPECT_EQ(done[1].status, Status::LocalLength);
  EXPECT_EQ(done[1].reason, ReasonId::MessageTooLong);
  EXPECT_EQ(done[2].status, Status::Flushed);
  EXPECT_EQ(t.a.qp->state(), QpState::Sqe);
  t.send(t.b, t.to(t.b, t.a), 8);
  t.pair.settle();
  done = t.pair.completions(t.a);
  ASSERT_EQ(done.size(), 1u);  // it still receives
  EXPECT_EQ(done[0].wr_id, 7u);
  t.to_state(t.a, QpState::Rts);
  t.send(t.a, t.to(t.a, t.b), 8, 4);
  t.pair.settle();
  done = t.pair.completions(t.a);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::Success);
}

// CASES C42
TEST(Datagram, AnAddressOfAnotherDomainIsRefused) {
  DatagramPair t;
  driver::DatagramTarget foreign = t.to(t.a, t.b);
  const auto other = t.a.host->engine().alloc_pd();
  ASSERT_TRUE(other);
  foreign.pd = *other;
  t.send(t.a, foreign, 8);
  t.pair.settle();
  const auto done = t.pair.completions(t.a);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::LocalProtection);
  EXPECT_EQ(done[0].reason, ReasonId::KeyOtherDomain);
}

TEST(Datagram, ReachesItselfAndSeveralPeers) {
  WorldSettings settings;
  settings.hosts = 3;
  DatagramPair t(settings);
  Connection::End third;
  third.host = &t.pair.world.host(2);
  third.program = third.host->running();
  const auto pd = third.host->engine().alloc_pd();
  ASSERT_TRUE(pd);
  third.pd = *pd;
  third = t.make_end(third);
  for (std::uint64_t i = 0; i < 3; ++i) t.receive(t.a, i, 200);
  t.send(t.a, t.to(t.a, t.a), 8);
  t.send(t.b, t.to(t.b, t.a), 8);
  driver::SendRequest empty{.wr_id = 1,
                            .opcode = WorkOpcode::Send,
                            .flags = {},
                            .sges = {},
                            .rkey = {},
                            .target = t.to(third, t.a)};
  t.pair.post(third, empty);
  t.pair.settle();
  std::multiset<std::uint32_t> sources;
  std::multiset<std::uint32_t> lengths;
  for (const driver::Completion& done : t.pair.completions(t.a)) {
    if (done.opcode != CompletionOpcode::Receive) continue;
    EXPECT_EQ(done.status, Status::Success);
    sources.insert(done.source_qpn.value);
    lengths.insert(done.byte_count);
  }
  EXPECT_EQ(sources, (std::multiset<std::uint32_t>{t.a.qp->qpn().value, t.b.qp->qpn().value,
                                                   third.qp->qpn().value}));
  EXPECT_EQ(lengths, (std::multiset<std::uint32_t>{40, 48, 48}));
}

// CASES C29: both queues are flushed, also the receive that a packet was too long for.
TEST(Datagram, EveryRequestIsFlushedInTheErrorState) {
  DatagramPair t;
  t.receive(t.b, 5, 10);
  t.receive(t.b, 6, 200);
  t.send(t.a, t.to(t.a, t.b), 8);
  t.pair.settle();
  EXPECT_EQ(t.count(t.b, Counter::DatagramsDropped), 1u);
  t.to_state(t.b, QpState::Error);
  t.send(t.b, t.to(t.b, t.a), 8, 7);
  t.receive(t.b, 8, 200);
  t.pair.settle();
  const auto done = t.pair.completions(t.b);
  ASSERT_EQ(done.size(), 4u);
  for (std::size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].wr_id, 5 + i);
    EXPECT_EQ(done[i].status, Status::Flushed);
  }
}

TEST(Datagram, OffersSendsOnly) {
  DatagramPair t;
  std::array sges{t.pair.a.sge(0, 8)};
  for (const WorkOpcode opcode : {WorkOpcode::Write, WorkOpcode::WriteImm, WorkOpcode::Read}) {
    const driver::SendRequest request{.wr_id = 1,
                                      .opcode = opcode,
                                      .flags = {},
                                      .sges = sges,
                                      .rkey = {},
                                      .target = t.to(t.a, t.b)};
    const auto posted = t.a.host->engine().post_send(*t.a.qp, request, false, t.pair.world.now());
    ASSERT_FALSE(posted);
    EXPECT_EQ(posted.error().id, ReasonId::OpcodeNotSupported);
  }
}

}  // namespace
}  // namespace softhca::sim
