#include "nic/receive_queue.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/range.h"

namespace softhca::nic {
namespace {

using trace::ReasonId;

// A bus whose addresses are places in a stretch of bytes.
class Bytewise final : public pcie::DmaPort {
 public:
  pcie::Outcome resolve(const pcie::Access& access, Time now, pcie::SpanList& spans) override {
    if (!Range<BusSpace>{{0}, memory.size()}.contains(access.at, access.bytes))
      return {.reason = {.id = ReasonId::IommuNotMapped}, .ready_at = now};
    spans.append({{access.at.value}, access.bytes});
    return {.done_bytes = access.bytes, .ready_at = now};
  }
  pcie::Outcome read(std::span<const pcie::Span> from, Bytes to, Time now) override {
    ++reads;
    std::memcpy(to.data(), memory.data() + from[0].start.value, to.size());
    return {.done_bytes = to.size(), .ready_at = now};
  }
  pcie::Outcome write(std::span<const pcie::Span>, ConstBytes, Time now) override {
    return {.ready_at = now};
  }
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  int reads = 0;
};

struct Bench {
  static constexpr std::uint32_t kSlots = 4;
  static constexpr std::uint32_t kStride = 48;
  static constexpr wire::Qpn kTaker{7};

  Bench() {
    const auto inserted =
        keys.insert({.pd = 1, .access = 1, .start = 0x5000, .bytes = 100, .bus = {0}, .pages = {}});
    EXPECT_TRUE(inserted);
    key = *inserted;
  }
  void post(std::uint64_t cookie, std::uint32_t bytes, std::uint32_t lkey) {
    const Bytes slot = Bytes(port.memory).subspan((posted & (kSlots - 1)) * kStride, kStride);
    store_le(slot, 0, ReceiveWqe{cookie, posted, 1});
    store_le(slot, sizeof(ReceiveWqe), Segment{0x5000, bytes, lkey});
    queue.on_doorbell(++posted);
  }

  std::vector<std::uint64_t> cells = std::vector<std::uint64_t>(trace::kCounterCount);
  trace::Tracer tracer{trace::Counters(cells), nullptr};
  std::vector<KeyRecord> records = std::vector<KeyRecord>(4);
  KeyTable keys{Tables{.keys = records, .translations = {}, .qps = {}}};
  Bytewise port;
  HostMemory memory{port, keys, tracer};
  ReceiveQueue queue{{{0}, kSlots, kStride, 2}, 1, memory, tracer};
  wire::Key key;
  std::uint32_t posted = 0;
  FetchedReceive request;
};

TEST(ReceiveQueue, TakesRequestsInOrderAndReadsEachOnce) {
  Bench bench;
  for (std::uint64_t round = 0; round < 10; ++round) {
    bench.post(round, 60, bench.key.value);
    bench.post(round + 100, 40, bench.key.value);
    for (const std::uint64_t cookie : {round, round + 100}) {
      const auto slot = bench.queue.take(bench.request, Bench::kTaker, {});
      ASSERT_TRUE(slot);
      EXPECT_FALSE(slot->broken);
      EXPECT_EQ(slot->capacity_bytes, cookie < 100 ? 60u : 40u);
      EXPECT_EQ(bench.request.cookie, cookie);
      EXPECT_EQ(bench.request.pd, 1u);
    }
    EXPECT_FALSE(bench.queue.take(bench.request, Bench::kTaker, {}));
  }
  EXPECT_EQ(bench.port.reads, 20);
}

TEST(ReceiveQueue, ARequestWithABadKeyIsTakenAndSaysSo) {
  Bench bench;
  bench.post(5, 101, bench.key.value);
  const auto slot = bench.queue.take(bench.request, Bench::kTaker, {});
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->broken.id, ReasonId::OutOfBounds);
  EXPECT_EQ(bench.request.cookie, 5u);
}

// What another lap left in the slot is not taken for a request.
TEST(ReceiveQueue, AStaleSlotIsMalformed) {
  Bench bench;
  bench.post(5, 10, bench.key.value);
  ASSERT_TRUE(bench.queue.take(bench.request, Bench::kTaker, {}));
  bench.queue.on_doorbell(2);  // nothing was written to the second slot
  const auto slot = bench.queue.take(bench.request, Bench::kTaker, {});
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->broken.id, ReasonId::WqeMalformed);
}

TEST(ReceiveQueue, FlushingLooksAtNoKeys) {
  Bench bench;
  bench.post(8, 10, 0);
  ASSERT_TRUE(bench.queue.take_to_flush(bench.request, Bench::kTaker, {}));
  EXPECT_EQ(bench.request.cookie, 8u);
  EXPECT_FALSE(bench.queue.take_to_flush(bench.request, Bench::kTaker, {}));
}

TEST(ReceiveQueue, ClearedItIsAsNew) {
  Bench bench;
  bench.post(8, 10, bench.key.value);
  bench.queue.note_done();
  bench.queue.clear();
  EXPECT_EQ(bench.queue.waiting(), 0u);
  EXPECT_EQ(bench.queue.done(), 0u);
  EXPECT_FALSE(bench.queue.take(bench.request, Bench::kTaker, {}));
}

}  // namespace
}  // namespace softhca::nic
