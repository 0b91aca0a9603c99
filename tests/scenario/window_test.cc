// Memory windows, invalidation and changed regions, between simulated hosts.
#include "pair.h"

namespace softhca::sim {
namespace {

using driver::Access;
using driver::AsyncEventType;
using driver::CompletionOpcode;
using nic::WindowType;
using trace::ReasonId;
using transport::QpState;
using transport::Status;
using transport::WorkOpcode;

constexpr std::uint32_t kBindable = kAllRights | 16;
constexpr std::uint64_t kWindowAt = 1000, kWindowBytes = 4000;

// b opens a part of its buffer; a reaches it.
struct WindowPair : Pair {
  explicit WindowPair(const ConnectionSettings& settings = {}, const WorldSettings& world = {})
      : Pair(settings, world), region(make_buffer(connection.b, kBindable)) {}

  driver::Engine& engine() { return b.host->engine(); }
  wire::Key window(WindowType type = WindowType::Two) {
    const auto key = engine().alloc_window(connection.b.pd, type);
    EXPECT_TRUE(key);
    return *key;
  }
  driver::SendRequest bind_request(wire::Key window, std::uint32_t access = 2 | 4 | 8) {
    driver::SendRequest request;
    request.wr_id = 7;
    request.opcode = WorkOpcode::BindWindow;
    request.bind = {.window = window,
                    .new_key = {(window.value & ~0xffu) | 0x42},
                    .region = region.key,
                    .address = region.start.value + kWindowAt,
                    .length = kWindowBytes,
                    .access = driver::AccessFlags::of_bits(access)};
    return request;
  }
  // Binds, and gives the key.
  wire::Key bind(wire::Key window, std::uint32_t access = 2 | 4 | 8) {
    const auto request = bind_request(window, access);
    post(connection.b, request);
    settle();
    const auto done = completions(connection.b);
    EXPECT_EQ(done.size(), 1u);
    if (done.size() == 1) {
      EXPECT_EQ(done[0].status, Status::Success);
      EXPECT_EQ(done[0].opcode, CompletionOpcode::BindWindow);
    }
    return request.bind.new_key;
  }
  driver::SendRequest access(WorkOpcode opcode, std::span<const driver::Sge> sges, wire::Key key,
                             std::uint64_t offset = 0) {
    return remote_request(opcode, sges, region.start.value + kWindowAt + offset, key);
  }
  Status run(const driver::SendRequest& request) {
    post(connection.a, request);
    settle();
    const auto done = completions(connection.a);
    EXPECT_EQ(done.size(), 1u);
    return done.empty() ? Status::Flushed : done[0].status;
  }
  driver::SendRequest invalidate(wire::Key key) {
    driver::SendRequest request;
    request.wr_id = 8;
    request.opcode = WorkOpcode::LocalInvalidate;
    request.rkey = key;
    return request;
  }

  Buffer region;
};

TEST(MemoryWindow, OpensAPartOfARegion) {
  WindowPair t;
  t.a.host->fill(t.a.start, kBufferBytes, std::byte{0x33});
  const wire::Key key = t.bind(t.window());
  std::array all{t.a.sge(0, kWindowBytes)};
  EXPECT_EQ(t.run(t.access(WorkOpcode::Write, all, key)), Status::Success);
  EXPECT_TRUE(t.is_filled(t.region, 0, kWindowAt, std::byte{0x11}));
  EXPECT_TRUE(t.is_filled(t.region, kWindowAt, kWindowBytes, std::byte{0x33}));
  EXPECT_TRUE(t.is_filled(t.region, kWindowAt + kWindowBytes, 1000, std::byte{0x11}));
  t.region.host->fill({t.region.start.value + kWindowAt}, kWindowBytes, std::byte{0x44});
  EXPECT_EQ(t.run(t.access(WorkOpcode::Read, all, key)), Status::Success);
  EXPECT_TRUE(t.is_filled(t.a, 0, kWindowBytes, std::byte{0x44}));
  t.region.host->fill({t.region.start.value}, kBufferBytes, std::byte{0});
  std::array word{t.a.sge(0, 8)};
  auto atomic = t.access(WorkOpcode::FetchAdd, word, key, (0 - kBufferOffset - kWindowAt) % 8);
  atomic.swap_or_add = 5;
  EXPECT_EQ(t.run(atomic), Status::Success);
  // One byte too far: the region goes on there, the window does not.
  EXPECT_EQ(t.run(t.access(WorkOpcode::Write, all, key, 1)), Status::RemoteAccess);
  EXPECT_EQ(t.events_b.async.at(0).reason, ReasonId::OutOfBounds);
  t.expect_surroundings_untouched();
}

// A bind is in force for the SEND behind it, so the peer may use the key as soon as it hears of it.
TEST(MemoryWindow, IsBoundBeforeWhatIsPostedBehindIt) {
  WindowPair t;
  const auto bind = t.bind_request(t.window());
  std::array into{t.a.sge(0, 8)};
  t.post_receive(t.connection.a, 1, into);
  ASSERT_TRUE(t.engine().post_send(*t.connection.b.qp, bind, true, t.world.now()));
  std::array from{t.b.sge(0, 8)};
  t.post(t.connection.b, remote_request(WorkOpcode::Send, from, 0, {}));
  t.world.run_until([&] { return !t.completions(t.connection.a).empty(); }, seconds(1));
  std::array word{t.a.sge(0, 8)};
  EXPECT_EQ(t.run(t.access(WorkOpcode::Read, word, bind.bind.new_key)), Status::Success);
}

// C43, C42: MW_BIND_ERR, the queue pair is in error, what is behind is flushed, and the key is
// dead.
TEST(MemoryWindow, ARefusedBindEndsTheQueuePair) {
  WindowPair t;
  const Buffer plain = t.make_buffer(t.connection.b, kAllRights);
  auto bind = t.bind_request(t.window());
  bind.bind.region = plain.key;
  bind.bind.address = plain.start.value;
  t.post(t.connection.b, bind);
  std::array from{t.b.sge(0, 8)};
  t.post(t.connection.b, remote_request(WorkOpcode::Send, from, 0, {}));
  t.settle();
  const auto done = t.completions(t.connection.b);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::MwBind);
  EXPECT_EQ(done[0].reason, ReasonId::BindNotAllowed);
  EXPECT_EQ(done[1].status, Status::Flushed);
  EXPECT_EQ(t.connection.b.qp->state(), QpState::Error);
}

TEST(MemoryWindow, RefusesAtOnceWhatNoDeviceWouldTake) {
  WindowPair t;
  auto bind = t.bind_request(t.window());
  const auto refused = [&] {
    const auto posted = t.engine().post_send(*t.connection.b.qp, bind, false, t.world.now());
    return posted ? ReasonId::None : posted.error().id;
  };
  bind.bind.new_key.value += 0x100;
  EXPECT_EQ(refused(), ReasonId::BindKeyIndex);
  bind = t.bind_request(bind.bind.window, 16);
  EXPECT_EQ(refused(), ReasonId::BadAccessFlags);
  bind = t.bind_request(bind.bind.window);
  std::array some{t.b.sge(0, 8)};
  bind.sges = some;
  EXPECT_EQ(refused(), ReasonId::TooManySges);
}

TEST(MemoryWindow, OfType2EndsWithAnInvalidationOnEitherSide) {
  for (const bool is_remote : {false, true}) {
    WindowPair t;
    const wire::Key window = t.window();
    wire::Key key = t.bind(window);
    std::array word{t.a.sge(0, 8)};
    EXPECT_EQ(t.run(t.access(WorkOpcode::Write, word, key)), Status::Success);
    if (is_remote) {
      std::array into{t.b.sge(0, 8)};
      t.post_receive(t.connection.b, 9, into);
      auto send = t.access(WorkOpcode::SendInvalidate, word, key);
      EXPECT_EQ(t.run(send), Status::Success);
      const auto received = t.completions(t.connection.b);
      ASSERT_EQ(received.size(), 1u);
      EXPECT_TRUE(received[0].with_invalidation);
      EXPECT_EQ(received[0].immediate, key.value);
      EXPECT_EQ(received[0].byte_count, 8u);
    } else {
      t.post(t.connection.b, t.invalidate(key));
      t.settle();
      const auto done = t.completions(t.connection.b);
      ASSERT_EQ(done.size(), 1u);
      EXPECT_EQ(done[0].status, Status::Success);
      EXPECT_EQ(done[0].opcode, CompletionOpcode::LocalInvalidate);
    }
    key = t.bind(window);  // C44: under the very same key
    EXPECT_EQ(t.run(t.access(WorkOpcode::Write, word, key)), Status::Success);
    t.post(t.connection.b, t.invalidate(key));
    t.settle();
    EXPECT_EQ(t.run(t.access(WorkOpcode::Write, word, key)), Status::RemoteAccess);
    EXPECT_EQ(t.events_b.async.at(0).reason, ReasonId::WindowUnbound);
  }
}

// What registration made ends with deregistration, never by a peer's word.
TEST(MemoryWindow, APeerCannotInvalidateARegion) {
  WindowPair t;
  std::array word{t.a.sge(0, 8)};
  std::array into{t.b.sge(0, 8)};
  t.post_receive(t.connection.b, 9, into);
  EXPECT_EQ(t.run(t.access(WorkOpcode::SendInvalidate, word, t.region.key)), Status::RemoteAccess);
  const auto received = t.completions(t.connection.b);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].status, Status::LocalAccess);
  EXPECT_EQ(received[0].reason, ReasonId::NotInvalidatable);
  EXPECT_TRUE(t.engine().deregister_memory(t.region.key, t.world.now()));
}

// C45: a region with a window stays, the window works, and afterwards the region may go.
TEST(MemoryWindow, KeepsItsRegion) {
  WindowPair t;
  const wire::Key window = t.window();
  const wire::Key key = t.bind(window);
  std::array word{t.a.sge(0, 8)};
  const auto busy = t.engine().deregister_memory(t.region.key, t.world.now());
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().id, ReasonId::RegionHasWindows);
  const auto changed = t.engine().change_memory(
      t.region.key, {.pd = {}, .buffer = {}, .access = driver::AccessFlags::of_bits(kBindable)},
      t.world.now());
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().id, ReasonId::RegionHasWindows);
  EXPECT_FALSE(t.engine().dealloc_pd(t.connection.b.pd));
  EXPECT_EQ(t.run(t.access(WorkOpcode::Read, word, key)), Status::Success);
  t.engine().dealloc_window(window);
  EXPECT_TRUE(t.engine().deregister_memory(t.region.key, t.world.now()));
  EXPECT_EQ(t.run(t.access(WorkOpcode::Read, word, key)), Status::RemoteAccess);
}

// C21: a window that ends in the middle of many READs: one error, the rest flushed, no retries.
TEST(MemoryWindow, ThatEndsAmongReadsEndsThem) {
  WorldSettings settings;
  settings.network.delay = microseconds(10);
  ConnectionSettings connection;
  connection.mtu = 256;
  WindowPair t(connection, settings);
  const wire::Key window = t.window();
  const wire::Key key = t.bind(window);
  std::array all{t.a.sge(0, kWindowBytes)};
  for (int i = 0; i < 20; ++i) t.post(t.connection.a, t.access(WorkOpcode::Read, all, key));
  t.world.run_until([&] { return t.world.host(1).counter(trace::Counter::PacketsReceived) > 8; },
                    seconds(1));
  t.engine().dealloc_window(window);
  t.settle();
  const auto done = t.completions(t.connection.a);
  ASSERT_EQ(done.size(), 20u);
  int failed = 0;
  for (const driver::Completion& one : done) {
    if (one.status == Status::Success) {
      EXPECT_EQ(failed, 0);
      continue;
    }
    EXPECT_EQ(one.status, failed == 0 ? Status::RemoteAccess : Status::Flushed);
    ++failed;
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 20);
  EXPECT_EQ(t.world.host(0).counter(trace::Counter::Retransmits), 0u);
}

// A type 2 window goes with its queue pair; one of type 1 serves every queue pair of the domain.
TEST(MemoryWindow, OfType2GoesWithItsQueuePair) {
  WindowPair t;
  ConnectionSettings second;
  second.pd_a = t.connection.a.pd;
  second.pd_b = t.connection.b.pd;
  const Connection other = connect(t.world, t.world.host(0), t.world.host(1), second);
  const wire::Key one = t.bind(t.window(WindowType::One));
  const wire::Key two = t.bind(t.window());
  std::array word{t.a.sge(0, 8)};
  t.post(other.a, t.access(WorkOpcode::Read, word, one));
  t.post(other.a, t.access(WorkOpcode::Read, word, two));
  t.settle();
  const auto done = t.completions(other.a);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::Success);
  EXPECT_EQ(done[1].status, Status::RemoteAccess);
  EXPECT_FALSE(t.engine().deregister_memory(t.region.key, t.world.now()));
  EXPECT_TRUE(t.engine().destroy_qp(*t.connection.b.qp, t.world.now()));
  EXPECT_FALSE(t.engine().deregister_memory(t.region.key, t.world.now())) << "type 1 is bound";
  t.engine().unbind_windows(t.region.key);
  EXPECT_TRUE(t.engine().deregister_memory(t.region.key, t.world.now()));
}

// The key stays and means the new bytes; the old ones are unmapped and unpinned.
TEST(ChangedRegion, MeansOtherBytesUnderTheSameKey) {
  Pair pair;
  Host& host = *pair.b.host;
  const VirtAddr fresh = host.allocate(2 * kPage4K);
  host.fill(fresh, 2 * kPage4K, std::byte{0x55});
  const auto changed = host.engine().change_memory(
      pair.b.key, {.pd = {}, .buffer = Range<VirtSpace>{fresh, kPage4K}, .access = {}},
      pair.world.now());
  ASSERT_TRUE(changed);
  std::array into{pair.a.sge(0, 8)};
  pair.post(pair.connection.a, remote_request(WorkOpcode::Read, into, fresh.value, pair.b.key));
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Read, into, pair.b.start.value, pair.b.key));
  pair.settle();
  const auto done = pair.completions(pair.connection.a);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::Success);
  EXPECT_EQ(done[1].status, Status::RemoteAccess);
  EXPECT_TRUE(pair.is_filled(pair.a, 0, 8, std::byte{0x55}));
}

TEST(ChangedRegion, IsWhatItWasWhenTheChangeFails) {
  Pair pair;
  Host& host = *pair.b.host;
  const auto change = [&](const driver::Engine::RegionChange& wanted) {
    const auto changed = host.engine().change_memory(pair.b.key, wanted, pair.world.now());
    return changed ? ReasonId::None : changed.error().id;
  };
  EXPECT_EQ(change({.pd = {}, .buffer = Range<VirtSpace>{{0x10}, kPage4K}, .access = {}}),
            ReasonId::HoleInRange);
  EXPECT_EQ(change({.pd = {}, .buffer = {}, .access = driver::AccessFlags::of_bits(2)}),
            ReasonId::BadAccessFlags);
  std::array into{pair.a.sge(0, 8)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Read, into, pair.b.start.value, pair.b.key));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::Success);
  // Rights and domain change without the bytes.
  EXPECT_EQ(change({.pd = {}, .buffer = {}, .access = driver::AccessFlags::of_bits(1 | 4)}),
            ReasonId::None);
  std::array from{pair.a.sge(0, 8)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Write, from, pair.b.start.value, pair.b.key));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::RemoteAccess);
}

// Every address is in it, and no byte: written bytes vanish, read ones are zero.
TEST(NullRegion, ReadsAsZerosAndForgets) {
  Pair pair;
  const auto key = pair.a.host->engine().register_nothing(pair.connection.a.pd);
  ASSERT_TRUE(key);
  const std::array nothing{driver::Sge{0xffff'ffff'ffff'fff0, 16, key->value},
                           driver::Sge{0, 4000, key->value}, pair.a.sge(0, 8)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Write, nothing, pair.b.start.value, pair.b.key));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::Success);
  EXPECT_TRUE(pair.is_filled(pair.b, 0, 4016, std::byte{0}));
  EXPECT_TRUE(pair.is_filled(pair.b, 4016, 8, std::byte{0x11}));
  pair.b.host->fill(pair.b.start, 4024, std::byte{0x66});
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Read, nothing, pair.b.start.value, pair.b.key));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::Success);
  EXPECT_TRUE(pair.is_filled(pair.a, 0, 8, std::byte{0x66}));
  EXPECT_TRUE(pair.a.host->engine().deregister_memory(*key, pair.world.now()));
  pair.expect_surroundings_untouched();
}

// It is for local use alone.
TEST(NullRegion, IsNotForPeers) {
  Pair pair;
  const auto key = pair.b.host->engine().register_nothing(pair.connection.b.pd);
  ASSERT_TRUE(key);
  std::array into{pair.a.sge(0, 8)};
  pair.post(pair.connection.a, remote_request(WorkOpcode::Read, into, 0x1000, *key));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, Status::RemoteAccess);
  EXPECT_EQ(pair.events_b.async.at(0).reason, ReasonId::RightMissing);
}

// C11, through the whole device: eight aligned bytes, in order with the rest, exactly once.
TEST(AtomicWrite, WritesAWord) {
  WorldSettings settings;
  settings.seed = 5;
  settings.network.loss = 50;
  settings.network.duplication = 50;
  ConnectionSettings connection;
  connection.timeout = 6;
  Pair pair(connection, settings);
  constexpr std::uint64_t kWord = (0 - kBufferOffset) % 8;
  for (std::uint64_t i = 0; i < 100; ++i) {
    pair.a.host->store(pair.a.start, bytes_of(i));
    std::array from{pair.a.sge(0, 8)};
    pair.post(pair.connection.a, remote_request(WorkOpcode::AtomicWrite, from,
                                                pair.b.start.value + kWord, pair.b.key));
    pair.settle(seconds(1));
    const auto done = pair.completions(pair.connection.a);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, Status::Success);
    EXPECT_EQ(done[0].opcode, CompletionOpcode::AtomicWrite);
    EXPECT_EQ(load_le<std::uint64_t>(pair.b.host->load({pair.b.start.value + kWord}, 8)), i);
  }
  pair.expect_surroundings_untouched();
}

TEST(AtomicWrite, NeedsEightAlignedBytesAndTheRightToWrite) {
  struct Case {
    std::uint32_t bytes;
    std::uint64_t offset;
    std::uint32_t region_access;
    Status status;
  };
  constexpr std::uint64_t kWord = (0 - kBufferOffset) % 8;
  for (const Case& c : {Case{7, kWord, kAllRights, Status::LocalLength},
                        Case{16, kWord, kAllRights, Status::LocalLength},
                        Case{8, kWord + 4, kAllRights, Status::RemoteInvalidRequest},
                        Case{8, kWord, kAllRights & ~2u, Status::RemoteAccess},
                        Case{8, kWord, 1 | 2, Status::Success}}) {
    Pair pair;
    const Buffer target = pair.make_buffer(pair.connection.b, c.region_access);
    std::array from{pair.a.sge(0, c.bytes)};
    pair.post(pair.connection.a, remote_request(WorkOpcode::AtomicWrite, from,
                                                target.start.value + c.offset, target.key));
    pair.settle();
    EXPECT_EQ(pair.completions(pair.connection.a).at(0).status, c.status);
  }
}

}  // namespace
}  // namespace softhca::sim
