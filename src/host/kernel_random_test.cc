// The kernel in random steps, against a copy of every program's memory that is kept beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/prng.h"
#include "host/test_kernel.h"

namespace softhca::host {
namespace {

using Page = std::array<std::byte, kPage4K>;
const Page kZeroPage{};

// What a program ought to see: regions, and the pages that are not zero, by page number.
struct KnownProgram {
  struct Known {
    std::uint64_t end;
    std::uint64_t page_bytes;
    bool writable;
  };
  std::map<std::uint64_t, Known> regions;  // by first address
  std::map<std::uint64_t, std::shared_ptr<const Page>> pages;

  const Known* region_at(std::uint64_t at) const {
    auto next = regions.upper_bound(at);
    if (next == regions.begin()) return nullptr;
    --next;
    return at < next->second.end ? &next->second : nullptr;
  }
  void split(std::uint64_t at) {
    auto next = regions.upper_bound(at);
    if (next == regions.begin()) return;
    auto& [start, region] = *std::prev(next);
    if (start == at || region.end <= at) return;
    regions.emplace(at, region);
    region.end = at;
  }
  const Page& page(std::uint64_t number) const {
    const auto found = pages.find(number);
    return found == pages.end() ? kZeroPage : *found->second;
  }
  void write(std::uint64_t at, ConstBytes bytes) {
    while (!bytes.empty()) {
      const std::uint64_t offset = at % kPage4K;
      const std::size_t part = std::min<std::size_t>(bytes.size(), kPage4K - offset);
      const auto changed = std::make_shared<Page>(page(at / kPage4K));
      std::memcpy(changed->data() + offset, bytes.data(), part);
      pages[at / kPage4K] = changed;
      at += part;
      bytes = bytes.subspan(part);
    }
  }
  void forget(std::uint64_t first, std::uint64_t end) {
    pages.erase(pages.lower_bound(first / kPage4K), pages.lower_bound(end / kPage4K));
  }
};

// A registration of one range: its pages, each with the frame that it was pinned at.
struct KnownPin {
  struct Held {
    std::uint64_t page;  // number
    PhysAddr frame;
    bool orphan = false;  // the program gave it back
    Page bytes{};         // orphan only
  };
  Pid pid;
  std::vector<PinId> ids;
  std::vector<Held> held;
};

class RandomKernel {
 public:
  RandomKernel(std::uint64_t seed, bool copy_pinned)
      : prng_(seed),
        copy_pinned_(copy_pinned),
        bench_(4 * kPage2M, {.seed = seed,
                             .fragmentation = static_cast<unsigned>(prng_.below(101)),
                             .swap_bytes = 500 * kPage4K,
                             .copy_pinned_at_fork = copy_pinned}) {}

  void step() {
    if (known_.empty() || (known_.size() < 5 && prng_.chance(1, 200))) return spawn();
    pid_ = random_program();
    const std::uint64_t what = prng_.below(1000);
    if (what < 300) return store();
    if (what < 600) return load();
    if (what < 650) return map();
    if (what < 690) return unmap();
    if (what < 720) return protect();
    if (what < 780) return move_one();
    if (what < 850) return pin();
    if (what < 925) return unpin();
    if (what < 970) return device_access();
    if (what < 975) return fork();
    if (what < 979) return exit();
    if (what < 981) seen_.compacted += bench_.kernel.compact({}).moved;
    if (what < 984) bench_.kernel.reclaim(prng_.below(300), {});
    if (what < 990) bench_.kernel.reap_orphans();
  }

  void check() {
    std::set<std::uint64_t> mapped;
    for (const auto& [pid, program] : known_) {
      for (const auto& [start, region] : program.regions)
        for (std::uint64_t at = start; at < region.end; at += kPage4K) {
          const PageWalk walk = bench_.kernel.walk({pid}, {at});
          if (walk.end != PageWalk::End::Leaf) continue;
          mapped.insert(walk.phys.value);
          ASSERT_EQ(std::memcmp(bench_.ram.cpu_address(walk.phys),
                                program.page(at / kPage4K).data(), kPage4K),
                    0);
          ASSERT_FALSE(walk.rights.has(PageRight::Write) && !region.writable);
        }
    }
    ASSERT_EQ(bench_.kernel.frames().used(FrameUse::Program), mapped.size());
    for (const auto& [id, pin] : pins_) check_pin(pin);
  }

  void end() {
    while (!pins_.empty()) drop_pin(pins_.begin());
    while (!known_.empty()) {
      pid_ = random_program();
      exit();
    }
    EXPECT_TRUE(bench_.is_empty());
    EXPECT_EQ(bench_.pins.pages_held(), 0u);
  }

  Kernel& kernel() { return bench_.kernel; }
  // That the steps were worth something.
  struct Seen {
    std::uint64_t stores, orphans, device_writes, moved, swapped, compacted, kept, forks, refusals,
        out_of_memory;
    Seen& operator+=(const Seen& other) {
      stores += other.stores;
      orphans += other.orphans;
      device_writes += other.device_writes;
      moved += other.moved;
      swapped += other.swapped;
      compacted += other.compacted;
      kept += other.kept;
      forks += other.forks;
      refusals += other.refusals;
      out_of_memory += other.out_of_memory;
      return *this;
    }
  };
  const Seen& seen() const { return seen_; }

 private:
  KnownProgram& program() { return known_.at(pid_.value); }
  Pid random_program() {
    auto at = known_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(prng_.below(known_.size())));
    return {at->first};
  }
  // Where something is mapped, mostly.
  VirtAddr somewhere() {
    const auto& regions = program().regions;
    if (regions.empty()) return {0x5000};
    auto region = regions.begin();
    std::advance(region, static_cast<std::ptrdiff_t>(prng_.below(regions.size())));
    return {region->first + prng_.below(region->second.end - region->first)};
  }

  void spawn() {
    const auto pid = bench_.kernel.spawn("program");
    if (pid) known_.emplace(pid->value, KnownProgram{});
  }
  void fork() {
    if (known_.size() >= 6) return;
    const auto child = bench_.kernel.fork(pid_, {});
    if (!child) return;
    known_.emplace(child->value, program());
    ++seen_.forks;
  }
  void exit() {
    orphan(0, ~std::uint64_t{0});
    bench_.kernel.exit(pid_, {});
    known_.erase(pid_.value);
  }

  void map() {
    if (program().regions.size() > 8) return unmap();
    const std::uint64_t page_bytes = prng_.chance(1, 30) ? kPage2M : kPage4K;
    const std::uint64_t bytes = page_bytes == kPage4K ? (1 + prng_.below(40)) * kPage4K : kPage2M;
    const auto at = bench_.kernel.map_memory(pid_, bytes, page_bytes, kLoadStore);
    ASSERT_TRUE(at);
    program().regions.emplace(at->value, KnownProgram::Known{at->value + bytes, page_bytes, true});
  }
  Range<VirtSpace> some_range() {
    const VirtAddr start = align_down(somewhere(), kPage4K);
    const KnownProgram::Known* region = program().region_at(start.value);
    if (region == nullptr) return {start, kPage4K};
    if (region->page_bytes == kPage2M) return {align_down(start, kPage2M), kPage2M};
    const std::uint64_t rest = (region->end - start.value) / kPage4K;
    return {start, (1 + prng_.below(std::min<std::uint64_t>(rest, 20))) * kPage4K};
  }
  void unmap() {
    const Range<VirtSpace> range = some_range();
    const std::uint64_t end = range.start.value + range.length;
    orphan(range.start.value, end);
    ASSERT_TRUE(bench_.kernel.unmap(pid_, range, {}));
    KnownProgram& known = program();
    known.split(range.start.value);
    known.split(end);
    known.regions.erase(known.regions.lower_bound(range.start.value),
                        known.regions.lower_bound(end));
    known.forget(range.start.value, end);
  }
  void protect() {
    const Range<VirtSpace> range = some_range();
    const bool writable = prng_.chance(2, 3);
    const auto changed =
        bench_.kernel.protect(pid_, range, writable ? kLoadStore : PageRights(PageRight::Read), {});
    ASSERT_EQ(static_cast<bool>(changed), program().region_at(range.start.value) != nullptr);
    if (!changed) return;
    KnownProgram& known = program();
    const std::uint64_t end = range.start.value + range.length;
    known.split(range.start.value);
    known.split(end);
    for (auto region = known.regions.lower_bound(range.start.value);
         region != known.regions.lower_bound(end); ++region)
      region->second.writable = writable;
  }

  // How many bytes from `at` the program may access, and why not more.
  std::pair<std::uint64_t, MemoryError> reachable(VirtAddr at, std::uint64_t bytes, bool write) {
    std::uint64_t done = 0;
    while (done < bytes) {
      const KnownProgram::Known* region = program().region_at(at.value + done);
      if (region == nullptr) return {done, MemoryError::NotMapped};
      if (write && !region->writable) return {done, MemoryError::NoRight};
      done = std::min(bytes, region->end - at.value);
    }
    return {bytes, MemoryError::None};
  }
  void store() {
    const VirtAddr at = somewhere();
    std::vector<std::byte> bytes(1 + prng_.below(prng_.chance(1, 8) ? 9000 : 64));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng_.next());
    const auto stored = bench_.kernel.store(pid_, at, bytes, {});
    check_fault(at, bytes.size(), true, stored ? std::nullopt : std::optional(stored.error()));
    if (!stored) bytes.resize(distance(at, stored.error().at));
    program().write(at.value, bytes);
    ++seen_.stores;
  }
  void load() {
    const VirtAddr at = somewhere();
    std::vector<std::byte> bytes(1 + prng_.below(prng_.chance(1, 8) ? 9000 : 64));
    const auto loaded = bench_.kernel.load(pid_, at, bytes, {});
    check_fault(at, bytes.size(), false, loaded ? std::nullopt : std::optional(loaded.error()));
    if (!loaded) bytes.resize(distance(at, loaded.error().at));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::uint64_t from = at.value + i;
      ASSERT_EQ(bytes[i], program().page(from / kPage4K)[from % kPage4K]);
    }
  }
  void check_fault(VirtAddr at, std::uint64_t bytes, bool write,
                   const std::optional<AccessFault>& fault) {
    const auto [done, error] = reachable(at, bytes, write);
    if (!fault) {
      ASSERT_EQ(error, MemoryError::None);
      return;
    }
    ++seen_.refusals;
    if (fault->error == MemoryError::OutOfMemory) {
      ++seen_.out_of_memory;
      return;
    }
    ASSERT_EQ(fault->error, error);
    ASSERT_EQ(fault->at, advance(at, done));
  }

  void move_one() {
    const VirtAddr at = somewhere();
    const PageWalk walk = bench_.kernel.walk(pid_, at);
    const bool present = walk.end == PageWalk::End::Leaf;
    const bool pinned = present && bench_.pins.most_in({align_down(walk.phys, walk.leaf_bytes),
                                                        walk.leaf_bytes}) != 0;
    const bool swap = prng_.chance(1, 2);
    const MoveAnswer answer =
        swap ? bench_.kernel.swap_out(pid_, at, {}) : bench_.kernel.migrate(pid_, at, {});
    if (!present)
      ASSERT_EQ(answer, MoveAnswer::NotThere);
    else if (swap && walk.leaf_bytes != kPage4K)
      ASSERT_EQ(answer, MoveAnswer::NotMovable);
    else if (pinned)
      ASSERT_EQ(answer, MoveAnswer::Pinned);
    else
      ASSERT_TRUE(answer == MoveAnswer::Done || answer == MoveAnswer::NoRoom);
    seen_.kept += answer == MoveAnswer::Pinned ? 1 : 0;
    if (answer == MoveAnswer::Done) ++(swap ? seen_.swapped : seen_.moved);
  }

  void pin() {
    if (pins_.size() > 25) return unpin();
    Range<VirtSpace> range = some_range();
    const bool write = prng_.chance(1, 2) || !copy_pinned_;
    const trace::Reason reason = bench_.kernel.fault_in(pid_, range, write, {});
    const auto [done, error] = reachable(range.start, range.length, write);
    if (reason) {
      ASSERT_TRUE(reason.id == trace::ReasonId::OutOfMemory || error != MemoryError::None);
      return;
    }
    ASSERT_EQ(error, MemoryError::None);
    KnownPin pinned{.pid = pid_, .ids = {}, .held = {}};
    std::uint64_t page = range.start.value / kPage4K;
    for (const pcie::Span& span : bench_.kernel.frames_of(pid_, range)) {
      pinned.ids.push_back(bench_.pins.pin({span.start, span.bytes}, {})->id);
      for (std::uint64_t offset = 0; offset < span.bytes; offset += kPage4K)
        pinned.held.push_back({page++, advance(span.start, offset), false, {}});
    }
    pins_.emplace(next_pin_++, std::move(pinned));
  }
  void unpin() {
    if (pins_.empty()) return;
    auto at = pins_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(prng_.below(pins_.size())));
    drop_pin(at);
  }
  void drop_pin(std::map<std::uint64_t, KnownPin>::iterator at) {
    check_pin(at->second);
    bench_.unpin(at->second.ids);
    pins_.erase(at);
  }

  // Before the program gives the addresses back: what is pinned there keeps its bytes.
  void orphan(std::uint64_t first, std::uint64_t end) {
    for (auto& [id, pin] : pins_)
      for (KnownPin::Held& held : pin.held) {
        const std::uint64_t at = held.page * kPage4K;
        if (pin.pid != pid_ || held.orphan || at < first || at >= end) continue;
        held.orphan = true;
        held.bytes = program().page(held.page);
        ++seen_.orphans;
      }
  }
  // A device reads or writes what it has pinned, by frame.
  void device_access() {
    if (pins_.empty() || !copy_pinned_) return;
    auto at = pins_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(prng_.below(pins_.size())));
    KnownPin& pin = at->second;
    const KnownPin::Held target = pin.held[prng_.below(pin.held.size())];
    const std::uint64_t value = prng_.next();
    const std::uint64_t offset = prng_.below(kPage4K - 8);
    std::memcpy(bench_.ram.cpu_address(advance(target.frame, offset)), &value, sizeof value);
    ++seen_.device_writes;
    for (auto& [id, other] : pins_)  // of other registrations too
      for (KnownPin::Held& held : other.held)
        if (held.frame == target.frame && held.orphan)
          std::memcpy(held.bytes.data() + offset, &value, sizeof value);
    if (!target.orphan)
      known_.at(pin.pid.value).write(target.page * kPage4K + offset, bytes_of(value));
  }
  void check_pin(const KnownPin& pin) {
    for (const KnownPin::Held& held : pin.held) {
      const FrameUse use = bench_.kernel.frames().owner_of(held.frame).use;
      ASSERT_TRUE(use == FrameUse::Program || use == FrameUse::Orphan);
      if (!copy_pinned_) continue;  // the program may have been moved off it after a fork
      if (held.orphan) {
        ASSERT_EQ(std::memcmp(bench_.ram.cpu_address(held.frame), held.bytes.data(), kPage4K), 0);
        continue;
      }
      ASSERT_EQ(bench_.kernel.walk(pin.pid, {held.page * kPage4K}).phys, held.frame);
    }
  }

  Prng prng_;
  bool copy_pinned_;
  KernelBench bench_;
  Pid pid_;  // whose turn it is
  std::map<std::uint32_t, KnownProgram> known_;
  std::map<std::uint64_t, KnownPin> pins_;
  std::uint64_t next_pin_ = 0;
  Seen seen_{};
};

// `seeds` runs, and whether they saw what they were to see.
void run_random_kernels(std::uint64_t first_seed, std::uint64_t seeds, bool copy_pinned) {
  RandomKernel::Seen all{};
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    RandomKernel random(seed, copy_pinned);
    for (int step = 0; step < 30'000; ++step) {
      random.step();
      if (step % 500 == 0) random.check();
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << " step " << step;
    }
    random.check();
    random.end();
    all += random.seen();
  }
  EXPECT_GT(all.stores, 5000u);
  EXPECT_GT(all.moved, 200u);
  EXPECT_GT(all.swapped, 200u);
  EXPECT_GT(all.kept, 100u);
  EXPECT_GT(all.forks, 100u);
  EXPECT_GT(all.orphans, 200u);
  EXPECT_GT(all.refusals, 1000u);
  EXPECT_GT(all.out_of_memory, 0u);
  EXPECT_GT(all.compacted, 0u);
  EXPECT_EQ(all.device_writes > 1000, copy_pinned);
}

TEST(Kernel, ShowsEveryProgramItsOwnBytesAndNeverMovesWhatIsPinned) {
  run_random_kernels(1, 4, true);
}

TEST(Kernel, ShowsEveryProgramItsOwnBytesWithTheOldRuleOfForkToo) {
  run_random_kernels(5, 2, false);
}

}  // namespace
}  // namespace softhca::host
