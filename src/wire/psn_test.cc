#include "wire/psn.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace softhca::wire {
namespace {

TEST(Psn, WrapsAt24Bits) {
  EXPECT_EQ(Psn{kMask24}.plus(1), Psn{0});
  EXPECT_EQ(Psn{0}.minus(1), Psn{kMask24});
  EXPECT_EQ(Psn{5}.plus(0xffff'ffff), Psn{4});
  EXPECT_EQ(Psn{0xabc000}.plus(kMask24 + 1), Psn{0xabc000});
}

TEST(Psn, AheadIsTheShorterWayRoundTheCircle) {
  EXPECT_EQ(ahead({7}, {7}), 0);
  EXPECT_EQ(ahead({0}, {kMask24}), 1);
  EXPECT_EQ(ahead({kMask24}, {0}), -1);
  EXPECT_EQ(ahead({0x7f'ffff}, {0}), 0x7f'ffff);
  EXPECT_EQ(ahead({0x80'0000}, {0}), -0x80'0000);  // the one point that is equally far
  EXPECT_EQ(ahead({0}, {0x80'0000}), -0x80'0000);
}

TEST(Psn, AheadUndoesPlusAndMinusEverywhere) {
  Prng prng(1);
  for (int i = 0; i < 100'000; ++i) {
    const Psn psn{static_cast<std::uint32_t>(prng.below(kMask24 + 1))};
    const auto step = static_cast<std::uint32_t>(prng.below(0x80'0000));
    ASSERT_EQ(ahead(psn.plus(step), psn), static_cast<std::int32_t>(step));
    ASSERT_EQ(ahead(psn.minus(step), psn), -static_cast<std::int32_t>(step));
    ASSERT_EQ(psn.plus(step).minus(step), psn);
  }
}

TEST(Msn, WrapsAt24Bits) { EXPECT_EQ(Msn{kMask24}.next(), Msn{0}); }

TEST(Key, IsAnIndexAndAVariant) {
  const Key key = Key::of(0x12'3456, 0x78);
  EXPECT_EQ(key, Key{0x1234'5678});
  EXPECT_EQ(key.index(), 0x12'3456u);
  EXPECT_EQ(key.variant(), 0x78);
}

}  // namespace
}  // namespace softhca::wire
