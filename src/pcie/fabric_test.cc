#include "pcie/fabric.h"

#include <gtest/gtest.h>

namespace softhca::pcie {
namespace {

constexpr RequesterId kNic{0x0100};
constexpr RequesterId kGpu{0x0200};
constexpr std::uint64_t kWindow = 0x70'0000'0000;

class FabricTest : public testing::Test {
 protected:
  FabricTest() {
    fabric_.add("nic", nic_);
    fabric_.add("gpu", gpu_);
    gpu_.place_bar(0, {kWindow}, {});
    gpu_.set_memory_space(true);
  }
  ConfigSpace nic_{{}, kNic};
  ConfigSpace gpu_{{.class_code = 0x030200, .bars = {BarShape{kPage2M, true}, {}, {}}}, kGpu};
  Fabric fabric_;
};

TEST_F(FabricTest, FindsWhoClaimsAnAddress) {
  EXPECT_EQ(fabric_.claims({kWindow - 1}), nullptr);
  ASSERT_NE(fabric_.claims({kWindow}), nullptr);
  EXPECT_EQ(fabric_.claims({kWindow})->name, "gpu");
  EXPECT_EQ(fabric_.claims({kWindow + kPage2M - 1})->number, 1u);
  EXPECT_EQ(fabric_.claims({kWindow + kPage2M}), nullptr);
  gpu_.set_memory_space(false);
  EXPECT_EQ(fabric_.claims({kWindow}), nullptr);
}

TEST_F(FabricTest, SendsEverythingUpWithRedirectOn) {
  EXPECT_EQ(fabric_.direct_target(kNic, {kWindow}), nullptr);
}

TEST_F(FabricTest, HandsRequestsToAPeerWithRedirectOff) {
  fabric_.set_shape({.acs_redirect = false});
  ASSERT_NE(fabric_.direct_target(kNic, {kWindow}), nullptr);
  EXPECT_EQ(fabric_.direct_target(kNic, {kWindow})->name, "gpu");
  EXPECT_EQ(fabric_.direct_target(kNic, {0x1000}), nullptr) << "RAM is behind the root complex";
  EXPECT_EQ(fabric_.direct_target(kGpu, {kWindow}), nullptr) << "not back to itself";
}

TEST_F(FabricTest, HasNoShortcutWithoutASwitch) {
  fabric_.set_shape({.has_switch = false, .acs_redirect = false});
  EXPECT_EQ(fabric_.direct_target(kNic, {kWindow}), nullptr);
}

}  // namespace
}  // namespace softhca::pcie
