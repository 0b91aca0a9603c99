#include "cm/rejection.h"

#include <gtest/gtest.h>

namespace softhca::cm {
namespace {

using trace::ReasonId;
using wire::RejReason;
using wire::SidrStatus;

TEST(Rejection, SaysWhatAPersonCanActOn) {
  EXPECT_EQ(reason_of(RejReason::Consumer).id, ReasonId::RejectedByProgram);
  EXPECT_EQ(reason_of(RejReason::InvalidServiceId).id, ReasonId::NoListener);
  EXPECT_EQ(reason_of(RejReason::NoResources).id, ReasonId::PeerExhausted);
  EXPECT_EQ(reason_of(RejReason::StaleConnection).id, ReasonId::ConnectionStale);
  EXPECT_EQ(reason_of(RejReason::InvalidCommId).id, ReasonId::ConnectionUnknown);
  EXPECT_EQ(reason_of(RejReason::Timeout).id, ReasonId::PeerGaveUp);
  EXPECT_EQ(reason_of(SidrStatus::Unsupported).id, ReasonId::NoListener);
  EXPECT_EQ(reason_of(SidrStatus::Rejected).id, ReasonId::RejectedByProgram);
  EXPECT_EQ(reason_of(SidrStatus::NoQp).id, ReasonId::PeerExhausted);
}

TEST(Rejection, AnyNumberHasAReasonThatIsInTheTable) {
  for (unsigned number = 0; number < 0x10000; number += 7) {
    const trace::Reason reason = reason_of(static_cast<RejReason>(number));
    EXPECT_NE(trace::find_reason(reason.id), nullptr) << number;
    EXPECT_EQ(reason.object, number);
  }
  EXPECT_EQ(reason_of(static_cast<RejReason>(24)).id, ReasonId::RejectedByPeer);
  EXPECT_EQ(reason_of(static_cast<SidrStatus>(77)).id, ReasonId::RejectedByPeer);
}

}  // namespace
}  // namespace softhca::cm
