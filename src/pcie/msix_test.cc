#include "pcie/msix.h"

#include <gtest/gtest.h>

namespace softhca::pcie {
namespace {

constexpr MsixMessage kMessage{0xfee0'1000, 0x41};

class MsixTableTest : public testing::Test {
 protected:
  MsixTableTest() {
    config_.enable_msix(true, false, {});
    table_.set(2, kMessage);
  }
  ConfigSpace config_{{.vectors = 4}};
  MsixTable table_{config_, 4};
};

TEST_F(MsixTableTest, SendsWhereTheHostSaid) {
  EXPECT_TRUE(table_.masked(2)) << "after reset";
  EXPECT_FALSE(table_.set_masked(2, false).has_value()) << "nothing waited";
  EXPECT_EQ(table_.signal(2), kMessage);
  EXPECT_FALSE(table_.pending(2));
}

TEST_F(MsixTableTest, KeepsWhatAMaskedVectorSaidAndSendsItOnce) {
  EXPECT_FALSE(table_.signal(2).has_value());
  EXPECT_FALSE(table_.signal(2).has_value());
  EXPECT_TRUE(table_.pending(2));
  EXPECT_FALSE(table_.pending(1));
  EXPECT_EQ(table_.set_masked(2, false), kMessage);
  EXPECT_FALSE(table_.pending(2));
  EXPECT_FALSE(table_.set_masked(2, false).has_value());
}

TEST_F(MsixTableTest, WaitsWhileTheWholeFunctionIsMasked) {
  ASSERT_FALSE(table_.set_masked(2, false).has_value());
  config_.enable_msix(true, true, {});
  EXPECT_FALSE(table_.signal(2).has_value());
  EXPECT_TRUE(table_.pending(2));
  EXPECT_FALSE(table_.set_masked(2, false).has_value());
  EXPECT_TRUE(table_.pending(2)) << "the function is masked still";
  config_.enable_msix(true, false, {});
  EXPECT_EQ(table_.set_masked(2, false), kMessage);
}

TEST_F(MsixTableTest, SaysNothingWhileSwitchedOff) {
  ASSERT_FALSE(table_.set_masked(2, false).has_value());
  config_.enable_msix(false, false, {});
  EXPECT_FALSE(table_.signal(2).has_value());
  EXPECT_FALSE(table_.pending(2));
}

}  // namespace
}  // namespace softhca::pcie
