#include "driver/peer_tables.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "base/prng.h"
#include "driver/test_tables.h"

namespace softhca::driver {
namespace {

using nic::KeyAccess;
using nic::KeyRight;
using transport::QpState;
using transport::WorkOpcode;

constexpr std::uint32_t kFirstQpn = 0x5000;
constexpr std::uint64_t kVirtual = 0x7f00'1234'5000;  // of the region in the peer's process
constexpr std::uint64_t kBytes = 0x8000;
constexpr std::uint64_t kBus = 0x8000'0000'0000;

// The tables of a peer with one connected queue pair and one region.
struct Peer : FilledTables {
  Peer() {
    TableHeader& h = owner.header();
    h.first_qpn = kFirstQpn;
    h.iommu_root = iommu.root();
    EXPECT_TRUE(iommu.map({kBus}, {kVirtual & ~(kPage4K - 1)}, kBytes + kPage4K,
                          host::BusRights(host::BusRight::Read) | host::BusRight::Write, {}));
    key = insert(15);
    record() = {.qpn = kFirstQpn + 3,
                .state = static_cast<std::uint32_t>(QpState::Rts),
                .type = static_cast<std::uint32_t>(transport::QpType::Rc),
                .pd = 2,
                .access = 14,
                .dest_qpn = 0x77,
                .expects = nic::Expected{500, 4, true}.word()};
    std::memcpy(record().destination, connection.own_address.bytes.data(), 16);
    seen.emplace(as_peer());
  }
  wire::Key insert(std::uint32_t access, std::vector<std::uint64_t> pages = {}) {
    return *keys.insert({.pd = 2,
                         .access = access,
                         .start = kVirtual + 0x32,
                         .bytes = kBytes,
                         .bus = {kBus + 0x32},
                         .pages = std::move(pages)});
  }
  nic::QpRecord& record() { return owner.tables().qps[3]; }
  bool takes(WorkOpcode kind = WorkOpcode::Write, wire::Psn next = {500}) const {
    return seen->domain_of(connection, next, kind) == 2u;
  }
  // Where the bytes are; nothing if it is not allowed.
  std::vector<pcie::Span> locate(wire::Key by, std::uint64_t address, std::uint64_t bytes,
                                 KeyRight right = KeyRight::RemoteWrite) const {
    pcie::SpanList spans;
    const KeyAccess access{.key = by, .pd = 2, .right = right, .address = address, .bytes = bytes};
    if (!seen->locate(access, connection.peer, spans)) return {};
    return {spans.all().begin(), spans.all().end()};
  }

  nic::Connection connection{
      .own = {0x77},
      .peer = {kFirstQpn + 3},
      .own_address = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
      .peer_address = {}};
  std::optional<PeerTables> seen;
  wire::Key key;
};

using Spans = std::vector<pcie::Span>;

TEST(PeerTables, TellWhereTheBytesOfARegionAreInThePeersProcess) {
  const Peer peer;
  EXPECT_EQ(peer.locate(peer.key, kVirtual + 0x32, kBytes), (Spans{{{kVirtual + 0x32}, kBytes}}));
  EXPECT_EQ(peer.locate(peer.key, kVirtual + 0x32 + kBytes - 1, 1),
            (Spans{{{kVirtual + 0x32 + kBytes - 1}, 1}}));
}

TEST(PeerTables, FollowPagesThatLieApart) {
  Peer peer;
  // The pages of the region in the opposite order.
  std::vector<std::uint64_t> pages;
  for (std::uint64_t i = 0; i <= kBytes / kPage4K; ++i)
    pages.push_back(kBus + (kBytes / kPage4K - i) * kPage4K);
  const wire::Key key = peer.insert(15, pages);
  EXPECT_EQ(peer.locate(key, kVirtual + 0x32 + kPage4K - 0x32 - 4, 8),
            (Spans{{{kVirtual + kBytes + kPage4K - 4}, 4}, {{kVirtual + kBytes - kPage4K}, 4}}));
}

TEST(PeerTables, SayNoToWhatTheKeyDoesNotPlainlyAllow) {
  Peer peer;
  const std::uint64_t first = kVirtual + 0x32;
  EXPECT_TRUE(peer.locate(peer.key, first - 1, 8).empty());
  EXPECT_TRUE(peer.locate(peer.key, first + kBytes - 7, 8).empty());
  EXPECT_TRUE(peer.locate({peer.key.value + 1}, first, 8).empty());
  EXPECT_TRUE(peer.locate({0xffff'ff00}, first, 8).empty());
  const wire::Key read_only = peer.insert(4);
  EXPECT_TRUE(peer.locate(read_only, first, 8).empty());
  EXPECT_FALSE(peer.locate(read_only, first, 8, KeyRight::RemoteRead).empty());
  peer.keys.remove(read_only);
  EXPECT_TRUE(peer.locate(read_only, first, 8, KeyRight::RemoteRead).empty());
}

TEST(PeerTables, SayNoToPagesThatAreNotMapped) {
  Peer peer;
  peer.iommu.unmap({kBus}, kBytes + kPage4K, {});
  EXPECT_TRUE(peer.locate(peer.key, kVirtual + 0x32, 8).empty());
}

TEST(PeerTables, CheckAWindowAndWhatItIsOf) {
  Peer peer;
  const wire::Key region = peer.insert(15 | 16);
  const wire::Key window = *peer.keys.insert_window(2, nic::WindowType::Two);
  const std::uint64_t first = kVirtual + 0x100;
  const nic::KeyTable::Bind bind{.window = window,
                                 .new_key = window,
                                 .region = region,
                                 .address = first,
                                 .bytes = 64,
                                 .access = 2};
  ASSERT_FALSE(peer.keys.bind(bind, 2, peer.connection.peer));
  EXPECT_EQ(peer.locate(window, first, 64), (Spans{{{first}, 64}}));
  EXPECT_TRUE(peer.locate(window, first, 65).empty());
  EXPECT_TRUE(peer.locate(window, first, 8, KeyRight::RemoteRead).empty());
  peer.owner.tables().keys[window.index()].bus = first + kBytes;  // a window that lies
  EXPECT_TRUE(peer.locate(window, first, 64).empty());
}

TEST(PeerTables, KnowTheOtherEndOfAConnection) {
  Peer peer;
  EXPECT_TRUE(peer.takes());
  const nic::QpRecord good = peer.record();
  const auto refuses = [&](auto change) {
    change(peer.record());
    const bool refused = !peer.takes();
    peer.record() = good;
    return refused;
  };
  using Record = nic::QpRecord;
  EXPECT_TRUE(refuses([](Record& r) { r.qpn = kFirstQpn + 4; }));
  EXPECT_TRUE(refuses([](Record& r) { r.dest_qpn = 0x78; }));
  EXPECT_TRUE(refuses([](Record& r) { r.destination[1] ^= 1; }));
  EXPECT_TRUE(refuses([](Record& r) { r.source[1] ^= 1; }));
  EXPECT_TRUE(refuses([](Record& r) { r.type = 3; }));
  EXPECT_TRUE(refuses([](Record& r) { r.access = 4; }));
  for (const QpState state : {QpState::Reset, QpState::Init, QpState::Error})
    EXPECT_TRUE(refuses([&](Record& r) { r.state = static_cast<std::uint32_t>(state); }));
}

// The first message of a connection is an event where the target waits for it in RTR: a packet.
TEST(PeerTables, TakeNothingBeforeTheirProgramKnowsOfTheConnection) {
  Peer peer;
  peer.record().state = static_cast<std::uint32_t>(QpState::Rtr);
  EXPECT_TRUE(peer.takes());
  peer.record().expects = nic::Expected{500, 4, false}.word();
  EXPECT_FALSE(peer.takes());
}

// Nothing that was sent before may still be under way.
TEST(PeerTables, KnowWhetherAllBeforeIsExecuted) {
  Peer peer;
  EXPECT_FALSE(peer.takes(WorkOpcode::Write, {501}));
  EXPECT_FALSE(peer.takes(WorkOpcode::Write, {499}));
  EXPECT_TRUE(peer.takes(WorkOpcode::Read));
  peer.record().expects = nic::Expected{500, 0, true}.word();
  EXPECT_FALSE(peer.takes(WorkOpcode::Read));
  EXPECT_TRUE(peer.takes(WorkOpcode::Write));
}

// Messages need no right of the queue pair.
TEST(PeerTables, TellWhichReceivesThePeerHasPosted) {
  Peer peer;
  nic::QpRecord& record = peer.record();
  record.access = 0;
  record.receive_posted = 9;
  record.receive_done = 4;
  record.receive_bus = kBus;
  record.receive_slots = 16;
  record.receive_stride = 64;
  const auto found = peer.seen->receives_of(peer.connection, {500});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->pd, 2u);
  EXPECT_EQ(found->posted, 9u);
  EXPECT_EQ(peer.seen->next_receive(peer.connection, {500})->number, 4u);
  EXPECT_FALSE(peer.seen->next_receive(peer.connection, {501}));
  EXPECT_EQ(found->ring.value, kBus);
  EXPECT_FALSE(peer.seen->receives_of(peer.connection, {501})) << "packets are under way";
  record.receive_slots = 12;
  EXPECT_FALSE(peer.seen->receives_of(peer.connection, {500})) << "no power of two";
  record.receive_slots = 16;
  record.receive_stride = 8;
  EXPECT_FALSE(peer.seen->receives_of(peer.connection, {500})) << "no room for a request";
  record.receive_slots = 0;
  EXPECT_TRUE(peer.seen->receives_of(peer.connection, {500})) << "it shares its receives";
}

// Whatever a process writes into its own tables, nobody reads beyond them.
TEST(PeerTables, BelieveNoNumber) {
  Peer peer;
  Prng random(7);
  nic::Tables tables = peer.owner.tables();
  for (int round = 0; round < 20'000; ++round) {
    nic::KeyRecord& record = tables.keys[1 + random.below(4)];
    record.state = 1;
    record.generation = 1;
    record.pd = 2;
    record.variant = 0;
    record.access = 15;
    record.layout = static_cast<std::uint32_t>(random.below(6));
    record.first_page = static_cast<std::uint32_t>(random.next() >> random.below(64));
    record.start = random.next() >> random.below(64);
    record.bytes = random.next() >> random.below(64);
    record.bus = random.below(2) != 0 ? kBus : random.next() >> random.below(64);
    record.page_offset = random.next() >> random.below(64);
    peer.locate(wire::Key::of(static_cast<std::uint32_t>(1 + random.below(4)), 0), record.start,
                1 + random.below(0x10000));
  }
  TableHeader header = peer.owner.header();
  header.iommu_at = header.end_at;
  std::memcpy(peer.memory.bytes().data(), &header, sizeof header);
  EXPECT_FALSE(PeerTables::over(peer.memory.read_only_bytes()));
}

}  // namespace
}  // namespace softhca::driver
