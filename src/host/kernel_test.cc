#include "host/kernel.h"

#include <gtest/gtest.h>

#include <array>

#include "host/test_kernel.h"

namespace softhca::host {
namespace {

using trace::EventKind;
using trace::ReasonId;

TEST(Kernel, GivesZeroedPagesWhenTheyAreFirstUsed) {
  KernelBench bench;
  const Pid pid = bench.spawn();
  const VirtAddr at = bench.map(pid, 100);
  EXPECT_EQ(bench.kernel.frames().used(FrameUse::Program), 0u);
  EXPECT_EQ(bench.get(pid, advance(at, 3 * kPage4K)), 0u);
  EXPECT_EQ(bench.put(pid, advance(at, 5 * kPage4K - 4), 0x1122334455667788), MemoryError::None);
  EXPECT_EQ(bench.get(pid, advance(at, 5 * kPage4K - 4)), 0x1122334455667788u);
  EXPECT_EQ(bench.kernel.frames().used(FrameUse::Program), 3u) << "one was used over its end";
  const auto faults = bench.events(EventKind::PageFault);
  ASSERT_EQ(faults.size(), 3u);
  EXPECT_EQ(faults[0].object, pid.value);
  EXPECT_EQ(faults[0].fields[0], at.value + 3 * kPage4K);
  EXPECT_EQ(faults[0].fields[1], fault_code::kUser);
  EXPECT_EQ(faults[0].fields[2], bench.frame(pid, advance(at, 3 * kPage4K)).value);
  EXPECT_EQ(faults[0].fields[3], static_cast<std::uint64_t>(FaultAnswer::ZeroPage));
  bench.kernel.exit(pid, {});
  EXPECT_TRUE(bench.is_empty());
}

TEST(Kernel, SaysWhyAProgramMayNot) {
  KernelBench bench;
  const Pid pid = bench.spawn();
  const VirtAddr at = bench.map(pid, 2);
  ASSERT_TRUE(bench.kernel.protect(pid, {at, kPage4K}, PageRight::Read, {}));
  EXPECT_EQ(bench.put(pid, at, 1), MemoryError::NoRight);
  EXPECT_EQ(bench.get(pid, at), 0u);
  EXPECT_EQ(bench.put(pid, at, 1), MemoryError::NoRight) << "also when it is present";
  ASSERT_TRUE(bench.kernel.protect(pid, {at, kPage4K}, {}, {}));
  EXPECT_EQ(bench.get(pid, at), ~std::uint64_t{0});
  ASSERT_TRUE(bench.kernel.protect(pid, {at, kPage4K}, kLoadStore, {}));
  EXPECT_EQ(bench.put(pid, at, 1), MemoryError::None);
  std::array<std::byte, 2 * kPage4K> buffer{};
  const auto beyond = bench.kernel.load(pid, advance(at, kPage4K), buffer, {});
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().error, MemoryError::NotMapped);
  EXPECT_EQ(beyond.error().at, advance(at, 2 * kPage4K)) << "the first byte that is not there";
  EXPECT_EQ(bench.put(pid, {0xdead'0000'0000'0000}, 1), MemoryError::NotMapped);
  EXPECT_EQ(bench.kernel.protect(pid, {at, 3 * kPage4K}, {}, {}).error(), MemoryError::NotMapped);
  EXPECT_EQ(bench.kernel.unmap(pid, {at, 5}, {}).error(), MemoryError::BadArgument);
  EXPECT_EQ(bench.kernel.map_at(pid, at, kPage4K, kPage4K, kLoadStore).error(),
            MemoryError::Occupied);
}

TEST(Kernel, MapsHugePagesAndRefusesToCutThem) {
  KernelBench bench;
  const Pid pid = bench.spawn();
  const VirtAddr at = bench.map(pid, 3, kPage2M);
  EXPECT_EQ(offset_in(at, kPage2M), 0u);
  EXPECT_EQ(bench.put(pid, advance(at, kPage2M + 12345), 99), MemoryError::None);
  EXPECT_EQ(bench.kernel.walk(pid, advance(at, kPage2M)).leaf_bytes, kPage2M);
  EXPECT_EQ(bench.kernel.frames().used(FrameUse::Program), 512u);
  EXPECT_EQ(bench.kernel.unmap(pid, {at, kPage4K}, {}).error(), MemoryError::BadArgument);
  ASSERT_TRUE(bench.kernel.unmap(pid, {advance(at, kPage2M), kPage2M}, {}));
  EXPECT_EQ(bench.get(pid, advance(at, kPage2M + 12345)), ~std::uint64_t{0});
  EXPECT_EQ(bench.get(pid, at), 0u);
  EXPECT_EQ(bench.get(pid, advance(at, 2 * kPage2M)), 0u);
  bench.kernel.exit(pid, {});
  EXPECT_TRUE(bench.is_empty());
}

TEST(Kernel, FaultsInForADeviceAndNamesWhatIsMissing) {
  KernelBench bench;
  const Pid pid = bench.spawn();
  const VirtAddr at = bench.map(pid, 8);
  EXPECT_FALSE(bench.kernel.fault_in(pid, {advance(at, 100), 7 * kPage4K}, true, {}));
  const auto spans = bench.kernel.frames_of(pid, {at, 8 * kPage4K});
  ASSERT_EQ(spans.size(), 1u) << "not fragmented: joined";
  EXPECT_EQ(spans[0].bytes, 8 * kPage4K);
  ASSERT_TRUE(bench.kernel.protect(pid, {advance(at, 3 * kPage4K), kPage4K}, PageRight::Read, {}));
  trace::Reason reason = bench.kernel.fault_in(pid, {at, 8 * kPage4K}, true, {});
  EXPECT_EQ(reason.id, ReasonId::PageReadOnly);
  EXPECT_EQ(reason.address, at.value + 3 * kPage4K);
  EXPECT_FALSE(bench.kernel.fault_in(pid, {at, 8 * kPage4K}, false, {}));
  ASSERT_TRUE(bench.kernel.unmap(pid, {advance(at, 5 * kPage4K), kPage4K}, {}));
  reason = bench.kernel.fault_in(pid, {advance(at, 9), 8 * kPage4K - 9}, false, {});
  EXPECT_EQ(reason.id, ReasonId::HoleInRange);
  EXPECT_EQ(reason.address, at.value + 5 * kPage4K);
  EXPECT_EQ(reason.length, 8 * kPage4K - 9);
}

TEST(Kernel, SharesPagesAfterForkUntilOneSideWrites) {
  KernelBench bench;
  const Pid parent = bench.spawn();
  const VirtAddr at = bench.map(parent, 2);
  bench.put(parent, at, 11);
  const Pid child = *bench.kernel.fork(parent, {});
  EXPECT_EQ(bench.frame(parent, at), bench.frame(child, at));
  EXPECT_EQ(bench.get(child, at), 11u);
  const PhysAddr old = bench.frame(parent, at);
  bench.put(parent, at, 22);
  EXPECT_NE(bench.frame(parent, at), old);
  EXPECT_EQ(bench.frame(child, at), old);
  EXPECT_EQ(bench.get(child, at), 11u);
  EXPECT_EQ(bench.kernel.frames().owner_of(old).pid, child);
  bench.put(child, at, 33);
  EXPECT_EQ(bench.frame(child, at), old) << "the last one needs no copy";
  EXPECT_EQ(bench.get(parent, at), 22u);
  EXPECT_EQ(bench.events(EventKind::PageCopied).size(), 1u);
  bench.kernel.exit(parent, {});
  bench.kernel.exit(child, {});
  EXPECT_TRUE(bench.is_empty());
}

TEST(Kernel, KeepsTheParentOnItsPinnedFramesOverAForkUnlessTheRuleIsTheOldOne) {
  for (const bool copy : {true, false}) {
    KernelBench bench(8 * kPage2M, {.copy_pinned_at_fork = copy});
    const Pid parent = bench.spawn();
    const VirtAddr at = bench.map(parent, 1);
    bench.put(parent, at, 1);
    const auto pins = bench.pin(parent, at, 1);
    const PhysAddr device_has = bench.frame(parent, at);
    const Pid child = *bench.kernel.fork(parent, {});
    EXPECT_EQ(bench.frame(child, at) != device_has, copy);
    bench.put(parent, at, 2);
    EXPECT_EQ(bench.in_frame(device_has), copy ? 2u : 1u);
    EXPECT_EQ(bench.frame(parent, at) == device_has, copy) << "else the device reads old bytes";
    EXPECT_EQ(bench.get(child, at), 1u);
    const auto copies = bench.events(EventKind::PageCopied);
    ASSERT_EQ(copies.size(), 1u);
    EXPECT_EQ(copies[0].fields[3],
              static_cast<std::uint64_t>(copy ? PageWish::CopyAtFork : PageWish::CopyOnWrite));
    bench.unpin(pins);
    bench.kernel.exit(parent, {});
    bench.kernel.exit(child, {});
    EXPECT_TRUE(bench.is_empty());
  }
}

TEST(Kernel, EndsSharingForADeviceEvenIfItOnlyReadsUnlessTheRuleIsTheOldOne) {
  for (const bool alone : {true, false}) {
    KernelBench bench(8 * kPage2M, {.copy_pinned_at_fork = alone});
    const Pid parent = bench.spawn();
    const VirtAddr at = bench.map(parent, 1);
    bench.put(parent, at, 1);
    const Pid child = *bench.kernel.fork(parent, {});
    ASSERT_FALSE(bench.kernel.fault_in(parent, {at, 8}, false, {}));
    const PhysAddr device_has = bench.frame(parent, at);
    EXPECT_EQ(device_has != bench.frame(child, at), alone);
    bench.put(parent, at, 2);
    EXPECT_EQ(bench.in_frame(device_has), alone ? 2u : 1u);
    ASSERT_FALSE(bench.kernel.fault_in(parent, {at, 8}, true, {}));
    EXPECT_NE(bench.frame(parent, at), bench.frame(child, at));
  }
}

TEST(Kernel, LeavesOutOfAForkWhatIsNotInherited) {
  KernelBench bench(8 * kPage2M, {.copy_pinned_at_fork = false});
  const Pid parent = bench.spawn();
  const VirtAddr at = bench.map(parent, 3);
  for (std::uint64_t i = 0; i < 3; ++i) bench.put(parent, advance(at, i * kPage4K), 7);
  const PhysAddr device_has = bench.frame(parent, advance(at, kPage4K));
  ASSERT_TRUE(bench.kernel.set_inherited(parent, {advance(at, kPage4K), kPage4K}, false));
  const Pid child = *bench.kernel.fork(parent, {});
  EXPECT_EQ(bench.get(child, at), 7u);
  EXPECT_EQ(bench.get(child, advance(at, kPage4K)), ~std::uint64_t{0});
  bench.put(parent, advance(at, kPage4K), 8);
  EXPECT_EQ(bench.frame(parent, advance(at, kPage4K)), device_has);
}

TEST(Kernel, MovesPagesAndTellsEverybodyWhoHasThem) {
  KernelBench bench;
  const Pid parent = bench.spawn();
  const VirtAddr at = bench.map(parent, 1);
  bench.put(parent, at, 5);
  const Pid child = *bench.kernel.fork(parent, {});
  const PhysAddr old = bench.frame(parent, at);
  EXPECT_EQ(bench.kernel.migrate(child, at, {}), MoveAnswer::Done);
  EXPECT_NE(bench.frame(parent, at), old);
  EXPECT_EQ(bench.frame(parent, at), bench.frame(child, at));
  EXPECT_EQ(bench.get(parent, at), 5u);
  EXPECT_EQ(bench.get(child, at), 5u);
  EXPECT_EQ(bench.kernel.frames().owner_of(old).use, FrameUse::Free);
  EXPECT_EQ(bench.events(EventKind::FrameMoved).size(), 2u);
  EXPECT_EQ(bench.kernel.migrate(child, {0x1000}, {}), MoveAnswer::NotThere);
}

TEST(Kernel, LeavesAPinnedFrameWhereItIs) {
  KernelBench bench;
  const Pid pid = bench.spawn();
  const VirtAddr at = bench.map(pid, 1);
  const auto pins = bench.pin(pid, at, 1);
  const PhysAddr frame = bench.frame(pid, at);
  EXPECT_EQ(bench.kernel.migrate(pid, at, {}), MoveAnswer::Pinned);
  EXPECT_EQ(bench.kernel.swap_out(pid, at, {}), MoveAnswer::Pinned);
  EXPECT_EQ(bench.kernel.reclaim(10, {}), 0u);
  EXPECT_EQ(bench.frame(pid, at), frame);
  const auto kept = bench.events(EventKind::FrameKept);
  ASSERT_GE(kept.size(), 2u);
  EXPECT_EQ(kept[0].fields,
            (std::array<std::uint64_t, 5>{at.value, frame.value, 1 /* Migrate */, 1, 0}));
  EXPECT_EQ(kept[1].fields[2], static_cast<std::uint64_t>(PageWish::SwapOut));
  bench.unpin(pins);
  EXPECT_EQ(bench.kernel.migrate(pid, at, {}), MoveAnswer::Done);
  EXPECT_EQ(bench.kernel.swap_out(pid, at, {}), MoveAnswer::Done);
  EXPECT_EQ(bench.kernel.swap_out(pid, at, {}), MoveAnswer::NotThere);
  EXPECT_EQ(bench.kernel.swap_slots_used(), 1u);
  EXPECT_EQ(bench.get(pid, at), 0u);
  EXPECT_EQ(bench.kernel.swap_slots_used(), 0u);
}

TEST(Kernel, SwapsASharedPageOnceForAll) {
  KernelBench bench;
  const Pid parent = bench.spawn();
  const VirtAddr at = bench.map(parent, 1);
  bench.put(parent, at, 77);
  const Pid child = *bench.kernel.fork(parent, {});
  EXPECT_EQ(bench.kernel.swap_out(parent, at, {}), MoveAnswer::Done);
  EXPECT_EQ(bench.kernel.frames().used(FrameUse::Program), 0u);
  EXPECT_EQ(bench.kernel.swap_slots_used(), 1u);
  const Pid grandchild = *bench.kernel.fork(child, {});
  bench.put(parent, at, 78);
  EXPECT_EQ(bench.get(child, at), 77u);
  bench.kernel.exit(child, {});
  EXPECT_EQ(bench.kernel.swap_slots_used(), 1u);
  EXPECT_EQ(bench.get(grandchild, at), 77u);
  EXPECT_EQ(bench.get(parent, at), 78u);
  bench.kernel.exit(parent, {});
  bench.kernel.exit(grandchild, {});
  EXPECT_TRUE(bench.is_empty());
}

TEST(Kernel, MakesAnOrphanOfWhatIsGivenBackWhilePinned) {
  for (const bool by_exit : {false, true}) {
    KernelBench bench;
    const Pid pid = bench.spawn("trainer");
    const VirtAddr at = bench.map(pid, 4);
    bench.put(pid, advance(at, kPage4K), 42);
    const auto pins = bench.pin(pid, advance(at, kPage4K), 2);
    const PhysAddr frame = bench.frame(pid, advance(at, kPage4K));
    if (by_exit)
      bench.kernel.exit(pid, {});
    else
      ASSERT_TRUE(bench.kernel.unmap(pid, {at, 4 * kPage4K}, {}));
    EXPECT_EQ(bench.kernel.orphans(), 2u);
    EXPECT_EQ(bench.kernel.owner_text(frame), "orphan of trainer (pid 1)");
    EXPECT_EQ(bench.events(EventKind::FrameOrphaned).size(), 2u);
    EXPECT_EQ(bench.in_frame(frame), 42u) << "the device still reads what was there";
    EXPECT_EQ(bench.kernel.reap_orphans(), 0u);
    bench.unpin(pins);
    EXPECT_EQ(bench.kernel.orphans(), 2u);
    EXPECT_EQ(bench.kernel.reap_orphans(), 2u);
    if (!by_exit) bench.kernel.exit(pid, {});
    EXPECT_TRUE(bench.is_empty());
  }
}

TEST(Kernel, NamesWhoseFrameItIs) {
  KernelBench bench;
  const Pid pid = bench.spawn("database");
  const VirtAddr at = bench.map(pid, 1);
  bench.put(pid, at, 1);
  EXPECT_EQ(bench.kernel.owner_text(bench.frame(pid, at)), "program database (pid 1)");
  EXPECT_EQ(bench.kernel.owner_text(bench.kernel.program(pid).table.root()),
            "page table of database (pid 1)");
  EXPECT_EQ(bench.kernel.owner_text({0}), "free");
}

TEST(Kernel, MovesPagesOutOfTheWayOfAHugeOneButNotPinnedOnes) {
  KernelBench bench(4 * kPage2M, {.fragmentation = 100});
  const Pid pid = bench.spawn();
  const VirtAddr at = bench.map(pid, 400);
  for (std::uint64_t i = 0; i < 400; ++i) bench.put(pid, advance(at, i * kPage4K), i);
  EXPECT_EQ(bench.kernel.frames().free_huge(kPage2M), 0u);
  const auto pins = bench.pin(pid, at, 400);
  EXPECT_FALSE(bench.kernel.compact({}).made);
  EXPECT_FALSE(bench.kernel.compact({}).moved);
  EXPECT_GT(bench.kernel.compact({}).kept, 0u);
  bench.unpin(pins);
  const Compaction compaction = bench.kernel.compact({});
  EXPECT_TRUE(compaction.made);
  EXPECT_GT(compaction.moved, 0u);
  EXPECT_EQ(bench.kernel.frames().free_huge(kPage2M), 1u);
  const VirtAddr huge = bench.map(pid, 1, kPage2M);
  EXPECT_EQ(bench.put(pid, huge, 1), MemoryError::None);
  for (std::uint64_t i = 0; i < 400; ++i) EXPECT_EQ(bench.get(pid, advance(at, i * kPage4K)), i);
  EXPECT_EQ(bench.events(EventKind::FrameMoved).size(), compaction.moved);
}

TEST(Kernel, SwapsWhenMemoryIsShortAndSaysSoWhenNothingHelps) {
  KernelBench bench(kPage2M, {.swap_bytes = 600 * kPage4K});
  const Pid pid = bench.spawn();
  const VirtAddr at = bench.map(pid, 2000);
  std::uint64_t written = 0;
  while (bench.put(pid, advance(at, written * kPage4K), written) == MemoryError::None) ++written;
  EXPECT_GT(written, 1000u);
  EXPECT_LT(written, 511 + 600u);
  for (std::uint64_t i = 0; i < written; ++i)
    ASSERT_EQ(bench.get(pid, advance(at, i * kPage4K)), i) << "with two frames to turn around";
  const trace::Reason reason = bench.kernel.fault_in(pid, {at, 600 * kPage4K}, true, {});
  EXPECT_EQ(reason.id, ReasonId::OutOfMemory);
  bench.kernel.exit(pid, {});
  EXPECT_TRUE(bench.is_empty());
}

TEST(Kernel, KeepsThePagesOfARegistrationWhileItFaultsThemIn) {
  KernelBench bench(kPage2M);
  const Pid pid = bench.spawn();
  const VirtAddr first = bench.map(pid, 400);
  for (std::uint64_t i = 0; i < 400; ++i) bench.put(pid, advance(first, i * kPage4K), i);
  const VirtAddr second = bench.map(pid, 400);
  ASSERT_FALSE(bench.kernel.fault_in(pid, {second, 400 * kPage4K}, true, {}));
  std::uint64_t bytes = 0;
  for (const pcie::Span& span : bench.kernel.frames_of(pid, {second, 400 * kPage4K}))
    bytes += span.bytes;
  EXPECT_EQ(bytes, 400 * kPage4K);
  EXPECT_GT(bench.kernel.swap_slots_used(), 250u);
}

TEST(Kernel, ForksEntirelyOrNotAtAll) {
  KernelBench bench(kPage2M, {.swap_bytes = 0});
  const Pid parent = bench.spawn();
  const VirtAddr at = bench.map(parent, 300);
  const auto pins = bench.pin(parent, at, 300);
  EXPECT_EQ(bench.kernel.fork(parent, {}).error(), MemoryError::OutOfMemory);
  EXPECT_EQ(bench.kernel.programs(), 1u);
  EXPECT_EQ(bench.kernel.frames().used(FrameUse::Program), 300u);
  for (std::uint64_t i = 0; i < 300; ++i)
    ASSERT_EQ(bench.put(parent, advance(at, i * kPage4K), i), MemoryError::None);
  bench.unpin(pins);
  bench.kernel.exit(parent, {});
  EXPECT_TRUE(bench.is_empty());
}

TEST(Kernel, MapsPagesOfAGibibyteAndKeepsAllOfOneForOnePin) {
  KernelBench bench(3 * kPage1G);
  const Pid pid = bench.spawn();
  const VirtAddr at = bench.map(pid, 1, kPage1G);
  EXPECT_EQ(bench.put(pid, advance(at, 12345 * kPage4K), 9), MemoryError::None);
  EXPECT_EQ(bench.kernel.walk(pid, at).leaf_bytes, kPage1G);
  EXPECT_EQ(bench.kernel.walk(pid, at).steps_made, 2u);
  const auto pinned = bench.pin(pid, advance(at, 5 * kPage4K), 1);
  EXPECT_EQ(bench.kernel.migrate(pid, at, {}), MoveAnswer::Pinned);
  EXPECT_EQ(bench.kernel.swap_out(pid, at, {}), MoveAnswer::NotMovable);
  bench.kernel.exit(pid, {});
  EXPECT_EQ(bench.kernel.orphans(), kPage1G / kPage4K) << "one pin keeps all of the frame";
  bench.unpin(pinned);
  EXPECT_TRUE(bench.is_empty());
}

class Recorder final : public TranslationWatcher {
 public:
  void before_change(Pid pid, Range<VirtSpace> range, Time) override {
    calls.emplace_back(pid, range);
  }
  std::vector<std::pair<Pid, Range<VirtSpace>>> calls;
};

TEST(Kernel, TellsWatchersBeforeATranslationChanges) {
  KernelBench bench;
  const Pid pid = bench.spawn();
  const VirtAddr at = bench.map(pid, 4);
  for (std::uint64_t i = 0; i < 4; ++i) bench.put(pid, advance(at, i * kPage4K), i);
  Recorder recorder;
  bench.kernel.watch(pid, {at, 2 * kPage4K}, recorder);
  const auto told = [&] {
    const bool any = !recorder.calls.empty();
    recorder.calls.clear();
    return any;
  };
  const VirtAddr other = advance(at, 3 * kPage4K);
  bench.kernel.migrate(pid, other, {});
  EXPECT_FALSE(told()) << "not a page that is watched";
  bench.kernel.migrate(pid, at, {});
  EXPECT_TRUE(told());
  bench.kernel.swap_out(pid, at, {});
  EXPECT_TRUE(told());
  EXPECT_EQ(bench.get(pid, at), 0u);
  EXPECT_FALSE(told()) << "nothing was there";
  const Pid child = *bench.kernel.fork(pid, {});
  EXPECT_TRUE(told()) << "the program may not write to the frame any more";
  bench.put(child, at, 5);
  EXPECT_FALSE(told());
  const Pid second = *bench.kernel.fork(pid, {});
  recorder.calls.clear();
  bench.put(pid, at, 6);
  EXPECT_TRUE(told()) << "it has another frame now";
  ASSERT_TRUE(bench.kernel.protect(pid, {at, kPage4K}, PageRight::Read, {}));
  EXPECT_TRUE(told());
  ASSERT_TRUE(bench.kernel.unmap(pid, {at, kPage4K}, {}));
  EXPECT_TRUE(told());
  bench.kernel.unwatch(pid, recorder);
  ASSERT_TRUE(bench.kernel.unmap(pid, {at, 4 * kPage4K}, {}));
  EXPECT_FALSE(told());
  bench.kernel.exit(second, {});
}

TEST(Kernel, SurvivesAWildWriteIntoAPageTable) {
  KernelBench bench;
  const Pid pid = bench.spawn();
  const VirtAddr at = bench.map(pid, 1);
  bench.put(pid, at, 1);
  const PhysAddr entry_at = bench.kernel.walk(pid, at).last().entry_at;
  EXPECT_EQ(bench.kernel.owner_text(entry_at), "page table of database (pid 1)");
  const std::uint64_t nonsense = 0x0000'7777'7777'7007;
  const pcie::Span span{entry_at, 8};
  ASSERT_TRUE(bench.ram.write({&span, 1}, bytes_of(nonsense)));
  bench.kernel.mmu().shoot_down(bench.kernel.program(pid).context(), {at, kPage4K}, {});
  EXPECT_EQ(bench.put(pid, at, 1), MemoryError::BadTable);
  EXPECT_EQ(bench.kernel.fault_in(pid, {at, 1}, true, {}).id, ReasonId::HoleInRange);
  EXPECT_EQ(bench.kernel.migrate(pid, at, {}), MoveAnswer::NotThere);
  EXPECT_EQ(bench.kernel.swap_out(pid, at, {}), MoveAnswer::NotThere);
  bench.kernel.exit(pid, {});
  EXPECT_EQ(bench.kernel.frames().used(FrameUse::Program), 1u) << "nobody knows of it any more";
}

}  // namespace
}  // namespace softhca::host
