#include "transport/qp_state.h"

#include <gtest/gtest.h>

#include <map>

namespace softhca::transport {
namespace {

using enum QpState;
using trace::ReasonId;

constexpr QpState kStates[] = {Reset, Init, Rtr, Rts, Sqd, Sqe, Error};

// ibv_modify_qp(3): what each transition requires, State itself left out.
std::uint32_t required(QpType type, QpState from, QpState to) {
  using enum QpAttribute;
  const auto bits = [](auto... attribute) {
    return (static_cast<std::uint32_t>(attribute) | ... | 0u);
  };
  if (type == QpType::RawPacket) return from == Reset && to == Init ? bits(Port) : 0;
  if (type == QpType::Ud) {
    if (from == Reset && to == Init) return bits(PkeyIndex, Port, Qkey);
    return from == Rtr && to == Rts ? bits(SqPsn) : 0;
  }
  if (from == Reset && to == Init) return bits(PkeyIndex, Port, AccessFlags);
  if (type == QpType::Uc) {
    if (from == Init && to == Rtr) return bits(AddressVector, PathMtu, DestQpn, RqPsn);
    return from == Rtr && to == Rts ? bits(SqPsn) : 0;
  }
  if (type == QpType::XrcSend && from == Init && to == Rtr)
    return bits(AddressVector, PathMtu, DestQpn, RqPsn);
  if (type == QpType::XrcReceive && from == Rtr && to == Rts) return bits(SqPsn, Timeout);
  if (from == Init && to == Rtr)
    return bits(AddressVector, PathMtu, DestQpn, RqPsn, MaxDestReads, MinRnrTimer);
  if (from == Rtr && to == Rts) return bits(SqPsn, Timeout, RetryCount, RnrRetry, MaxReads);
  return 0;
}

bool is_allowed(QpType type, QpState from, QpState to) {
  if (to == Reset || to == Error) return true;
  const bool is_unreliable = type == QpType::Uc || type == QpType::Ud || type == QpType::RawPacket;
  if (is_unreliable && from == Sqe && to == Rts) return true;
  if (type == QpType::RawPacket && from == Sqd && to == Sqd) return false;  // nothing to change
  const std::multimap<QpState, QpState> kAllowed = {{Reset, Init}, {Init, Init}, {Init, Rtr},
                                                    {Rtr, Rts},    {Rts, Rts},   {Rts, Sqd},
                                                    {Sqd, Rts},    {Sqd, Sqd}};
  const auto [first, last] = kAllowed.equal_range(from);
  return std::any_of(first, last, [&](const auto& row) { return row.second == to; });
}

// IBTA 10.3.1, all 49 pairs: with exactly what is required, and with one thing missing.
TEST(QpState, AllowsExactlyTheTransitionsOfTheSpecification) {
  for (const QpType type :
       {QpType::Rc, QpType::Uc, QpType::XrcSend, QpType::XrcReceive, QpType::Ud, QpType::RawPacket})
    for (const QpState from : kStates)
      for (const QpState to : kStates) {
        const std::uint32_t needed = required(type, from, to);
        const auto mask = QpAttributeMask(QpAttribute::State) | QpAttributeMask::of_bits(needed);
        const trace::Reason reason = check_transition(type, from, to, mask);
        EXPECT_EQ(!reason, is_allowed(type, from, to))
            << state_name(from) << " to " << state_name(to);
        for (std::uint32_t bit = 1; bit != 0; bit <<= 1) {
          if ((needed & bit) == 0) continue;
          const trace::Reason missing =
              check_transition(type, from, to, mask - QpAttributeMask::of_bits(bit));
          EXPECT_EQ(missing.id, ReasonId::AttributeMissing);
          EXPECT_EQ(missing.object, bit);
        }
      }
}

TEST(QpState, DatagramsHaveNoPeerAndNoRemoteRights) {
  for (const QpAttribute attribute : {QpAttribute::AddressVector, QpAttribute::PathMtu,
                                      QpAttribute::DestQpn, QpAttribute::RqPsn}) {
    const auto mask = QpAttributeMask(QpAttribute::State) | attribute;
    EXPECT_EQ(check_transition(QpType::Ud, Init, Rtr, mask).id, ReasonId::AttributeNotAllowed);
  }
  const auto mask = QpAttributeMask(QpAttribute::State) | QpAttribute::Qkey;
  EXPECT_FALSE(check_transition(QpType::Ud, Init, Rtr, mask));
  EXPECT_EQ(check_transition(QpType::Rc, Init, Init, mask).id, ReasonId::AttributeNotAllowed);
}

TEST(QpState, AnUnreliableConnectionHasNoTimersAndNoReads) {
  for (const QpAttribute attribute :
       {QpAttribute::Timeout, QpAttribute::RetryCount, QpAttribute::RnrRetry, QpAttribute::MaxReads,
        QpAttribute::MinRnrTimer, QpAttribute::MaxDestReads}) {
    const auto mask = QpAttributeMask(QpAttribute::State) | QpAttribute::SqPsn | attribute;
    EXPECT_EQ(check_transition(QpType::Uc, Rtr, Rts, mask).id, ReasonId::AttributeNotAllowed);
  }
}

TEST(QpState, RefusesAnAttributeThatDoesNotBelongToTheTransition) {
  const auto mask = QpAttributeMask(QpAttribute::State) | QpAttribute::Timeout;
  EXPECT_EQ(check_transition(QpType::Rc, Rts, Rts, mask).id, ReasonId::AttributeNotAllowed);
  EXPECT_EQ(check_transition(QpType::Rc, Rts, Reset, mask).id, ReasonId::AttributeNotAllowed);
}

// IBTA table 45, both ends and the odd one: 0 is the longest (CASES C16).
TEST(Timers, RnrCodeZeroIsTheLongest) {
  EXPECT_EQ(rnr_delay(0), microseconds(655'360));
  EXPECT_EQ(rnr_delay(1), microseconds(10));
  EXPECT_EQ(rnr_delay(12), microseconds(640));
  EXPECT_EQ(rnr_delay(31), microseconds(491'520));
  for (std::uint8_t code = 2; code < 32; ++code)
    EXPECT_GT(rnr_delay(code), rnr_delay(static_cast<std::uint8_t>(code - 1)));
}

TEST(Timers, AckTimeoutDoublesAndZeroIsNever) {
  EXPECT_EQ(ack_timeout(1), nanoseconds(8192));
  EXPECT_EQ(ack_timeout(14), nanoseconds(4096 * 16384));
  EXPECT_EQ(ack_timeout(0).ps, Time::never().ps);
}

}  // namespace
}  // namespace softhca::transport
