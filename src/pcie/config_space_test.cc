#include "pcie/config_space.h"

#include <gtest/gtest.h>

#include <vector>

namespace softhca::pcie {
namespace {

constexpr std::uint32_t kOnes = 0xffff'ffff;

TEST(ConfigSpace, StartsWithBusMasterClear) {
  ConfigSpace config;
  EXPECT_FALSE(config.bus_master());
  config.set_bus_master(true);
  EXPECT_TRUE(config.bus_master());
  EXPECT_EQ(config.command(), 0x0004);
  config.set_bus_master(false);
  EXPECT_EQ(config.command(), 0x0000);
}

TEST(ConfigSpace, KeepsOnlyTheBitsThatItImplements) {
  ConfigSpace config;
  config.write_command(0xffff);
  EXPECT_EQ(config.command(), 0x0406);
  config.set_bus_master(false);
  EXPECT_EQ(config.command(), 0x0402);
  config.write(config::kIdentity, kOnes, {});
  EXPECT_EQ(config.read(config::kIdentity), 0x0001'5348u) << "read-only";
}

TEST(ConfigSpace, TellsTheSizeOfABarWhenAllOnesAreWritten) {
  ConfigSpace config({.bars = {BarShape{.bytes = 8 * kPage1G, .prefetchable = true},
                               BarShape{.bytes = kPage2M, .prefetchable = false}, BarShape{}}});
  const auto size_of = [&](std::uint16_t offset) {
    const auto high = static_cast<std::uint16_t>(offset + 4);
    config.write(offset, kOnes, {});
    config.write(high, kOnes, {});
    const std::uint64_t ones = std::uint64_t{config.read(high)} << 32 | config.read(offset);
    return ~(ones & ~std::uint64_t{0xf}) + 1;
  };
  EXPECT_EQ(config.read(config::kBar0) & 0xf, 0xcu) << "64 bits, prefetchable";
  EXPECT_EQ(size_of(config::kBar0), 8 * kPage1G);
  EXPECT_EQ(size_of(config::kBar0 + 8), kPage2M);
  EXPECT_EQ(size_of(config::kBar0 + 16), 0u) << "not implemented: reads as zeros";
}

TEST(ConfigSpace, ClaimsItsBarsOnlyWithMemorySpaceOn) {
  ConfigSpace config({.bars = {BarShape{kPage2M, false}, BarShape{}, BarShape{}}});
  config.place_bar(0, {0x70'0020'0000}, {});
  EXPECT_FALSE(config.bar(0).has_value());
  config.set_memory_space(true);
  ASSERT_TRUE(config.bar(0).has_value());
  EXPECT_EQ(*config.bar(0), (Range<PhysSpace>{{0x70'0020'0000}, kPage2M}));
  EXPECT_FALSE(config.bar(1).has_value());
}

TEST(ConfigSpace, ListsItsCapabilities) {
  const ConfigSpace plain;
  EXPECT_EQ(plain.read(config::kExpress) & 0xffff, 0x0010u) << "PCI Express, the last one";
  const ConfigSpace with({.vectors = 2048});
  EXPECT_EQ(with.read(config::kCapabilities), config::kExpress);
  EXPECT_EQ(with.read(config::kExpress) & 0xffff, config::kMsix << 8 | 0x10u);
  EXPECT_EQ(with.read(config::kMsix) & 0xff, 0x11u);
  EXPECT_EQ(with.read(config::kMsix) >> 16 & 0x7ff, 2047u);
}

TEST(ConfigSpace, HoldsThePayloadAndReadRequestSizes) {
  ConfigSpace config;
  EXPECT_EQ(config.limits().mps, 128u) << "after reset";
  EXPECT_EQ(config.limits().mrrs, 512u);
  config.set_sizes(512, 4096, {});
  EXPECT_EQ(config.limits(128).mps, 512u);
  EXPECT_EQ(config.limits().mrrs, 4096u);
}

TEST(ConfigSpace, ShowsWritesInTheTrace) {
  std::vector<std::uint64_t> cells(trace::kCounterCount);
  trace::Journal journal(8);
  trace::Tracer tracer(trace::Counters(cells), &journal);
  ConfigSpace config({}, {0x0208}, &tracer);
  config.set_bus_master(true, Time{5});
  const auto events = journal.events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, trace::EventKind::ConfigWrite);
  EXPECT_EQ(events[0].object, 0x0208u);
  EXPECT_EQ(events[0].time_ps, 5);
  EXPECT_EQ(events[0].fields[0], config::kCommand);
  EXPECT_EQ(events[0].fields[1], 4u);
}

}  // namespace
}  // namespace softhca::pcie
