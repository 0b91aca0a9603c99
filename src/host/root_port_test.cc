#include "host/root_port.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/prng.h"
#include "host/iova.h"
#include "host/test_bench.h"
#include "os/test_pages.h"

namespace softhca::host {
namespace {

using pcie::Direction;
using trace::Counter;
using trace::EventKind;
using trace::ReasonId;

constexpr BusAddr kFirstByte{(std::uint64_t{1} << 47) + 7 * kPage1G};

class RootPortTest : public testing::Test {
 protected:
  RootPortTest() { config_.set_bus_master(true); }

  RootPort make(const HostCosts& costs = {}) {
    return RootPort({ram_, iommu_, iotlb_, config_, bench_.tracer}, costs);
  }
  void map(BusAddr bus, std::uint64_t phys, std::uint64_t bytes, BusRights rights = kReadWrite) {
    ASSERT_TRUE(iommu_.map(bus, {phys}, bytes, rights, {}));
  }
  pcie::Outcome resolve(RootPort& port, BusAddr at, std::uint64_t bytes, Direction direction,
                        Time now = {}) {
    spans_.clear();
    return port.resolve({at, bytes, direction}, now, spans_);
  }

  TestBench bench_{256};
  Ram ram_ = Ram::arena(1024 * kPage4K);
  Iommu iommu_{bench_.frames, {}, bench_.tracer};
  Iotlb iotlb_;
  pcie::ConfigSpace config_;
  pcie::SpanList spans_;
};

TEST_F(RootPortTest, ResolvesAnAccessIntoTheSpansBehindIt) {
  map(kFirstByte, 9 * kPage4K, kPage4K);
  map(advance(kFirstByte, kPage4K), 4 * kPage4K, 2 * kPage4K);
  RootPort port = make();
  const auto outcome = resolve(port, advance(kFirstByte, 4000), 5000, Direction::Write, Time{77});
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome.done_bytes, 5000u);
  EXPECT_EQ(outcome.ready_at, Time{77});
  const std::vector<pcie::Span> expected = {{{9 * kPage4K + 4000}, 96}, {{4 * kPage4K}, 4904}};
  EXPECT_TRUE(std::ranges::equal(spans_.all(), expected));
  EXPECT_EQ(bench_.count(Counter::IotlbMisses), 3u);
  EXPECT_EQ(bench_.count(Counter::DmaWrites), 1u);
  EXPECT_EQ(bench_.count(Counter::DmaWriteBytes), 5000u);
  EXPECT_EQ(bench_.count(Counter::TlpMemoryWrites), 1u + 16 + 4);
  const auto events = bench_.events(EventKind::DmaWrite);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].fields,
            (std::array<std::uint64_t, 5>{kFirstByte.value + 4000, 5000, 2, 21, 77}));
  EXPECT_EQ(bench_.events(EventKind::Tlp).size(), 21u);
}

TEST_F(RootPortTest, AnswersFromTheIotlbTheSecondTime) {
  map(kFirstByte, kPage2M, kPage2M);
  RootPort port = make();
  ASSERT_TRUE(resolve(port, kFirstByte, kPage2M, Direction::Read));
  ASSERT_TRUE(resolve(port, advance(kFirstByte, 99), 1000, Direction::Write));
  EXPECT_EQ(bench_.count(Counter::IotlbMisses), 1u) << "one leaf of 2 MiB";
  EXPECT_EQ(bench_.count(Counter::IotlbHits), 1u);
  EXPECT_EQ(bench_.count(Counter::TlpMemoryReads), kPage2M / 512);
  EXPECT_EQ(bench_.count(Counter::TlpCompletions), kPage2M / 256);
}

TEST_F(RootPortTest, BlocksEverythingUnlessBusMasterIsSet) {
  map(kFirstByte, 0, kPage4K);
  config_.set_bus_master(false);
  RootPort port = make();
  EXPECT_EQ(resolve(port, kFirstByte, 8, Direction::Read).reason.id, ReasonId::BusMasterOff);
  EXPECT_TRUE(resolve(port, kFirstByte, 0, Direction::Read)) << "an empty access is none";
  int interrupts = 0;
  port.set_interrupt_sink([&](std::uint32_t, Time) { ++interrupts; });
  port.interrupt(3, {});
  EXPECT_EQ(interrupts, 0);
  EXPECT_EQ(bench_.count(Counter::Interrupts), 0u);
  ASSERT_EQ(bench_.events(EventKind::Refusal).size(), 1u);
  config_.set_bus_master(true);
  port.interrupt(3, {});
  EXPECT_EQ(interrupts, 1);
  EXPECT_TRUE(resolve(port, kFirstByte, 8, Direction::Read));
}

TEST_F(RootPortTest, RefusesAnAccessAtItsFirstBadPageAndRecordsTheFault) {
  map(kFirstByte, 0, kPage4K);
  map(advance(kFirstByte, kPage4K), kPage4K, kPage4K, BusRight::Read);
  RootPort port = make();
  const auto write = resolve(port, advance(kFirstByte, 4090), 100, Direction::Write);
  EXPECT_EQ(write.reason, (trace::Reason{.id = ReasonId::IommuNoWrite,
                                         .address = kFirstByte.value + kPage4K,
                                         .length = 94}));
  EXPECT_EQ(write.done_bytes, 6u);
  const auto read = resolve(port, advance(kFirstByte, kPage4K), 2 * kPage4K, Direction::Read);
  EXPECT_EQ(read.reason.id, ReasonId::IommuNotMapped);
  EXPECT_EQ(read.reason.address, kFirstByte.value + 2 * kPage4K);
  EXPECT_EQ(resolve(port, {UINT64_MAX - 3}, 100, Direction::Read).reason.id,
            ReasonId::IommuBadAddress);
  EXPECT_EQ(resolve(port, {0x7f00'0000'0000}, 8, Direction::Write).reason.id,
            ReasonId::IommuNotMapped)
      << "a virtual address is no bus address";
  EXPECT_EQ(iommu_.faults().total(), 4u);
  EXPECT_EQ(bench_.count(Counter::IommuFaults), 4u);
  EXPECT_EQ(bench_.count(Counter::DmaReads) + bench_.count(Counter::DmaWrites), 0u);
}

TEST_F(RootPortTest, BlocksByRightsAlsoWhenTheTranslationIsCached) {
  map(kFirstByte, 0, kPage4K, BusRight::Read);
  RootPort port = make();
  ASSERT_TRUE(resolve(port, kFirstByte, 8, Direction::Read));
  EXPECT_EQ(resolve(port, kFirstByte, 8, Direction::Write).reason.id, ReasonId::IommuNoWrite);
}

TEST_F(RootPortTest, ReachesAnUnmappedPageUntilTheIotlbIsInvalidated) {
  map(kFirstByte, 0, kPage4K);
  RootPort port = make();
  ASSERT_TRUE(resolve(port, kFirstByte, 8, Direction::Read));
  iommu_.unmap(kFirstByte, kPage4K, {});
  EXPECT_TRUE(resolve(port, kFirstByte, 8, Direction::Read)) << "why unmapping must invalidate";
  port.invalidate({kFirstByte, kPage4K});
  EXPECT_EQ(resolve(port, kFirstByte, 8, Direction::Read).reason.id, ReasonId::IommuNotMapped);
}

TEST_F(RootPortTest, MovesScatteredPagesLikeMemcpy) {
  // A buffer of 50 pages whose frames lie in a random order, one leaf each.
  constexpr std::uint64_t kPages = 50;
  std::vector<std::uint64_t> order(kPages);
  std::iota(order.begin(), order.end(), 0);
  Prng prng(2);
  for (std::size_t i = kPages - 1; i > 0; --i) std::swap(order[i], order[prng.below(i + 1)]);
  for (std::uint64_t i = 0; i < kPages; ++i)
    map(advance(kFirstByte, i * kPage4K), order[i] * kPage4K, kPage4K);
  RootPort port = make();
  std::vector<std::byte> model(kPages * kPage4K);
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t at = prng.below(model.size());
    const std::uint64_t bytes = prng.below(std::min<std::uint64_t>(model.size() - at, 60'000) + 1);
    std::vector<std::byte> buffer(bytes);
    if (prng.chance(1, 2)) {
      for (std::byte& b : buffer) b = static_cast<std::byte>(prng.next());
      std::ranges::copy(buffer, model.begin() + static_cast<std::ptrdiff_t>(at));
      ASSERT_TRUE(resolve(port, advance(kFirstByte, at), bytes, Direction::Write));
      ASSERT_EQ(spans_.bytes(), bytes);
      ASSERT_TRUE(port.write(spans_.all(), buffer, {}));
    } else {
      ASSERT_TRUE(resolve(port, advance(kFirstByte, at), bytes, Direction::Read));
      ASSERT_TRUE(port.read(spans_.all(), buffer, {}));
      ASSERT_TRUE(std::ranges::equal(buffer, std::span(model).subspan(at, bytes)));
    }
  }
  for (std::uint64_t i = 0; i < kPages; ++i)
    EXPECT_TRUE(std::ranges::equal(Bytes(ram_.cpu_address({order[i] * kPage4K}), kPage4K),
                                   std::span(model).subspan(i * kPage4K, kPage4K)));
}

TEST_F(RootPortTest, TellsWhenDataIsReadyAndWhatKeepsTheLinkBusy) {
  map(kFirstByte, 0, 4 * kPage4K);
  RootPort port = make({.read_latency = nanoseconds(400),
                        .write_latency = nanoseconds(300),
                        .iotlb_miss = nanoseconds(50),
                        .tlp_overhead = nanoseconds(1),
                        .ps_per_byte = 100});
  const auto at = [](std::int64_t ns) { return Time{} + nanoseconds(ns); };
  // A walk of 50, then 512 bytes in two TLPs: 51.2 + 2 on the link, then the latency.
  EXPECT_EQ(resolve(port, kFirstByte, 512, Direction::Write, at(0)).ready_at.ps, 403'200);
  // The link is busy until 103.2; a cached translation needs no walk.
  EXPECT_EQ(resolve(port, kFirstByte, 256, Direction::Write, at(0)).ready_at.ps, 429'800);
  // A read goes out behind the writes (129.8 + 1), comes back 400 later, in 25.6 + 1.
  EXPECT_EQ(resolve(port, kFirstByte, 256, Direction::Read, at(10)).ready_at.ps, 557'400);
  // Another, at once: its request waits for the first, its data for the first's data.
  EXPECT_EQ(resolve(port, kFirstByte, 256, Direction::Read, at(10)).ready_at.ps, 584'000);
  // An interrupt passes no write before it.
  Time arrived{};
  port.set_interrupt_sink([&](std::uint32_t vector, Time when) {
    EXPECT_EQ(vector, 5u);
    arrived = when;
  });
  port.interrupt(5, at(20));
  EXPECT_EQ(arrived.ps, 432'800);
  // Long after, nothing is in the way.
  EXPECT_EQ(resolve(port, kFirstByte, 256, Direction::Read, at(5000)).ready_at.ps,
            5'000'000 + 1'000 + 400'000 + 25'600 + 1'000);
}

TEST(RootPortLive, SurvivesWhatTheProgramDoesToItsMemory) {
  TestBench bench;
  const os::GuardedCopy copy = *os::GuardedCopy::open();
  Ram ram = Ram::of_process(copy);
  Iommu iommu(bench.frames, {}, bench.tracer);
  Iotlb iotlb;
  pcie::ConfigSpace config;
  config.set_bus_master(true);
  RootPort port({ram, iommu, iotlb, config, bench.tracer});
  IovaSpace iova(1);

  os::TestPages pages(4);
  pages.fill(6);
  const BusAddr bus = *iova.allocate(4 * kPage4K);
  ASSERT_TRUE(iommu.map(bus, ram.frame_of(pages.page(0)), 4 * kPage4K, kReadWrite, {}));
  pcie::SpanList spans;
  ASSERT_TRUE(port.resolve({advance(bus, 1), 3 * kPage4K, Direction::Read}, {}, spans));
  ASSERT_EQ(spans.all().size(), 1u);
  std::vector<std::byte> buffer(3 * kPage4K);
  ASSERT_TRUE(port.read(spans.all(), buffer, {}));
  EXPECT_EQ(buffer.back(), os::TestPages::value_at(3 * kPage4K, 6));

  pages.unmap(2);
  const auto gone = port.read(spans.all(), buffer, Time{9});
  EXPECT_EQ(gone.reason.id, ReasonId::FrameGone);
  EXPECT_EQ(gone.reason.address, pages.address(2));
  EXPECT_EQ(gone.done_bytes, 2 * kPage4K - 1);
  EXPECT_EQ(gone.ready_at, Time{9});
  pages.protect_read_only(1);
  const auto shut = port.write(spans.all(), buffer, {});
  EXPECT_EQ(shut.reason.id, ReasonId::FrameProtected);
  EXPECT_EQ(shut.reason.address, pages.address(1));
}

}  // namespace
}  // namespace softhca::host
