// Regions without pins in a machine whose kernel moves pages: the device follows.
#include "pair.h"

namespace softhca::sim {
namespace {

using trace::Counter;
using trace::ReasonId;
using transport::Status;
using transport::WorkOpcode;

constexpr std::uint32_t kOnDemandRights =
    kAllRights | static_cast<std::uint32_t>(driver::Access::OnDemand);

class OnDemandScenario : public testing::Test {
 protected:
  // A region of the program at end b: `pages` pages that nobody has used.
  Buffer fresh(std::uint64_t pages) {
    Host& host = *pair.connection.b.host;
    const VirtAddr start = host.allocate(pages * kPage4K);
    const auto region = host.engine().register_memory(
        pair.connection.b.pd, start, pages * kPage4K, {start.value},
        driver::AccessFlags::of_bits(kOnDemandRights), pair.world.now());
    EXPECT_TRUE(region);
    return {&host, start, region->key};
  }
  Status write(const Buffer& to, std::uint64_t offset, std::uint32_t bytes, std::byte with) {
    pair.a.host->fill(pair.a.start, bytes, with);
    const std::array sges{pair.a.sge(0, bytes)};
    pair.post(pair.connection.a,
              remote_request(WorkOpcode::Write, sges, to.start.value + offset, to.key));
    pair.settle();
    const auto done = pair.completions(pair.connection.a);
    EXPECT_EQ(done.size(), 1u);
    return done.empty() ? Status::Flushed : done[0].status;
  }
  std::uint64_t requests() { return pair.b.host->counter(Counter::PageRequests); }

  Pair pair;
};

TEST_F(OnDemandScenario, BringsThePagesThatAreUsedAndPinsNone) {
  Host& host = *pair.b.host;
  const std::uint64_t pins = host.counter(Counter::PagesPinned);
  const Buffer region = fresh(16);
  EXPECT_EQ(write(region, 3 * kPage4K + 10, 5000, std::byte{0x22}), Status::Success);
  EXPECT_TRUE(pair.is_filled(region, 3 * kPage4K + 10, 5000, std::byte{0x22}));
  EXPECT_EQ(requests(), 2u);
  EXPECT_EQ(write(region, 3 * kPage4K, 100, std::byte{0x33}), Status::Success);
  EXPECT_EQ(requests(), 2u) << "they are there";
  EXPECT_EQ(host.counter(Counter::PagesPinned), pins);
}

TEST_F(OnDemandScenario, FollowsPagesThatTheKernelMovesAndSwapsOut) {
  Host& host = *pair.b.host;
  const Buffer region = fresh(2);
  ASSERT_EQ(write(region, 0, 4096, std::byte{0x22}), Status::Success);
  const host::Pid pid = host.running();
  ASSERT_EQ(host.kernel().migrate(pid, region.start, pair.world.now()), host::MoveAnswer::Done);
  ASSERT_EQ(write(region, 0, 2048, std::byte{0x33}), Status::Success);
  EXPECT_TRUE(pair.is_filled(region, 0, 2048, std::byte{0x33}));
  EXPECT_TRUE(pair.is_filled(region, 2048, 2048, std::byte{0x22}));
  ASSERT_EQ(host.kernel().swap_out(pid, region.start, pair.world.now()), host::MoveAnswer::Done);
  ASSERT_EQ(write(region, 0, 1024, std::byte{0x44}), Status::Success);
  EXPECT_TRUE(pair.is_filled(region, 0, 1024, std::byte{0x44}));
  EXPECT_TRUE(pair.is_filled(region, 1024, 1024, std::byte{0x33}));
  EXPECT_EQ(requests(), 3u) << "one for each time that the page had gone";
}

TEST_F(OnDemandScenario, RefusesPagesThatTheProgramGaveBack) {
  Host& host = *pair.b.host;
  const Buffer region = fresh(2);
  ASSERT_EQ(write(region, kPage4K, 64, std::byte{0x22}), Status::Success);
  host.unmap(advance(region.start, kPage4K), kPage4K);
  EXPECT_EQ(write(region, kPage4K, 64, std::byte{0x33}), Status::RemoteOperation);
  EXPECT_EQ(host.counter(Counter::PageRequestsRefused), 1u);
}

TEST_F(OnDemandScenario, FetchesPagesAheadOnAdvice) {
  const Buffer region = fresh(8);
  driver::Engine& engine = region.host->engine();
  const std::array about{region.sge(kPage4K, 2 * kPage4K)};
  ASSERT_TRUE(engine.advise(pair.connection.b.pd, driver::Prefetch::ForWriting, about, true,
                            pair.world.now()));
  EXPECT_EQ(write(region, kPage4K, 8192, std::byte{0x22}), Status::Success);
  EXPECT_EQ(requests(), 0u);
  const std::array beyond{region.sge(7 * kPage4K, kPage4K + 1)};
  const auto refused = engine.advise(pair.connection.b.pd, driver::Prefetch::ForReading, beyond,
                                     false, pair.world.now());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().id, ReasonId::AdviceOutOfBounds);
}

TEST_F(OnDemandScenario, LeavesNothingMappedWhenTheRegionGoes) {
  Host& host = *pair.b.host;
  const std::uint64_t leaves = host.iommu().leaves();
  const std::uint64_t addresses = host.iova().bytes_in_use();
  const Buffer region = fresh(8);
  ASSERT_EQ(write(region, 0, 8192, std::byte{0x22}), Status::Success);
  EXPECT_EQ(host.iommu().leaves(), leaves + 2);
  ASSERT_TRUE(host.engine().deregister_memory(region.key, pair.world.now()));
  EXPECT_EQ(host.iommu().leaves(), leaves);
  EXPECT_EQ(host.iova().bytes_in_use(), addresses);
}

TEST_F(OnDemandScenario, IsTakenDownWithItsProgram) {
  Host& host = *pair.b.host;
  const host::Pid first = host.running();
  const std::uint64_t leaves = host.iommu().leaves();
  const host::Pid second = host.spawn("second");
  host.run(second);
  const auto pd = host.engine().alloc_pd();
  ASSERT_TRUE(pd);
  const VirtAddr start = host.allocate(4 * kPage4K);
  const auto region = host.engine().register_memory(*pd, start, 4 * kPage4K, {start.value},
                                                    driver::AccessFlags::of_bits(kOnDemandRights),
                                                    pair.world.now());
  ASSERT_TRUE(region);
  const std::array about{driver::Sge{start.value, 4 * kPage4K, region->key.value}};
  ASSERT_TRUE(
      host.engine().advise(*pd, driver::Prefetch::ForWriting, about, true, pair.world.now()));
  EXPECT_EQ(host.iommu().leaves(), leaves + 4);
  host.run(first);
  host.exit(second);
  EXPECT_EQ(host.iommu().leaves(), leaves);
}

}  // namespace
}  // namespace softhca::sim
