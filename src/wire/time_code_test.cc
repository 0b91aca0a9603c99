#include "wire/time_code.h"

#include <gtest/gtest.h>

namespace softhca::wire {
namespace {

TEST(TimeCode, HasFiveBits) {
  EXPECT_EQ(duration_of(0), nanoseconds(4096));
  EXPECT_EQ(duration_of(20), nanoseconds(4096) * (1 << 20));
  EXPECT_EQ(duration_of(20 + 32), duration_of(20));
}

}  // namespace
}  // namespace softhca::wire
