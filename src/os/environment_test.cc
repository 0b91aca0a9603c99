#include "os/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace softhca::os {
namespace {

constexpr const char* kName = "SOFTHCA_TEST_VARIABLE";

void set(const char* value) { setenv(kName, value, 1); }

TEST(Environment, ReadsNothingWhereNothingIsSet) {
  unsetenv(kName);
  EXPECT_FALSE(env_text(kName));
  EXPECT_FALSE(env_flag(kName));
  EXPECT_FALSE(env_number(kName));
  set("");
  EXPECT_FALSE(env_text(kName));
}

TEST(Environment, ReadsFlagsInAnyCase) {
  for (const char* yes : {"1", "yes", "TRUE", "On"}) {
    set(yes);
    EXPECT_EQ(env_flag(kName), true) << yes;
  }
  for (const char* no : {"0", "No", "false", "OFF"}) {
    set(no);
    EXPECT_EQ(env_flag(kName), false) << no;
  }
  set("maybe");
  EXPECT_FALSE(env_flag(kName));
}

TEST(Environment, ReadsNumbersWholeOrNotAtAll) {
  set("4791");
  EXPECT_EQ(env_number(kName), 4791u);
  set("0xFf");
  EXPECT_EQ(env_number(kName), 255u);
  set("18446744073709551615");
  EXPECT_EQ(env_number(kName), ~std::uint64_t{0});
  for (const char* bad : {"18446744073709551616", "12k", "-1", "0x", "x", " 1", "1 "}) {
    set(bad);
    EXPECT_FALSE(env_number(kName)) << bad;
    EXPECT_EQ(env_text(kName), bad);
  }
}

}  // namespace
}  // namespace softhca::os
