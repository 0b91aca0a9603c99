// Atomics through a cable that loses, and of several queue pairs on one word.
#include <functional>

#include "base/bytes.h"
#include "pair.h"

namespace softhca::sim {
namespace {

using transport::QpState;
using transport::Status;
using transport::WorkOpcode;

constexpr std::uint64_t kWordOffset = (0 - kBufferOffset) % 8;  // the first aligned word

std::uint64_t word_at(const Buffer& buffer, std::uint64_t offset) {
  return load_le<std::uint64_t>(buffer.host->load({buffer.start.value + offset}, 8));
}

void set_word(const Buffer& buffer, std::uint64_t offset, std::uint64_t value) {
  buffer.host->store({buffer.start.value + offset}, bytes_of(value));
}

driver::SendRequest atomic_request(WorkOpcode opcode, std::span<const driver::Sge> sges,
                                   const Buffer& target, std::uint64_t swap_or_add,
                                   std::uint64_t compare = 0) {
  driver::SendRequest request =
      remote_request(opcode, sges, target.start.value + kWordOffset, target.key);
  request.swap_or_add = swap_or_add;
  request.compare = compare;
  return request;
}

// Posts `count` atomics one behind the other, as many at a time as the queue takes. The k-th brings
// its original value into the k-th word of a's buffer.
void run_many(
    Pair& pair, const Connection::End& from, std::uint64_t count,
    const std::function<driver::SendRequest(std::uint64_t, std::span<driver::Sge>)>& make) {
  std::uint64_t posted = 0;
  std::uint64_t done = 0;
  const bool all = pair.world.run_until(
      [&] {
        for (const driver::Completion& c : pair.completions(from)) {
          EXPECT_EQ(c.status, Status::Success) << done;
          EXPECT_EQ(c.byte_count, 8u);
          ++done;
        }
        for (; posted < count && posted - done < 32; ++posted) {
          std::array sges{pair.a.sge(posted % 1000 * 8, 8)};
          pair.post(from, make(posted, sges));
        }
        return done == count;
      },
      seconds(100));
  EXPECT_TRUE(all);
}

WorldSettings lossy(std::uint64_t seed) {
  WorldSettings settings;
  settings.seed = seed;
  settings.network.delay = microseconds(2);
  settings.network.loss = 50;  // of a thousand
  settings.network.duplication = 50;
  settings.network.reordering = 50;
  settings.network.delay_spread = microseconds(5);
  return settings;
}

// C17: 1000 rounds with 5 % loss: the sum is exact, and each original value came once.
TEST(Atomic, ACounterIsIncrementedAsOftenAsItWasAsked) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    ConnectionSettings connection;
    connection.timeout = 6;
    Pair pair(connection, lossy(seed));
    set_word(pair.b, kWordOffset, 41);
    run_many(pair, pair.connection.a, 1000, [&](std::uint64_t, std::span<driver::Sge> sges) {
      return atomic_request(WorkOpcode::FetchAdd, sges, pair.b, 1);
    });
    EXPECT_EQ(word_at(pair.b, kWordOffset), 1041u);
    for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(word_at(pair.a, i * 8), 41 + i);
    EXPECT_GT(pair.world.host(0).counter(trace::Counter::Retransmits), 0u);
    pair.expect_surroundings_untouched();
  }
}

// C17: each swap compares with what the one before it left. One that is executed twice, or answered
// with what it left itself, breaks the chain.
TEST(Atomic, AChainOfSwapsHoldsThroughLosses) {
  ConnectionSettings connection;
  connection.timeout = 6;
  Pair pair(connection, lossy(4));
  set_word(pair.b, kWordOffset, 0);
  run_many(pair, pair.connection.a, 1000, [&](std::uint64_t i, std::span<driver::Sge> sges) {
    return atomic_request(WorkOpcode::CompareSwap, sges, pair.b, i + 1, i);
  });
  EXPECT_EQ(word_at(pair.b, kWordOffset), 1000u);
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(word_at(pair.a, i * 8), i);
}

TEST(Atomic, QueuePairsShareAWord) {
  Pair pair({}, lossy(5));
  ConnectionSettings second;
  second.pd_a = pair.connection.a.pd;
  second.pd_b = pair.connection.b.pd;
  const Connection other = connect(pair.world, pair.world.host(0), pair.world.host(1), second);
  set_word(pair.b, kWordOffset, 0);
  std::array into{pair.a.sge(0, 8)};
  std::size_t done = 0;
  std::size_t posted = 0;
  const bool all = pair.world.run_until(
      [&] {
        done += pair.completions(pair.connection.a).size() + pair.completions(other.a).size();
        for (; posted < 200 && posted - done < 20; ++posted)
          pair.post(posted % 2 == 0 ? pair.connection.a : other.a,
                    atomic_request(WorkOpcode::FetchAdd, into, pair.b, 1));
        return done == 200;
      },
      seconds(100));
  EXPECT_TRUE(all);
  EXPECT_EQ(word_at(pair.b, kWordOffset), 200u);
}

// C23: what is fenced sends what the atomic before it brought.
TEST(Atomic, AFencedWriteSendsTheOriginalValue) {
  WorldSettings settings;
  settings.network.delay = microseconds(50);
  Pair pair({}, settings);
  set_word(pair.b, kWordOffset, 0x0123456789abcdef);
  std::array into{pair.a.sge(0, 8)};
  pair.post(pair.connection.a, atomic_request(WorkOpcode::FetchAdd, into, pair.b, 1));
  auto write = remote_request(WorkOpcode::Write, into, pair.b.start.value + 4096, pair.b.key);
  write.flags |= driver::SendFlag::Fence;
  pair.post(pair.connection.a, write);
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).size(), 2u);
  EXPECT_EQ(word_at(pair.b, 4096), 0x0123456789abcdefu);
}

// The right of the region, that of the queue pair, bounds; C63: alignment, before the key.
TEST(Atomic, IsRefusedWithTheReasonAndChangesNothing) {
  struct Case {
    std::uint64_t offset;
    std::uint32_t key_change, region_access, qp_access;
    Status status;
    trace::ReasonId reason;
  };
  constexpr std::uint32_t kAll = kAllRights;
  for (const Case& c :
       {Case{0, 0, kAll & ~8u, kAll, Status::RemoteAccess, trace::ReasonId::RightMissing},
        Case{0, 0, kAll, kAll & ~8u, Status::RemoteAccess, trace::ReasonId::QpRightMissing},
        Case{0, 1, kAll, kAll, Status::RemoteAccess, trace::ReasonId::KeyStale},
        Case{kBufferBytes, 0, kAll, kAll, Status::RemoteAccess, trace::ReasonId::OutOfBounds},
        Case{4, 0, kAll, kAll, Status::RemoteInvalidRequest, trace::ReasonId::AtomicMisaligned},
        Case{4, 1, kAll, kAll, Status::RemoteInvalidRequest, trace::ReasonId::AtomicMisaligned}}) {
    ConnectionSettings connection;
    connection.access = c.qp_access;
    Pair pair(connection);
    const Buffer target = pair.make_buffer(pair.connection.b, c.region_access);
    std::array into{pair.a.sge(0, 8)};
    driver::SendRequest request = atomic_request(WorkOpcode::FetchAdd, into, target, 1);
    request.remote_address += c.offset;
    request.rkey.value ^= c.key_change;
    pair.post(pair.connection.a, request);
    pair.settle();
    const auto done = pair.completions(pair.connection.a);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, c.status);
    EXPECT_EQ(pair.connection.a.qp->state(), QpState::Error);
    ASSERT_EQ(pair.events_b.async.size(), 1u);
    EXPECT_EQ(pair.events_b.async[0].reason, c.reason);
    EXPECT_TRUE(pair.is_filled(target, 0, kBufferBytes, std::byte{0x11}));
    EXPECT_TRUE(pair.is_filled(pair.a, 0, kBufferBytes, std::byte{0x11}));
    pair.expect_surroundings_untouched();
  }
}

// C62, C63: what is wrong here is found before anything is sent.
TEST(Atomic, ALocalBufferThatIsWrongFailsBeforeAnythingIsSent) {
  for (const std::uint32_t bytes : {0u, 4u, 16u, 8u}) {
    Pair pair;
    std::array into{pair.a.sge(0, bytes)};
    if (bytes == 8) {
      const Buffer fixed = pair.make_buffer(pair.connection.a, 0);  // not writable
      into = {fixed.sge(0, 8)};
    }
    pair.post(pair.connection.a, atomic_request(WorkOpcode::FetchAdd, into, pair.b, 1));
    pair.post(pair.connection.a, atomic_request(WorkOpcode::FetchAdd, into, pair.b, 1));
    pair.settle();
    const auto done = pair.completions(pair.connection.a);
    ASSERT_EQ(done.size(), 2u);
    EXPECT_EQ(done[0].status, bytes == 8 ? Status::LocalProtection : Status::LocalLength);
    EXPECT_EQ(done[1].status, Status::Flushed);
    EXPECT_EQ(pair.world.host(0).counter(trace::Counter::PacketsSent), 0u);
    EXPECT_TRUE(pair.is_filled(pair.b, 0, kBufferBytes, std::byte{0x11}));
  }
}

}  // namespace
}  // namespace softhca::sim
