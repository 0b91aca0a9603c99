// Memory windows as entries of the key table.
#include <gtest/gtest.h>

#include <vector>

#include "nic/key_table.h"
#include "nic/limits.h"

namespace softhca::nic {
namespace {

using trace::ReasonId;

constexpr std::uint64_t kRegionStart = 0x7000'0000'0032;
constexpr std::uint64_t kRegionBytes = 3 * 4096;
constexpr std::uint32_t kAllOfARegion = 1 | 2 | 4 | 8 | 16;
constexpr std::uint32_t kRemoteRights = 2 | 4 | 8;
constexpr std::uint32_t kZeroBasedBit = 32;
constexpr std::uint32_t kDomain = 3;
constexpr wire::Qpn kOwnQp{0x11}, kOtherQp{0x12};

struct Windows {
  std::vector<KeyRecord> keys = std::vector<KeyRecord>(16);
  std::vector<std::uint64_t> translations = std::vector<std::uint64_t>(64);
  KeyTable table{Tables{.keys = keys, .translations = translations, .qps = {}}};

  wire::Key region(std::uint32_t access = kAllOfARegion, std::uint32_t pd = kDomain) {
    const std::vector<std::uint64_t> pages{0x9000'0000, 0x5000'0000, 0x7000'0000, 0x1000'0000};
    const auto key = table.insert({.pd = pd,
                                   .access = access,
                                   .start = kRegionStart,
                                   .bytes = kRegionBytes,
                                   .bus = {0x9000'0032},
                                   .pages = pages});
    EXPECT_TRUE(key);
    return *key;
  }
  wire::Key window(WindowType type = WindowType::Two, std::uint32_t pd = kDomain) {
    const auto key = table.insert_window(pd, type);
    EXPECT_TRUE(key);
    return *key;
  }
  KeyTable::Bind bind_of(wire::Key window, wire::Key region) {
    return {.window = window,
            .new_key = {window.value ^ 0x55},
            .region = region,
            .address = kRegionStart + 100,
            .bytes = 200,
            .access = kRemoteRights};
  }
  ReasonId bind(const KeyTable::Bind& bind) { return table.bind(bind, kDomain, kOwnQp).id; }
  ReasonId check(wire::Key key, std::uint64_t address, std::uint64_t bytes,
                 KeyRight right = KeyRight::RemoteWrite, wire::Qpn qpn = kOwnQp) {
    return table
        .check({.key = key, .pd = kDomain, .right = right, .address = address, .bytes = bytes}, qpn)
        .id;
  }
};

// C64 for windows: exact to the byte, and the bytes are the region's, page by page.
TEST(Window, OpensItsBytesOfTheRegionAndNoOthers) {
  Windows w;
  const wire::Key region = w.region();
  const wire::Key window = w.window();
  EXPECT_EQ(w.check(window, kRegionStart + 100, 1), ReasonId::WindowUnbound);
  auto bind = w.bind_of(window, region);
  bind.address = kRegionStart + 4000;  // 4050 bytes into the first page
  EXPECT_EQ(w.bind(bind), ReasonId::None);
  EXPECT_EQ(w.check(window, bind.address, 1), ReasonId::KeyStale) << "the key before the bind";
  EXPECT_EQ(w.check(bind.new_key, bind.address, 200), ReasonId::None);
  EXPECT_EQ(w.check(bind.new_key, bind.address - 1, 1), ReasonId::OutOfBounds);
  EXPECT_EQ(w.check(bind.new_key, bind.address + 200, 1), ReasonId::OutOfBounds);
  EXPECT_EQ(w.check(bind.new_key, bind.address + 199, ~std::uint64_t{0}), ReasonId::AddressWraps);
  const auto piece = w.table.locate({.key = bind.new_key,
                                     .pd = kDomain,
                                     .right = KeyRight::RemoteRead,
                                     .address = bind.address,
                                     .bytes = 200});
  EXPECT_EQ(piece.at.value, 0x9000'0000u + 4050);
  EXPECT_EQ(piece.bytes, 46u);
  const auto next = w.table.locate({.key = bind.new_key,
                                    .pd = kDomain,
                                    .right = KeyRight::RemoteRead,
                                    .address = bind.address + 46,
                                    .bytes = 154});
  EXPECT_EQ(next.at.value, 0x5000'0000u);
}

TEST(Window, IsForPeersAndType2ForOneQueuePair) {
  Windows w;
  const wire::Key region = w.region();
  auto second = w.bind_of(w.window(), region);
  auto first = w.bind_of(w.window(WindowType::One), region);
  EXPECT_EQ(w.bind(second), ReasonId::None);
  EXPECT_EQ(w.bind(first), ReasonId::None);
  for (const KeyRight right : {KeyRight::LocalRead, KeyRight::LocalWrite})
    EXPECT_EQ(w.check(second.new_key, second.address, 8, right), ReasonId::WindowIsRemote);
  EXPECT_EQ(w.check(second.new_key, second.address, 8, KeyRight::RemoteRead, kOtherQp),
            ReasonId::WindowOtherQp);
  EXPECT_EQ(w.check(first.new_key, first.address, 8, KeyRight::RemoteRead, kOtherQp),
            ReasonId::None);
  EXPECT_EQ(w.table
                .check({.key = first.new_key,
                        .pd = 9,
                        .right = KeyRight::RemoteRead,
                        .address = first.address,
                        .bytes = 8},
                       kOwnQp)
                .id,
            ReasonId::KeyOtherDomain);
}

// C10-72 to C10-75, C42, C43: each thing that a bind needs, taken away.
TEST(Window, IsNotBoundWhereTheRegionDoesNotAllowIt) {
  struct Case {
    std::uint32_t region_access, bind_access;
    ReasonId reason;
  };
  for (const Case& c : {Case{kAllOfARegion & ~16u, kRemoteRights, ReasonId::BindNotAllowed},
                        Case{4 | 16, 2, ReasonId::BindRights}, Case{16, 8, ReasonId::BindRights},
                        Case{16, 4, ReasonId::None},  // the region itself need not be readable
                        Case{16 | 1, kRemoteRights, ReasonId::None}}) {
    Windows w;
    auto bind = w.bind_of(w.window(), w.region(c.region_access));
    bind.access = c.bind_access;
    EXPECT_EQ(w.bind(bind), c.reason);
    EXPECT_EQ(w.check(bind.new_key, bind.address, 1, KeyRight::RemoteRead) == ReasonId::None,
              c.reason == ReasonId::None);
  }
  Windows w;
  const wire::Key region = w.region();
  const wire::Key foreign = w.region(kAllOfARegion, 9);
  const wire::Key window = w.window();
  EXPECT_EQ(w.bind(w.bind_of(window, foreign)), ReasonId::KeyOtherDomain);
  EXPECT_EQ(w.table.bind(w.bind_of(window, region), 9, kOwnQp).id, ReasonId::KeyOtherDomain);
  EXPECT_EQ(w.bind(w.bind_of(window, {region.value ^ 1})), ReasonId::KeyStale);
  EXPECT_EQ(w.bind(w.bind_of(window, {0xffff'ff00})), ReasonId::KeyUnknown);
  EXPECT_EQ(w.bind(w.bind_of(region, region)), ReasonId::KeyUnknown) << "not a window";
  auto bound = w.bind_of(w.window(), region);
  EXPECT_EQ(w.bind(bound), ReasonId::None);
  EXPECT_EQ(w.bind(w.bind_of(window, bound.new_key)), ReasonId::NotARegion);
  const auto nothing = w.table.insert({.pd = kDomain,
                                       .access = 1 | 16,
                                       .start = 0,
                                       .bytes = 1,
                                       .bus = {},
                                       .pages = {},
                                       .is_null = true});
  ASSERT_TRUE(nothing);
  EXPECT_EQ(w.bind(w.bind_of(window, *nothing)), ReasonId::NullRegionBound);
}

// C41: a range that wraps or leaves the region by one byte.
TEST(Window, IsBoundWithinItsRegion) {
  struct Case {
    std::uint64_t address, bytes;
    ReasonId reason;
  };
  for (const Case& c : {Case{kRegionStart, kRegionBytes, ReasonId::None},
                        Case{kRegionStart - 1, 2, ReasonId::OutOfBounds},
                        Case{kRegionStart + kRegionBytes - 3, 4, ReasonId::OutOfBounds},
                        Case{kRegionStart, kRegionBytes + 1, ReasonId::OutOfBounds},
                        Case{~std::uint64_t{0} - 1023, 1025, ReasonId::AddressWraps},
                        Case{kRegionStart, ~std::uint64_t{0}, ReasonId::AddressWraps}}) {
    Windows w;
    auto bind = w.bind_of(w.window(), w.region());
    bind.address = c.address;
    bind.bytes = c.bytes;
    EXPECT_EQ(w.bind(bind), c.reason);
  }
}

// o10-36.2.2: zero-based windows count from 0; only type 2.
TEST(Window, MayCountFromZero) {
  Windows w;
  const wire::Key region = w.region();
  auto bind = w.bind_of(w.window(), region);
  bind.access |= kZeroBasedBit;
  EXPECT_EQ(w.bind(bind), ReasonId::None);
  EXPECT_EQ(w.check(bind.new_key, 0, 200), ReasonId::None);
  EXPECT_EQ(w.check(bind.new_key, 200, 1), ReasonId::OutOfBounds);
  EXPECT_EQ(w.check(bind.new_key, bind.address, 1), ReasonId::OutOfBounds);
  const auto piece = w.table.locate({.key = bind.new_key,
                                     .pd = kDomain,
                                     .right = KeyRight::RemoteRead,
                                     .address = 5,
                                     .bytes = 8});
  EXPECT_EQ(piece.at.value, 0x9000'0032u + 105);
  auto first = w.bind_of(w.window(WindowType::One), region);
  first.access |= kZeroBasedBit;
  EXPECT_EQ(w.bind(first), ReasonId::BindZeroBased);
}

// o10-37.2.30, o10-37.2.40, C44: a type 2 window is bound when it is free, under any key byte.
TEST(Window, OfType2IsInvalidatedBetweenBinds) {
  Windows w;
  const wire::Key region = w.region();
  auto bind = w.bind_of(w.window(), region);
  EXPECT_EQ(w.bind(bind), ReasonId::None);
  EXPECT_EQ(w.bind(bind), ReasonId::WindowBound);
  EXPECT_EQ(w.table.invalidate({bind.new_key.value ^ 1}, kDomain, kOwnQp).id, ReasonId::KeyStale);
  EXPECT_EQ(w.table.invalidate(bind.new_key, 9, kOwnQp).id, ReasonId::KeyOtherDomain);
  EXPECT_EQ(w.table.invalidate(bind.new_key, kDomain, kOtherQp).id, ReasonId::WindowOtherQp);
  EXPECT_EQ(w.check(bind.new_key, bind.address, 8), ReasonId::None);
  EXPECT_EQ(w.table.invalidate(bind.new_key, kDomain, kOwnQp).id, ReasonId::None);
  EXPECT_EQ(w.check(bind.new_key, bind.address, 8), ReasonId::WindowUnbound);
  EXPECT_EQ(w.table.invalidate(bind.new_key, kDomain, kOwnQp).id, ReasonId::WindowUnbound);
  for (const std::uint32_t byte : {0u, 1u}) {  // the same key again, then another
    bind.new_key.value += byte;
    EXPECT_EQ(w.bind(bind), ReasonId::None);
    EXPECT_EQ(w.check(bind.new_key, bind.address, 8), ReasonId::None);
    EXPECT_EQ(w.table.invalidate(bind.new_key, kDomain, kOwnQp).id, ReasonId::None);
  }
  bind.bytes = 0;
  EXPECT_EQ(w.bind(bind), ReasonId::BindEmpty);
  bind.bytes = 8;
  bind.new_key.value += 0x100;
  EXPECT_EQ(w.bind(bind), ReasonId::BindKeyIndex);
}

// A type 1 window is bound over and over, and a bind of nothing unbinds it.
TEST(Window, OfType1IsBoundAnew) {
  Windows w;
  const wire::Key region = w.region();
  auto bind = w.bind_of(w.window(WindowType::One), region);
  EXPECT_EQ(w.bind(bind), ReasonId::None);
  bind.address += 1000;
  EXPECT_EQ(w.bind(bind), ReasonId::None);
  EXPECT_EQ(w.check(bind.new_key, bind.address - 1000, 8), ReasonId::OutOfBounds);
  EXPECT_EQ(w.check(bind.new_key, bind.address, 8), ReasonId::None);
  EXPECT_EQ(w.table.invalidate(bind.new_key, kDomain, kOwnQp).id, ReasonId::NotInvalidatable);
  EXPECT_TRUE(w.table.has_windows(region));
  bind.bytes = 0;
  bind.region = {};
  EXPECT_EQ(w.bind(bind), ReasonId::None);
  EXPECT_EQ(w.check(bind.new_key, bind.address, 8), ReasonId::WindowUnbound);
  EXPECT_FALSE(w.table.has_windows(region));
  EXPECT_EQ(w.table.invalidate(region, kDomain, kOwnQp).id, ReasonId::NotInvalidatable);
}

// C45: the table knows how many windows a region has, whichever way they go.
TEST(Window, HoldsItsRegionUntilItGoes) {
  Windows w;
  const wire::Key region = w.region();
  auto one = w.bind_of(w.window(), region);
  auto two = w.bind_of(w.window(WindowType::One), region);
  EXPECT_EQ(w.bind(one), ReasonId::None);
  EXPECT_EQ(w.bind(two), ReasonId::None);
  EXPECT_EQ(w.table.windows_of(kDomain).size(), 2u);
  w.table.forget_queue_pair(kOtherQp);
  EXPECT_EQ(w.check(one.new_key, one.address, 8), ReasonId::None);
  w.table.forget_queue_pair(kOwnQp);
  EXPECT_EQ(w.check(one.new_key, one.address, 8), ReasonId::WindowUnbound);
  EXPECT_EQ(w.check(two.new_key, two.address, 8), ReasonId::None) << "type 1 is the domain's";
  EXPECT_TRUE(w.table.has_windows(region));
  w.table.remove_window(two.window);
  EXPECT_FALSE(w.table.has_windows(region));
  EXPECT_EQ(w.check(two.new_key, two.address, 8), ReasonId::KeyStale);
  EXPECT_EQ(w.bind(one), ReasonId::None);
  w.table.unbind_all(region);
  EXPECT_FALSE(w.table.has_windows(region));
  w.table.remove(region);
  w.table.remove_windows();
  EXPECT_EQ(w.table.window_count(), 0u);
}

// C74: as many as are advertised, beside as many regions.
TEST(Window, ThereAreAsManyAsAdvertised) {
  std::vector<KeyRecord> keys(std::size_t{kMaxKeys} + kMaxWindows + 1);
  KeyTable table(Tables{.keys = keys, .translations = {}, .qps = {}});
  for (std::uint32_t i = 0; i < kMaxWindows; ++i)
    ASSERT_TRUE(table.insert_window(kDomain, WindowType::One));
  const auto more = table.insert_window(kDomain, WindowType::One);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().id, ReasonId::WindowsExhausted);
  const KeyTable::Entry entry{
      .pd = kDomain, .access = 1, .start = 4096, .bytes = 1, .bus = {4096}, .pages = {}};
  for (std::uint32_t i = 0; i < kMaxKeys; ++i) ASSERT_TRUE(table.insert(entry));
  const auto region = table.insert(entry);
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().id, ReasonId::KeysExhausted);
}

// A region changes under its key; a failure leaves it as it was.
TEST(KeyTable, ReplacesARegionUnderItsKey) {
  Windows w;
  const wire::Key key = w.region();
  const std::vector<std::uint64_t> many(60, 0x1000);
  KeyTable::Entry entry{
      .pd = kDomain, .access = 4, .start = 0x4000, .bytes = 4096, .bus = {0x1000}, .pages = many};
  const auto failed = w.table.replace(key, entry);
  ASSERT_TRUE(failed) << "60 of 64 pages are free while the 4 old ones are held";
  EXPECT_EQ(w.check(key, 0x4000, 4096, KeyRight::RemoteRead), ReasonId::None);
  EXPECT_EQ(w.check(key, kRegionStart, 1, KeyRight::RemoteRead), ReasonId::OutOfBounds);
  const auto no_room = w.table.replace(key, entry);
  ASSERT_FALSE(no_room);
  EXPECT_EQ(no_room.error().id, ReasonId::AddressesExhausted);
  EXPECT_EQ(w.check(key, 0x4000, 4096, KeyRight::RemoteRead), ReasonId::None);
  w.table.set_rights(key, 9, 2);
  EXPECT_EQ(w.check(key, 0x4000, 1, KeyRight::RemoteRead), ReasonId::KeyOtherDomain);
}

}  // namespace
}  // namespace softhca::nic
