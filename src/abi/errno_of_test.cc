#include "abi/errno_of.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

namespace softhca::abi {
namespace {

using trace::ReasonId;

TEST(ErrnoOf, GivesEveryReasonARealErrno) {
  for (const trace::ReasonInfo& row : trace::reasons()) {
    const int code = errno_of(row.id).code;
    EXPECT_GT(code, 0) << row.name;
    EXPECT_NE(::strerrorname_np(code), nullptr) << row.name;
  }
}

TEST(ErrnoOf, NeverAnswersEioForSomethingThatTheCallerCanMend) {
  for (const trace::ReasonInfo& row : trace::reasons()) {
    const auto number = static_cast<int>(row.id);
    const bool of_a_call = (number >= 80 && number < 109) || row.id == ReasonId::QueueFull;
    EXPECT_FALSE(of_a_call && errno_of(row.id).code == EIO) << row.name;
  }
}

TEST(ErrnoOf, AnswersAsTheKernelDoes) {
  EXPECT_EQ(errno_of(ReasonId::HoleInRange).code, EFAULT);
  EXPECT_EQ(errno_of(ReasonId::PageReadOnly).code, EFAULT);
  EXPECT_EQ(errno_of(ReasonId::ObjectBusy).code, EBUSY);
  EXPECT_EQ(errno_of(ReasonId::QueueFull).code, ENOMEM);
  EXPECT_EQ(errno_of(ReasonId::BadTransition).code, EINVAL);
}

TEST(ErrnoOf, KeepsTheValueOfASuccess) {
  Result<int, trace::Reason> good(7);
  EXPECT_EQ(*outcome_of(std::move(good)), 7);
  Result<int, trace::Reason> bad(trace::Reason{.id = ReasonId::LimitExceeded});
  EXPECT_EQ(outcome_of(std::move(bad)).error().code, ENOMEM);
}

}  // namespace
}  // namespace softhca::abi
