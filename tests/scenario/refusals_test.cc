// Who refuses what: the key table byte-exact, the IOMMU page-exact, each without the other.
#include "nic/ring_format.h"
#include "pair.h"

namespace softhca::sim {
namespace {

using driver::AsyncEventType;
using trace::ReasonId;
using transport::QpState;
using transport::Status;
using transport::WorkOpcode;

// One remote access that the responder must refuse.
struct RemoteCase {
  const char* name;
  WorkOpcode opcode;
  std::int64_t offset;  // from the start of b's buffer
  std::uint32_t bytes;
  std::uint32_t key_change;  // xor
  std::uint32_t access;      // of the target region
  ReasonId reason;           // as the responder's side has it
};

class RemoteRefusal : public testing::TestWithParam<RemoteCase> {};

// C9-83 ff., C41, C42, C48, C64: right status on both sides, states, flush in order, memory whole.
TEST_P(RemoteRefusal, EndsBothSidesAndTouchesNothing) {
  const RemoteCase& c = GetParam();
  Pair pair;
  const Buffer target = pair.make_buffer(pair.connection.b, c.access);
  std::array sges{pair.a.sge(0, c.bytes)};
  const auto request = [&](std::uint64_t wr_id, std::uint64_t address, std::uint32_t key) {
    pair.post(pair.connection.a, {.wr_id = wr_id,
                                  .opcode = c.opcode,
                                  .flags = {},
                                  .sges = sges,
                                  .immediate = 0,
                                  .remote_address = address,
                                  .rkey = {key}});
  };
  request(1, pair.b.start.value, pair.b.key.value);  // a good one before it
  request(2, target.start.value + static_cast<std::uint64_t>(c.offset),
          target.key.value ^ c.key_change);
  request(3, pair.b.start.value, pair.b.key.value);  // and work behind it
  request(4, pair.b.start.value, pair.b.key.value);
  pair.settle();

  const auto done = pair.completions(pair.connection.a);
  ASSERT_EQ(done.size(), 4u);
  const Status expected[] = {Status::Success, Status::RemoteAccess, Status::Flushed,
                             Status::Flushed};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(done[i].wr_id, i + 1);
    EXPECT_EQ(done[i].status, expected[i]) << i;
  }
  EXPECT_EQ(done[1].reason, ReasonId::RemoteAccess);
  EXPECT_EQ(pair.connection.a.qp->state(), QpState::Error);
  EXPECT_EQ(pair.connection.b.qp->state(), QpState::Error);
  // C49: the passive side hears of it, once.
  ASSERT_EQ(pair.events_b.async.size(), 1u);
  EXPECT_EQ(pair.events_b.async[0].type, AsyncEventType::QpAccessError);
  EXPECT_EQ(pair.events_b.async[0].qp, pair.connection.b.qp);
  EXPECT_EQ(pair.events_b.async[0].reason, c.reason);
  EXPECT_EQ(pair.world.host(1).counter(trace::Counter::IommuFaults), 0u);
  EXPECT_TRUE(pair.is_filled(target, 0, kBufferBytes, std::byte{0x11}));
  pair.expect_surroundings_untouched();
}

INSTANTIATE_TEST_SUITE_P(
    Each, RemoteRefusal,
    testing::Values(RemoteCase{"WriteWrongVariant", WorkOpcode::Write, 0, 64, 0x01, kAllRights,
                               ReasonId::KeyStale},
                    RemoteCase{"WriteUnknownKey", WorkOpcode::Write, 0, 64, 0x00ff'0000, kAllRights,
                               ReasonId::KeyUnknown},
                    RemoteCase{"WriteOneBeforeTheFront", WorkOpcode::Write, -1, 64, 0, kAllRights,
                               ReasonId::OutOfBounds},
                    RemoteCase{"WriteOnePastTheEnd", WorkOpcode::Write, kBufferBytes - 63, 64, 0,
                               kAllRights, ReasonId::OutOfBounds},
                    RemoteCase{"WriteOneByteBehind", WorkOpcode::Write, kBufferBytes, 1, 0,
                               kAllRights, ReasonId::OutOfBounds},
                    RemoteCase{"WriteWithoutTheRight", WorkOpcode::Write, 0, 64, 0, 1 | 4,
                               ReasonId::RightMissing},
                    RemoteCase{"ReadWrongVariant", WorkOpcode::Read, 0, 64, 0x01, kAllRights,
                               ReasonId::KeyStale},
                    RemoteCase{"ReadOneBeforeTheFront", WorkOpcode::Read, -1, 1, 0, kAllRights,
                               ReasonId::OutOfBounds},
                    RemoteCase{"ReadOnePastTheEnd", WorkOpcode::Read, kBufferBytes - 4095, 4096, 0,
                               kAllRights, ReasonId::OutOfBounds},
                    RemoteCase{"ReadWithoutTheRight", WorkOpcode::Read, 0, 64, 0, 1 | 2,
                               ReasonId::RightMissing}),
    [](const auto& tested) { return tested.param.name; });

// C41: an address that would wrap is refused, never added up.
TEST(Refusals, AWrappingAddressIsRefused) {
  Pair pair;
  std::array sges{pair.a.sge(0, 1024)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Write, sges, ~std::uint64_t{0} - 511, pair.b.key));
  pair.settle();
  const auto done = pair.completions(pair.connection.a);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::RemoteAccess);
  ASSERT_EQ(pair.events_b.async.size(), 1u);
  EXPECT_EQ(pair.events_b.async[0].reason, ReasonId::AddressWraps);
  pair.expect_surroundings_untouched();
}

// C42: a region of another protection domain is not there for this queue pair.
TEST(Refusals, ARegionOfAnotherProtectionDomainIsRefusedRemotelyAndLocally) {
  Pair pair;
  const auto other = pair.world.host(1).engine().alloc_pd();
  ASSERT_TRUE(other);
  const Buffer foreign = pair.make_buffer(pair.connection.b, kAllRights, *other);
  std::array sges{pair.a.sge(0, 64)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Write, sges, foreign.start.value, foreign.key));
  std::array local{foreign.sge(0, 64)};
  pair.post(pair.connection.b, {.wr_id = 2,
                                .opcode = WorkOpcode::Send,
                                .flags = {},
                                .sges = local,
                                .immediate = 0,
                                .remote_address = 0,
                                .rkey = {}});
  pair.settle();
  const auto local_done = pair.completions(pair.connection.b);
  ASSERT_EQ(local_done.size(), 1u);
  EXPECT_EQ(local_done[0].status, Status::LocalProtection);
  EXPECT_EQ(local_done[0].reason, ReasonId::KeyOtherDomain);
  EXPECT_TRUE(pair.is_filled(foreign, 0, kBufferBytes, std::byte{0x11}));
}

TEST(Refusals, ADeregisteredRegionIsRefused) {
  Pair pair;
  ASSERT_TRUE(pair.world.host(1).engine().deregister_memory(pair.b.key, pair.world.now()));
  std::array sges{pair.a.sge(0, 64)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Write, sges, pair.b.start.value, pair.b.key));
  pair.settle();
  const auto done = pair.completions(pair.connection.a);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::RemoteAccess);
  EXPECT_EQ(pair.events_b.async.at(0).reason, ReasonId::KeyStale);
  EXPECT_TRUE(pair.is_filled(pair.b, 0, kBufferBytes, std::byte{0x11}));
}

// IBTA 10.6.3.1: the local key is checked before anything is sent.
TEST(Refusals, AWrongLocalKeyFailsHereAndSendsNothing) {
  struct Case {
    std::uint64_t offset;
    std::uint32_t bytes, key_change;
    ReasonId reason;
  };
  for (const Case c :
       {Case{0, 64, 1, ReasonId::KeyStale}, Case{kBufferBytes - 10, 11, 0, ReasonId::OutOfBounds},
        Case{0, 64, 0x0f00'0000, ReasonId::KeyUnknown}}) {
    Pair pair;
    driver::Sge sge = pair.a.sge(c.offset, c.bytes);
    sge.lkey ^= c.key_change;
    std::array sges{sge};
    std::array good{pair.a.sge(0, 8)};
    const auto write = [&](std::uint64_t wr_id, std::span<const driver::Sge> list) {
      pair.post(pair.connection.a, {.wr_id = wr_id,
                                    .opcode = WorkOpcode::Write,
                                    .flags = {},
                                    .sges = list,
                                    .immediate = 0,
                                    .remote_address = pair.b.start.value,
                                    .rkey = pair.b.key});
    };
    write(1, good);
    write(2, sges);
    write(3, good);
    pair.settle();
    const auto done = pair.completions(pair.connection.a);
    ASSERT_EQ(done.size(), 3u);
    EXPECT_EQ(done[0].status, Status::Success);
    EXPECT_EQ(done[1].status, Status::LocalProtection);
    EXPECT_EQ(done[1].reason, c.reason);
    EXPECT_EQ(done[2].status, Status::Flushed);
    EXPECT_EQ(pair.connection.b.qp->state(), QpState::Rts);  // the peer never hears of it
    EXPECT_EQ(pair.world.host(1).counter(trace::Counter::PacketsReceived), 1u);
  }
}

// C65: an SGE lies inside one region, also if the next one begins right behind it.
TEST(Refusals, AReadIntoMemoryWithoutLocalWriteFailsHere) {
  Pair pair;
  const Buffer read_only = pair.make_buffer(pair.connection.a, 0);
  std::array sges{read_only.sge(0, 64)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Read, sges, pair.b.start.value, pair.b.key));
  pair.settle();
  const auto done = pair.completions(pair.connection.a);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::LocalProtection);
  EXPECT_EQ(done[0].reason, ReasonId::RightMissing);
}

// C48: without bytes there is nothing to check a key for.
TEST(Refusals, AnEmptyAccessNeedsNoKey) {
  Pair pair;
  for (const WorkOpcode opcode : {WorkOpcode::Write, WorkOpcode::Read})
    pair.post(pair.connection.a, {.wr_id = 1,
                                  .opcode = opcode,
                                  .flags = {},
                                  .sges = {},
                                  .immediate = 0,
                                  .remote_address = 0xdead,
                                  .rkey = {0xdead'beef}});
  pair.settle();
  const auto done = pair.completions(pair.connection.a);
  ASSERT_EQ(done.size(), 2u);
  for (const auto& c : done) EXPECT_EQ(c.status, Status::Success);
}

// The rights of the queue pair itself come before those of the key.
TEST(Refusals, AQueuePairWithoutRemoteRightsRefusesAGoodKey) {
  ConnectionSettings settings;
  settings.access = 1;
  Pair pair(settings);
  std::array sges{pair.a.sge(0, 64)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Write, sges, pair.b.start.value, pair.b.key));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::RemoteAccess);
  EXPECT_EQ(pair.events_b.async.at(0).reason, ReasonId::QpRightMissing);
}

// Where the request with that cookie lies in the host's rings.
nic::SendWqe* posted_request(Host& host, std::uint64_t cookie) {
  constexpr std::uint64_t kLookedThrough = std::uint64_t{8} << 20;  // rings are at the bottom
  for (std::uint64_t at = 0; at < kLookedThrough; at += sizeof(nic::SendWqe)) {
    auto* const wqe = reinterpret_cast<nic::SendWqe*>(host.ram().cpu_address({at}));
    if (wqe->cookie == cookie) return wqe;
  }
  return nullptr;
}

// The driver refuses inline data where bytes are to come; a program may write to its ring later.
TEST(Refusals, ARequestThatBecameAnInlineReadFailsAndTheDeviceGoesOn) {
  constexpr std::uint64_t kCookie = 0x1122'3344'5566'7788;
  for (const WorkOpcode opcode : {WorkOpcode::Read, WorkOpcode::FetchAdd}) {
    Pair pair;
    std::array sges{pair.a.sge(0, 8)};
    driver::SendRequest posted =
        remote_request(WorkOpcode::Write, sges, pair.b.start.value, pair.b.key);
    posted.wr_id = kCookie;
    posted.flags = driver::SendFlag::Signaled;
    driver::Engine& engine = pair.world.host(0).engine();
    driver::QueuePair& qp = *pair.connection.a.qp;
    ASSERT_TRUE(engine.post_send(qp, posted, true, pair.world.now()));
    nic::SendWqe* const wqe = posted_request(pair.world.host(0), kCookie);
    ASSERT_NE(wqe, nullptr);
    wqe->opcode = static_cast<std::uint8_t>(opcode);
    wqe->flags |= static_cast<std::uint8_t>(nic::WqeFlag::Inline);
    wqe->segments = 0;
    wqe->inline_bytes = 8;
    engine.ring_send_doorbell(qp, pair.world.now());
    pair.settle();
    const auto done = pair.completions(pair.connection.a);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, Status::LocalQpOperation);
    EXPECT_EQ(done[0].reason, ReasonId::WqeMalformed);
    EXPECT_EQ(pair.world.host(0).counter(trace::Counter::PacketsSent), 0u);
    EXPECT_FALSE(engine.stopped());
  }
}

// DESIGN D4: the key table is wrong on purpose; the IOMMU, which knows nothing of keys, stops it.
TEST(Refusals, AKeyEntryThatPointsElsewhereIsStoppedByTheIommu) {
  Pair pair;
  nic::KeyRecord& entry = pair.world.host(1).tables().keys[pair.b.key.index()];
  entry.layout = static_cast<std::uint32_t>(nic::KeyLayout::Contiguous);
  entry.bus += std::uint64_t{1} << 40;
  std::array sges{pair.a.sge(0, 64)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Write, sges, pair.b.start.value, pair.b.key));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::RemoteOperation);
  EXPECT_EQ(pair.events_b.async.at(0).type, AsyncEventType::QpFatal);
  EXPECT_EQ(pair.events_b.async.at(0).reason, ReasonId::IommuNotMapped);
  EXPECT_GE(pair.world.host(1).counter(trace::Counter::IommuFaults), 1u);
  EXPECT_TRUE(pair.is_filled(pair.b, 0, kBufferBytes, std::byte{0x11}));
  pair.expect_surroundings_untouched();
}

// The same with an IOMMU that lets everything pass: the key table refuses alone.
TEST(Refusals, WithoutAnIommuTheKeyTableStillRefusesEveryByteThatWasNotRegistered) {
  for (const host::IommuMode broken : {host::IommuMode::Off, host::IommuMode::PassThrough})
    for (const std::int64_t offset : {-1, static_cast<int>(kBufferBytes)}) {
      WorldSettings settings;
      settings.host.iommu = broken;
      Pair pair({}, settings);
      std::array sges{pair.a.sge(0, 1)};
      const std::uint64_t address = pair.b.start.value + static_cast<std::uint64_t>(offset);
      pair.post(pair.connection.a, remote_request(WorkOpcode::Write, sges, address, pair.b.key));
      pair.settle();
      EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::RemoteAccess);
      EXPECT_EQ(pair.events_b.async.at(0).reason, ReasonId::OutOfBounds);
      pair.expect_surroundings_untouched();
    }
}

// ... and the other way round: all of the page is mapped, the key table still refuses the next
// byte.
TEST(Refusals, TheIommuMapsWholePagesAndTheKeyTableStillRefusesTheByteBehind) {
  Pair pair;
  std::array sges{pair.a.sge(0, 1)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Read, sges, pair.b.start.value + kBufferBytes, pair.b.key));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::RemoteAccess);
  EXPECT_EQ(pair.events_b.async.at(0).reason, ReasonId::OutOfBounds);
  EXPECT_EQ(pair.world.host(1).counter(trace::Counter::IommuFaults), 0u);
}

// Packets of kMtu bytes between hosts that map each page on its own; the first one's buffer is full
// of 0x77.
struct ScatteredPair : Pair {
  static constexpr std::uint32_t kMtu = 256;
  ScatteredPair() : Pair(small_packets(), single_pages()) {
    world.host(0).fill(a.start, kBufferBytes, std::byte{0x77});
  }
  static ConnectionSettings small_packets() {
    ConnectionSettings settings;
    settings.mtu = kMtu;
    return settings;
  }
  static WorldSettings single_pages() {
    WorldSettings settings;
    settings.host.scatter = true;
    return settings;
  }
};
// What arrives of a message whose second page is not there.
constexpr std::uint64_t kWhole =
    (kPage4K - kBufferOffset) / ScatteredPair::kMtu * ScatteredPair::kMtu;

// Takes the second page of a buffer out of the IOMMU.
void unmap_second_page(Pair& pair, const Buffer& buffer) {
  const nic::Tables tables = buffer.host->tables();
  const nic::KeyRecord& entry = tables.keys[buffer.key.index()];
  ASSERT_EQ(entry.layout, static_cast<std::uint32_t>(nic::KeyLayout::Pages));
  buffer.host->iommu().unmap(BusAddr{tables.translations[entry.first_page + 1]}, kPage4K,
                             pair.world.now());
}

// Packets that follow each other move in one access. If a part of it faults, they arrive as far as
// they would have one by one, and the one that cannot be placed is the one that says so.
TEST(Refusals, AFaultInTheMiddleOfAMessageStopsItThere) {
  for (const bool at_source : {false, true}) {
    ScatteredPair pair;
    unmap_second_page(pair, at_source ? pair.a : pair.b);
    std::array sges{pair.a.sge(0, kBufferBytes)};
    pair.post(pair.connection.a,
              remote_request(WorkOpcode::Write, sges, pair.b.start.value, pair.b.key));
    pair.settle();
    EXPECT_EQ(pair.completions(pair.connection.a).at(0).status,
              at_source ? Status::LocalQpOperation : Status::RemoteOperation);
    EXPECT_TRUE(pair.is_filled(pair.b, 0, kWhole, std::byte{0x77}));
    EXPECT_TRUE(pair.is_filled(pair.b, kWhole, kBufferBytes - kWhole, std::byte{0x11}));
    pair.expect_surroundings_untouched();
  }
}

// The same for what a receive takes: its pieces end in the middle of packets.
TEST(Refusals, AMessageInPiecesIsPlacedAsFarAsItCanBe) {
  for (const bool faults : {false, true}) {
    ScatteredPair pair;
    if (faults) unmap_second_page(pair, pair.b);
    std::array pieces{pair.b.sge(0, 300), pair.b.sge(300, 1000),
                      pair.b.sge(1300, kBufferBytes - 1300)};
    pair.post_receive(pair.connection.b, 5, pieces);
    std::array sges{pair.a.sge(0, kBufferBytes)};
    pair.post(pair.connection.a, remote_request(WorkOpcode::Send, sges, 0, {}));
    pair.settle();
    EXPECT_EQ(pair.completions(pair.connection.a).at(0).status,
              faults ? Status::RemoteOperation : Status::Success);
    EXPECT_EQ(pair.completions(pair.connection.b).at(0).status,
              faults ? Status::LocalProtection : Status::Success);
    const std::uint64_t placed = faults ? kWhole : kBufferBytes;
    EXPECT_TRUE(pair.is_filled(pair.b, 0, placed, std::byte{0x77}));
    EXPECT_TRUE(pair.is_filled(pair.b, placed, kBufferBytes - placed, std::byte{0x11}));
    pair.expect_surroundings_untouched();
  }
}

TEST(Refusals, WithoutBusMasterTheDeviceReachesNothing) {
  Pair pair;
  pair.world.host(0).config().set_bus_master(false);
  std::array sges{pair.a.sge(0, 64)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Write, sges, pair.b.start.value, pair.b.key));
  pair.settle();
  EXPECT_TRUE(pair.completions(pair.connection.a).empty());  // not even a completion can be written
  EXPECT_EQ(pair.world.host(1).counter(trace::Counter::PacketsReceived), 0u);
}

// C28, C29: what is posted to a failed queue pair is flushed, for ever and on both queues.
TEST(Refusals, EverythingPostedToAFailedQueuePairIsFlushedInOrder) {
  Pair pair;
  std::array sges{pair.a.sge(0, 64)};
  for (std::uint64_t i = 0; i < 3; ++i) pair.post_receive(pair.connection.a, 100 + i, sges);
  pair.post(pair.connection.a, remote_request(WorkOpcode::Write, sges, 1, pair.b.key));
  pair.settle();
  for (std::uint64_t round = 0; round < 10; ++round) {
    const auto posted = pair.world.host(0).engine().post_send(*pair.connection.a.qp,
                                                              {.wr_id = 10 + round,
                                                               .opcode = WorkOpcode::Write,
                                                               .flags = {},
                                                               .sges = sges,
                                                               .immediate = 0,
                                                               .remote_address = pair.b.start.value,
                                                               .rkey = pair.b.key},
                                                              false, pair.world.now());
    ASSERT_TRUE(posted);
    pair.post_receive(pair.connection.a, 200 + round, sges);
  }
  pair.settle();
  std::vector<std::uint64_t> sends, receives;
  for (const auto& c : pair.completions(pair.connection.a)) {
    (c.wr_id >= 100 ? receives : sends).push_back(c.wr_id);
    EXPECT_EQ(c.status, c.wr_id == 1 ? Status::RemoteAccess : Status::Flushed) << c.wr_id;
  }
  EXPECT_EQ(sends, (std::vector<std::uint64_t>{1, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}));
  EXPECT_EQ(receives, (std::vector<std::uint64_t>{100, 101, 102, 200, 201, 202, 203, 204, 205, 206,
                                                  207, 208, 209}));
}

// C53: every combination of rights; remote write without local write is no registration.
TEST(Registration, RemoteWriteNeedsLocalWrite) {
  Pair pair;
  for (std::uint32_t access = 0; access < 16; ++access) {
    const auto region = pair.world.host(0).engine().register_memory(
        pair.connection.a.pd, pair.a.start, 64, {pair.a.start.value},
        driver::AccessFlags::of_bits(access), pair.world.now());
    const bool bad = (access & (2 | 8)) != 0 && (access & 1) == 0;
    EXPECT_EQ(static_cast<bool>(region), !bad) << access;
    if (!region) {
      EXPECT_EQ(region.error().id, ReasonId::BadAccessFlags);
    }
  }
}

TEST(Registration, HolesAndReadOnlyPagesAreRefusedWithTheirAddress) {
  Pair pair;
  Host& host = pair.world.host(0);
  const VirtAddr three = host.allocate(3 * kPage4K);
  const auto attempt = [&](std::uint32_t access) {
    return host.engine().register_memory(pair.connection.a.pd, {three.value + 10}, 3 * kPage4K - 10,
                                         {three.value + 10}, driver::AccessFlags::of_bits(access),
                                         pair.world.now());
  };
  host.protect({three.value + kPage4K}, kPage4K);
  EXPECT_TRUE(attempt(0));
  const auto read_only = attempt(1);
  ASSERT_FALSE(read_only);
  EXPECT_EQ(read_only.error().id, ReasonId::PageReadOnly);
  EXPECT_EQ(read_only.error().address, three.value + kPage4K);
  host.unmap({three.value + 2 * kPage4K}, kPage4K);
  const auto hole = attempt(0);
  ASSERT_FALSE(hole);
  EXPECT_EQ(hole.error().id, ReasonId::HoleInRange);
  EXPECT_EQ(hole.error().address, three.value + 2 * kPage4K);
}

// C58: peers use the I/O address; the page offsets must agree.
TEST(Registration, AnIoAddressOfItsOwnIsWhatPeersUse) {
  Pair pair;
  Host& host = pair.world.host(1);
  const VirtAddr start = host.allocate(3 * kPage4K, 24);
  const WireAddr io{0x4000'0000 | 24};
  const auto wrong =
      host.engine().register_memory(pair.connection.b.pd, start, 100, {io.value + 8},
                                    driver::AccessFlags::of_bits(kAllRights), pair.world.now());
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().id, ReasonId::PageOffsetDiffers);
  const auto region =
      host.engine().register_memory(pair.connection.b.pd, start, 3 * kPage4K - 24, io,
                                    driver::AccessFlags::of_bits(kAllRights), pair.world.now());
  ASSERT_TRUE(region);
  host.fill(start, 3 * kPage4K - 24, std::byte{0});
  std::array sges{pair.a.sge(0, 6000)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Write, sges, io.value + 3000, region->key));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::Success);
  const auto memory = host.load(start, 3 * kPage4K - 24);
  for (std::size_t i = 0; i < memory.size(); ++i)
    EXPECT_EQ(memory[i], i >= 3000 && i < 9000 ? std::byte{0x11} : std::byte{0}) << i;
}

}  // namespace
}  // namespace softhca::sim
