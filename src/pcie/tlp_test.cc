#include "pcie/tlp.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"
#include "base/range.h"

namespace softhca::pcie {
namespace {

Access read(std::uint64_t at, std::uint64_t bytes) { return {{at}, bytes, Direction::Read}; }
Access write(std::uint64_t at, std::uint64_t bytes) { return {{at}, bytes, Direction::Write}; }

TEST(Tlps, CutWritesByPayloadSizeAndAt4KiB) {
  const std::vector<Tlp> expected = {{TlpKind::MemoryWrite, {0xf80}, 128},
                                     {TlpKind::MemoryWrite, {0x1000}, 256},
                                     {TlpKind::MemoryWrite, {0x1100}, 16}};
  EXPECT_EQ(list_tlps(write(0xf80, 400), {}), expected);
}

TEST(Tlps, AnswerAReadWithCompletionsThatEndAtReadCompletionBoundaries) {
  const std::vector<Tlp> expected = {
      {TlpKind::MemoryRead, {0x1010}, 512}, {TlpKind::Completion, {0x1010}, 240},
      {TlpKind::Completion, {0x1100}, 256}, {TlpKind::Completion, {0x1200}, 16},
      {TlpKind::MemoryRead, {0x1210}, 88},  {TlpKind::Completion, {0x1210}, 88}};
  EXPECT_EQ(list_tlps(read(0x1010, 600), {}), expected);
}

TEST(Tlps, TakeNoneForAnEmptyAccess) {
  EXPECT_EQ(count_tlps(read(77, 0), {}), TlpCount{});
  EXPECT_TRUE(list_tlps(write(77, 0), {}).empty());
}

TEST(Tlps, AreCountedInConstantTimeForAnyLength) {
  const std::uint64_t bytes = std::uint64_t{1} << 46;
  EXPECT_EQ(count_tlps(write(0, bytes), {}).writes, bytes / 256);
  EXPECT_EQ(count_tlps(read(0, bytes), {}), (TlpCount{bytes / 512, 0, bytes / 256}));
}

// The rules, checked on the list; and the count equals the list.
void check_rules(const Access& access, const LinkLimits& limits) {
  const std::vector<Tlp> tlps = list_tlps(access, limits);
  TlpCount counted;
  BusAddr next_request = access.at;
  BusAddr next_data = access.at;
  BusAddr request_end = access.at;
  for (const Tlp& tlp : tlps) {
    ASSERT_GT(tlp.bytes, 0u);
    ASSERT_EQ(align_down(tlp.at, kPage4K), align_down(advance(tlp.at, tlp.bytes - 1), kPage4K));
    if (tlp.kind == TlpKind::Completion) {
      ++counted.completions;
      ASSERT_EQ(tlp.at, next_data);
      ASSERT_LE(tlp.bytes, limits.mps);
      next_data = advance(next_data, tlp.bytes);
      ASSERT_LE(next_data, request_end);
      if (next_data != request_end) {
        ASSERT_EQ(next_data.value % limits.rcb, 0u);
      }
      continue;
    }
    ASSERT_EQ(next_data, request_end) << "answered before the next request is listed";
    ASSERT_EQ(tlp.at, next_request);
    const bool is_read = tlp.kind == TlpKind::MemoryRead;
    ++(is_read ? counted.reads : counted.writes);
    ASSERT_EQ(is_read, access.direction == Direction::Read);
    ASSERT_LE(tlp.bytes, is_read ? limits.mrrs : limits.mps);
    next_request = request_end = advance(tlp.at, tlp.bytes);
    if (!is_read) next_data = request_end;
  }
  ASSERT_EQ(next_data, advance(access.at, access.bytes)) << "all bytes, once";
  ASSERT_EQ(count_tlps(access, limits), counted);
}

TEST(Tlps, KeepTheRulesAtEveryAlignmentAndAreCountedAsListed) {
  Prng prng(11);
  for (int round = 0; round < 20'000; ++round) {
    LinkLimits limits;
    limits.mps = 128u << prng.below(6);
    limits.mrrs = 128u << prng.below(6);
    limits.rcb = 64u << prng.below(2);
    const std::uint64_t at = prng.next() >> 8;
    const std::uint64_t bytes = prng.below(prng.chance(1, 2) ? 700 : 20'000);
    check_rules(prng.chance(1, 2) ? read(at, bytes) : write(at, bytes), limits);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

}  // namespace
}  // namespace softhca::pcie
