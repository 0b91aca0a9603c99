#include "host/on_demand.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/prng.h"
#include "base/sanitized.h"
#include "host/test_kernel.h"

namespace softhca::host {
namespace {

using trace::ReasonId;

constexpr BusAddr kBus{0x9000'0000'0000};

// A device's table, page by page.
struct FakeTable {
  struct Leaf {
    PhysAddr frame;
    bool writable;
  };
  DeviceMapping mapping() {
    return {.map = [this](BusAddr bus, PhysAddr frame, std::uint64_t bytes, bool writable,
                          Time) -> trace::Reason {
              EXPECT_EQ(bytes, kPage4K);
              if (leaves.size() >= limit) return {.id = ReasonId::AddressesExhausted};
              EXPECT_TRUE(leaves.emplace(bus.value, Leaf{frame, writable}).second) << "twice";
              return {};
            },
            .unmap =
                [this](BusAddr bus, std::uint64_t bytes, Time) {
                  ++unmaps;
                  for (std::uint64_t done = 0; done < bytes; done += kPage4K)
                    EXPECT_EQ(leaves.erase(bus.value + done), 1u) << "it was not mapped";
                }};
  }
  // The device writes, or faults.
  bool write(KernelBench& bench, BusAddr at, std::uint64_t value) const {
    const auto found = leaves.find(align_down(at, kPage4K).value);
    if (found == leaves.end() || !found->second.writable) return false;
    std::memcpy(bench.ram.cpu_address(advance(found->second.frame, offset_in(at, kPage4K))), &value,
                sizeof value);
    return true;
  }

  std::map<std::uint64_t, Leaf> leaves;
  std::size_t limit = SIZE_MAX;
  int unmaps = 0;
};

struct OnDemandBench : KernelBench {
  explicit OnDemandBench(bool writable = true, std::uint64_t bytes = 8 * kPage2M)
      : KernelBench(bytes),
        pid(spawn()),
        at(map(pid, 16)),
        range(std::in_place, pages_of(kernel, pid),
              OnDemandRange{{at, 16 * kPage4K}, kBus, writable}, table.mapping()) {}
  ReasonId resolve(std::uint64_t offset, std::uint64_t bytes, bool write) {
    return range->resolve(advance(kBus, offset), bytes, write, {}).id;
  }

  FakeTable table;
  Pid pid;
  VirtAddr at;
  std::optional<OnDemand> range;
};

TEST(OnDemand, MapsWhatADeviceTouches) {
  OnDemandBench bench;
  EXPECT_EQ(bench.kernel.frames().used(FrameUse::Program), 0u);
  EXPECT_FALSE(bench.table.write(bench, kBus, 1));
  EXPECT_EQ(bench.resolve(2 * kPage4K + 100, kPage4K, true), ReasonId::None);
  EXPECT_EQ(bench.range->mapped_pages(), 2u);
  EXPECT_TRUE(bench.table.write(bench, advance(kBus, 3 * kPage4K + 8), 4711));
  EXPECT_EQ(bench.get(bench.pid, advance(bench.at, 3 * kPage4K + 8)), 4711u);
  EXPECT_EQ(bench.resolve(3 * kPage4K, 8, true), ReasonId::None) << "it is there already";
  EXPECT_EQ(bench.table.leaves.size(), 2u);
  EXPECT_EQ(bench.resolve(0, 16 * kPage4K, false), ReasonId::None) << "all: a prefetch";
  EXPECT_EQ(bench.range->mapped_pages(), 16u);
  EXPECT_EQ(bench.range->faults(), 3u);
  EXPECT_EQ(bench.pins.pages_held(), 0u);
}

TEST(OnDemand, RefusesWhatIsOutsideOrNotAllowed) {
  OnDemandBench bench(false);
  EXPECT_EQ(bench.resolve(16 * kPage4K - 4, 8, false), ReasonId::OutOfBounds);
  EXPECT_EQ(bench.range->resolve({kBus.value - 1}, 8, false, {}).id, ReasonId::OutOfBounds);
  EXPECT_EQ(bench.resolve(0, 8, true), ReasonId::IommuNoWrite);
  EXPECT_EQ(bench.resolve(0, 8, false), ReasonId::None);
  ASSERT_TRUE(bench.kernel.unmap(bench.pid, {advance(bench.at, kPage4K), kPage4K}, {}));
  EXPECT_EQ(bench.resolve(0, 2 * kPage4K, false), ReasonId::HoleInRange);
  bench.kernel.exit(bench.pid, {});
  EXPECT_TRUE(bench.table.leaves.empty());
  EXPECT_EQ(bench.resolve(0, 8, false), ReasonId::HoleInRange);
}

TEST(OnDemand, SaysWhenTheDevicesTableIsFullAndKeepsWhatIsMapped) {
  OnDemandBench bench;
  bench.table.limit = 3;
  EXPECT_EQ(bench.resolve(0, 5 * kPage4K, false), ReasonId::AddressesExhausted);
  EXPECT_EQ(bench.range->mapped_pages(), 3u);
  bench.range->unmap_all({});
  EXPECT_TRUE(bench.table.leaves.empty());
  EXPECT_EQ(bench.table.unmaps, 1) << "pages that follow each other go at once";
}

TEST(OnDemand, LetsGoBeforeAPageMovesAndFindsItAgain) {
  OnDemandBench bench;
  ASSERT_EQ(bench.resolve(0, 16 * kPage4K, true), ReasonId::None);
  const VirtAddr page = advance(bench.at, 4 * kPage4K);
  const BusAddr bus = advance(kBus, 4 * kPage4K);
  ASSERT_TRUE(bench.table.write(bench, bus, 1));
  EXPECT_EQ(bench.kernel.migrate(bench.pid, page, {}), MoveAnswer::Done) << "nothing is pinned";
  EXPECT_EQ(bench.range->mapped_pages(), 15u);
  EXPECT_EQ(bench.range->invalidations(), 1u);
  EXPECT_FALSE(bench.table.write(bench, bus, 2));
  ASSERT_EQ(bench.resolve(4 * kPage4K, 8, true), ReasonId::None);
  EXPECT_TRUE(bench.table.write(bench, bus, 3));
  EXPECT_EQ(bench.get(bench.pid, page), 3u);
  EXPECT_EQ(bench.kernel.swap_out(bench.pid, page, {}), MoveAnswer::Done);
  EXPECT_FALSE(bench.table.write(bench, bus, 4));
  ASSERT_EQ(bench.resolve(4 * kPage4K, 8, true), ReasonId::None);
  EXPECT_EQ(bench.get(bench.pid, page), 3u);
}

TEST(OnDemand, MapsAgainForWritingAfterAForkAndBreaksTheSharing) {
  OnDemandBench bench;
  bench.put(bench.pid, bench.at, 1);
  ASSERT_EQ(bench.resolve(0, 8, true), ReasonId::None);
  const Pid child = *bench.kernel.fork(bench.pid, {});
  EXPECT_FALSE(bench.table.write(bench, kBus, 2)) << "it would write into the child's page too";
  ASSERT_EQ(bench.resolve(0, 8, false), ReasonId::None);
  ASSERT_EQ(bench.resolve(0, 8, true), ReasonId::None);
  EXPECT_TRUE(bench.table.write(bench, kBus, 2));
  EXPECT_EQ(bench.get(bench.pid, bench.at), 2u);
  EXPECT_EQ(bench.get(child, bench.at), 1u);
}

// At every moment the device reaches what the program has, and nothing else.
TEST(OnDemand, AgreesWithTheProgramsTableInRandomSteps) {
  OnDemandBench bench(true, kPage2M);
  Prng prng(2);
  const VirtAddr other = bench.map(bench.pid, 300);
  std::array<std::uint64_t, 16> expected{};
  std::vector<Pid> children;
  for (int step = 0; step < random_steps(100'000); ++step) {
    const std::uint64_t page = prng.below(16);
    const std::uint64_t value = prng.next();
    const VirtAddr at = advance(bench.at, page * kPage4K);
    switch (prng.below(12)) {
      case 0:
        static_cast<void>(bench.kernel.migrate(bench.pid, at, {}));
        break;
      case 1:
        static_cast<void>(bench.kernel.swap_out(bench.pid, at, {}));
        break;
      case 2:
        ASSERT_EQ(bench.put(bench.pid, at, value), MemoryError::None);
        expected[page] = value;
        break;
      case 3:
        if (children.size() < 2) {
          if (const auto child = bench.kernel.fork(bench.pid, {})) children.push_back(*child);
        } else {
          bench.kernel.exit(children.back(), {});
          children.pop_back();
        }
        break;
      case 4:
        bench.kernel.reclaim(prng.below(20), {});
        break;
      case 5:
        static_cast<void>(bench.put(bench.pid, advance(other, prng.below(300) * kPage4K), value));
        break;
      case 6:
        ASSERT_EQ(bench.resolve(page * kPage4K, 8, false), ReasonId::None);
        break;
      case 7:
        ASSERT_EQ(bench.get(bench.pid, at), expected[page]);
        break;
      default:
        if (!bench.table.write(bench, advance(kBus, page * kPage4K), value)) {
          ASSERT_EQ(bench.resolve(page * kPage4K, 8, true), ReasonId::None);
          ASSERT_TRUE(bench.table.write(bench, advance(kBus, page * kPage4K), value));
        }
        expected[page] = value;
    }
    if (step % 4 != 0) continue;
    for (const auto& [bus, leaf] : bench.table.leaves) {
      const PageWalk walk =
          bench.kernel.walk(bench.pid, advance(bench.at, distance(kBus, BusAddr{bus})));
      ASSERT_EQ(walk.phys, leaf.frame);
      ASSERT_TRUE(!leaf.writable || walk.rights.has(PageRight::Write));
    }
    ASSERT_EQ(bench.table.leaves.size(), bench.range->mapped_pages());
  }
  EXPECT_GT(bench.range->invalidations(), 1000u);
}

}  // namespace
}  // namespace softhca::host
