// Properties of the DMA interface that hold whatever happens: random steps against an oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "base/prng.h"
#include "base/sanitized.h"
#include "host/dma_domain.h"
#include "host/test_bench.h"

namespace softhca::host {
namespace {

using pcie::Direction;
using trace::Counter;
using trace::ReasonId;

constexpr std::uint64_t kPages = 1100;  // of RAM: more than two leaves of 2 MiB
constexpr int kSteps = 120'000;         // by all seeds together
constexpr int kSeeds = random_steps(12);

IotlbShape random_shape(Prng& prng) {
  const auto size = [&] {
    return CacheSize{1u << prng.below(4), static_cast<std::uint32_t>(1 + prng.below(4))};
  };
  return {.pages_4k = size(), .pages_2m = size(), .pages_1g = size()};
}

// A domain with caches of a random geometry, and what is true of it.
class Machine {
 public:
  Machine(IommuMode mode, std::uint64_t seed)
      : prng_(seed),
        most_mappings_(prng_.chance(1, 2) ? 40 : 3),  // with few, tables come and go
        iotlb_(random_shape(prng_)),
        device_tlb_(random_shape(prng_)),
        structures_({prng_.below(20), prng_.below(3), prng_.below(2)}),
        port_({.ram = ram_,
               .iommu = iommu_,
               .iotlb = iotlb_,
               .config = config_,
               .tracer = bench_.tracer,
               .contexts = &contexts_,
               .structures = prng_.chance(3, 4) ? &structures_ : nullptr,
               .device_tlb = prng_.chance(1, 3) ? &device_tlb_ : nullptr}) {
    config_.set_bus_master(true);
    domain_.emplace(DmaDomain::Parts{iommu_, iova_, port_, bench_.tracer, &contexts_}, mode, seed);
  }

  void step() {
    now_ = now_ + microseconds(static_cast<std::int64_t>(prng_.below(300)));
    if (prng_.chance(1, 400)) now_ = now_ + milliseconds(20);
    expire();
    switch (prng_.below(8)) {
      case 0:
      case 1:
        return map();
      case 2:
        return unmap();
      default:
        return access();
    }
  }

  void check_end() {
    while (!live_.empty()) unmap_one(live_.begin());
    domain_->flush(now_);
    EXPECT_EQ(iommu_.leaves(), 0u);
    EXPECT_EQ(iommu_.table_frames(), 1u);
    EXPECT_EQ(iova_.bytes_in_use(), 0u);
    EXPECT_EQ(iova_.free_stretches(), 1u);
  }
  std::uint64_t stale() const { return bench_.count(Counter::StaleTranslations); }
  std::uint64_t reached() const { return reached_; }
  std::uint64_t blocked() const { return blocked_; }

 private:
  struct Page {
    std::uint64_t frame{};
    BusRights rights;
    int mapping = 0;
  };
  struct Ghost {  // unmapped, not flushed yet
    Page page;
    Time unmapped_at;
  };
  struct Live {
    DmaMapping mapping;
    std::vector<std::uint64_t> pages;
  };

  void map() {
    if (live_.size() >= most_mappings_) return;
    std::vector<pcie::Span> frames;
    for (std::uint64_t i = 1 + prng_.below(4); i > 0; --i) {
      const bool large = prng_.chance(1, 5);
      const std::uint64_t count = large ? 512 : 1 + prng_.below(6);
      const std::uint64_t first = large ? 512 * prng_.below(2) : prng_.below(kPages - count);
      frames.push_back({{first * kPage4K}, count * kPage4K});
    }
    const BusRights rights = prng_.chance(1, 3) ? BusRights(BusRight::Read) : kReadWrite;
    const PageOrder order = prng_.chance(1, 3) ? PageOrder::Permuted : PageOrder::InOrder;
    auto mapped = domain_->map(frames, rights, order, now_);
    forget_if_flushed();  // a map that runs short of addresses or tables closes the window early
    if (!mapped) {
      ASSERT_EQ(mapped.error().id, ReasonId::AddressesExhausted);
      return;
    }
    Live live{.mapping = *mapped, .pages = mapped->pages};
    std::size_t at = 0;
    for (const pcie::Span& span : frames)
      for (std::uint64_t done = 0; done < span.bytes; done += kPage4K, ++at) {
        if (mapped->pages.empty()) live.pages.push_back(mapped->first.value + at * kPage4K);
        const std::uint64_t bus = live.pages[at];
        ASSERT_FALSE(pages_.contains(bus)) << "an address is given to one at a time";
        ASSERT_FALSE(ghosts_.contains(bus)) << "nor inside a window";
        pages_[bus] = {(span.start.value + done) / kPage4K, rights, next_mapping_};
      }
    live.mapping.pages = {};
    live_.emplace(next_mapping_++, std::move(live));
  }

  void unmap() {
    if (live_.empty()) return;
    unmap_one(std::next(live_.begin(), static_cast<std::ptrdiff_t>(prng_.below(live_.size()))));
  }
  void unmap_one(std::map<int, Live>::iterator gone) {
    if (domain_->waiting() == DmaDomain::kFlushEntries) ghosts_.clear();
    domain_->unmap(gone->second.mapping, now_);
    for (const std::uint64_t bus : gone->second.pages) {
      if (domain_->mode() == IommuMode::TranslateDeferred) ghosts_[bus] = {pages_[bus], now_};
      pages_.erase(bus);
    }
    live_.erase(gone);
    if (first_unmap_ == Time::never()) first_unmap_ = now_;
    forget_if_flushed();
  }

  // The oracle's own idea of when a window ends.
  void expire() {
    if (first_unmap_ != Time::never() && now_ >= first_unmap_ + DmaDomain::kFlushAfter) {
      ghosts_.clear();
      first_unmap_ = Time::never();
    }
  }
  void forget_if_flushed() {
    if (domain_->waiting() == 0) {
      ghosts_.clear();
      first_unmap_ = Time::never();
    }
    if (domain_->waiting() == 1 && domain_->next_deadline() == now_ + DmaDomain::kFlushAfter)
      first_unmap_ = now_;
  }

  BusAddr some_address() {
    const std::uint64_t in_page = prng_.below(kPage4K - 64);
    const auto pick = [&](const auto& pages) {
      auto at = pages.lower_bound(kWindow.start.value + prng_.below(kWindow.length));
      if (at == pages.end()) at = pages.begin();
      return BusAddr{at->first + in_page};
    };
    if (!ghosts_.empty() && prng_.chance(1, 4)) return pick(ghosts_);
    if (!pages_.empty() && prng_.chance(3, 4)) return pick(pages_);
    return {kWindow.start.value + prng_.below(kWindow.length / kPage4K) * kPage4K + in_page};
  }

  void access() {
    const BusAddr at = some_address();
    const Direction direction = prng_.chance(1, 2) ? Direction::Read : Direction::Write;
    const std::uint64_t stale_before = stale();
    spans_.clear();
    const auto outcome = port_.resolve({at, 64, direction}, now_, spans_);
    const std::uint64_t page = align_down(at, kPage4K).value;
    const auto mapped = pages_.find(page);
    if (mapped != pages_.end()) {
      const bool allowed = mapped->second.rights.has(right_for(direction));
      ASSERT_EQ(static_cast<bool>(outcome), allowed);
      if (allowed) {
        ASSERT_EQ(spans_.all()[0].start.value,
                  mapped->second.frame * kPage4K + offset_in(at, kPage4K));
        ASSERT_EQ(stale(), stale_before);
        ++reached_;
      }
      return;
    }
    if (!outcome) {
      ++blocked_;
      return;
    }
    const auto ghost = ghosts_.find(page);
    ASSERT_NE(ghost, ghosts_.end()) << "reached what is unmapped, and outside any window";
    ASSERT_LT(now_, ghost->second.unmapped_at + DmaDomain::kFlushAfter);
    ASSERT_EQ(spans_.all()[0].start.value,
              ghost->second.page.frame * kPage4K + offset_in(at, kPage4K));
    ASSERT_EQ(stale(), stale_before + 1) << "and it shows";
  }

  // Small, so that addresses are soon used again, and neighbours share tables.
  static constexpr Range<BusSpace> kWindow{{(std::uint64_t{1} << 47) + kPage1G - 8 * kPage2M},
                                           24 * kPage2M};

  Prng prng_;
  std::size_t most_mappings_;
  TestBench bench_{48};
  Ram ram_ = Ram::arena(kPages * kPage4K);
  ContextTable contexts_{bench_.frames, bench_.tracer};
  Iommu iommu_{bench_.frames, {}, bench_.tracer};
  IovaSpace iova_{7, kWindow};
  Iotlb iotlb_;
  Iotlb device_tlb_;
  StructureCache structures_;
  pcie::ConfigSpace config_;
  RootPort port_;
  std::optional<DmaDomain> domain_;
  pcie::SpanList spans_;

  Time now_{};
  Time first_unmap_ = Time::never();
  std::map<std::uint64_t, Page> pages_;  // by bus address
  std::map<std::uint64_t, Ghost> ghosts_;
  std::map<int, Live> live_;
  int next_mapping_ = 1;
  std::uint64_t reached_ = 0;
  std::uint64_t blocked_ = 0;
};

TEST(DmaDomainProperty, StrictNeverReachesWhatIsNotMapped) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Machine machine(IommuMode::TranslateStrict, seed);
    for (int step = 0; step < kSteps / 12; ++step) {
      machine.step();
      if (HasFatalFailure()) FAIL() << "seed " << seed << " step " << step;
    }
    EXPECT_EQ(machine.stale(), 0u);
    EXPECT_GT(machine.reached(), 1000u);
    EXPECT_GT(machine.blocked(), 300u);
    machine.check_end();
  }
}

TEST(DmaDomainProperty, DeferredReachesWhatIsUnmappedOnlyInsideItsWindow) {
  std::uint64_t stale = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Machine machine(IommuMode::TranslateDeferred, seed);
    for (int step = 0; step < kSteps / 12; ++step) {
      machine.step();
      if (HasFatalFailure()) FAIL() << "seed " << seed << " step " << step;
    }
    stale += machine.stale();
    EXPECT_GT(machine.reached(), 1000u);
    machine.check_end();
  }
  EXPECT_GT(stale, 25u * kSeeds) << "or the window was not tried";
}

// A mapping of random spans is one buffer: what is written through the bus is what memcpy would
// have written into the frames, and reads come back the same.
TEST(DmaDomainProperty, MovesThroughScatterListsAsMemcpyWould) {
  Prng prng(21);
  for (const IommuMode mode : {IommuMode::TranslateStrict, IommuMode::TranslateDeferred,
                               IommuMode::PassThrough, IommuMode::Off}) {
    TestBench bench(64);
    constexpr std::uint64_t kFrames = 64;
    Ram ram = Ram::arena(kFrames * kPage4K);
    std::vector<std::byte> expected(kFrames * kPage4K);
    ContextTable contexts(bench.frames, bench.tracer);
    Iommu iommu(bench.frames, {}, bench.tracer);
    IovaSpace iova(5);
    Iotlb iotlb({.pages_4k = {4, 2}, .pages_2m = {1, 1}, .pages_1g = {1, 1}});
    pcie::ConfigSpace config;
    config.set_bus_master(true);
    RootPort port({ram, iommu, iotlb, config, bench.tracer, &contexts});
    DmaDomain domain({iommu, iova, port, bench.tracer, &contexts}, mode, 5);
    std::vector<std::uint64_t> order(kFrames);
    std::iota(order.begin(), order.end(), std::uint64_t{0});
    pcie::SpanList spans;
    for (int round = 0; round < 500; ++round) {
      for (std::uint64_t i = kFrames - 1; i > 0; --i) std::swap(order[i], order[prng.below(i + 1)]);
      const std::uint64_t pages = 1 + prng.below(20);
      std::vector<pcie::Span> frames;
      for (std::uint64_t i = 0; i < pages; ++i) frames.push_back({{order[i] * kPage4K}, kPage4K});
      const DmaMapping mapping = *domain.map(
          frames, kReadWrite, prng.chance(1, 2) ? PageOrder::Permuted : PageOrder::InOrder, {});
      for (int access = 0; access < 50; ++access) {
        const std::uint64_t page = prng.below(pages);
        const std::uint64_t in_page = prng.below(kPage4K);
        // Past the end of a page only where the device's addresses go on as well.
        const std::uint64_t room =
            (mapping.pages.empty() ? (pages - page) * kPage4K : kPage4K) - in_page;
        const BusAddr at = advance(mapping.pages.empty() ? advance(mapping.first, page * kPage4K)
                                                         : BusAddr{mapping.pages[page]},
                                   in_page);
        std::vector<std::byte> bytes(1 + prng.below(std::min<std::uint64_t>(room, 9'000)));
        const bool writes = prng.chance(1, 2);
        spans.clear();
        ASSERT_TRUE(port.resolve({at, bytes.size(), writes ? Direction::Write : Direction::Read},
                                 {}, spans));
        if (writes) {
          std::ranges::fill(bytes, static_cast<std::byte>(prng.next()));
          bytes[prng.below(bytes.size())] = static_cast<std::byte>(prng.next());
          ASSERT_TRUE(port.write(spans.all(), bytes, {}));
        } else {
          ASSERT_TRUE(port.read(spans.all(), bytes, {}));
        }
        for (std::uint64_t i = 0; i < bytes.size();) {
          const std::uint64_t offset = page * kPage4K + in_page + i;
          const std::uint64_t count = std::min(bytes.size() - i, kPage4K - offset % kPage4K);
          std::byte* there = &expected[order[offset / kPage4K] * kPage4K + offset % kPage4K];
          if (writes) std::memcpy(there, &bytes[i], count);
          ASSERT_EQ(std::memcmp(there, &bytes[i], count), 0);
          i += count;
        }
      }
      domain.unmap(mapping, {});
    }
    EXPECT_TRUE(std::ranges::equal(
        std::span<const std::byte>(ram.cpu_address({0}), expected.size()), expected));
  }
}

}  // namespace
}  // namespace softhca::host
