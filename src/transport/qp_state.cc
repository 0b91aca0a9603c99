#include "transport/qp_state.h"

#include <array>

namespace softhca::transport {
namespace {

using enum QpAttribute;
using Mask = QpAttributeMask;

struct Transition {
  QpType type;
  QpState from;
  QpState to;
  Mask required;
  Mask optional;
};

constexpr Mask operator+(QpAttribute a, QpAttribute b) { return Mask(a) | Mask(b); }
constexpr Mask operator+(Mask a, QpAttribute b) { return a | Mask(b); }

// ibv_modify_qp's tables. State itself is in every mask.
constexpr std::array kTransitions = {
    Transition{QpType::Rc, QpState::Reset, QpState::Init, PkeyIndex + Port + AccessFlags, {}},
    Transition{QpType::Rc, QpState::Init, QpState::Init, {}, PkeyIndex + Port + AccessFlags},
    Transition{QpType::Rc, QpState::Init, QpState::Rtr,
               AddressVector + PathMtu + DestQpn + RqPsn + MaxDestReads + MinRnrTimer,
               AlternatePath + PkeyIndex + AccessFlags},
    Transition{QpType::Rc, QpState::Rtr, QpState::Rts,
               SqPsn + Timeout + RetryCount + RnrRetry + MaxReads,
               CurrentState + AlternatePath + AccessFlags + MinRnrTimer + PathMigState},
    Transition{QpType::Rc,
               QpState::Rts,
               QpState::Rts,
               {},
               CurrentState + AccessFlags + AlternatePath + PathMigState + MinRnrTimer},
    Transition{QpType::Rc, QpState::Rts, QpState::Sqd, {}, Mask(EnableSqdNotify)},
    Transition{QpType::Rc,
               QpState::Sqd,
               QpState::Rts,
               {},
               CurrentState + AccessFlags + AlternatePath + PathMigState + MinRnrTimer},
    Transition{QpType::Rc,
               QpState::Sqd,
               QpState::Sqd,
               {},
               AddressVector + Timeout + RetryCount + RnrRetry + MaxReads + MaxDestReads +
                   PkeyIndex + AccessFlags + AlternatePath + PathMigState + MinRnrTimer},

    // The end of an XRC connection that sends: an RC queue pair without a receiving half. Programs
    // give both ends the attributes of both (perftest does), so those of the half that is not there
    // are allowed where an RC queue pair needs them.
    Transition{QpType::XrcSend, QpState::Reset, QpState::Init, PkeyIndex + Port + AccessFlags, {}},
    Transition{QpType::XrcSend, QpState::Init, QpState::Init, {}, PkeyIndex + Port + AccessFlags},
    Transition{QpType::XrcSend, QpState::Init, QpState::Rtr,
               AddressVector + PathMtu + DestQpn + RqPsn,
               AlternatePath + PkeyIndex + AccessFlags + MaxDestReads + MinRnrTimer},
    Transition{QpType::XrcSend, QpState::Rtr, QpState::Rts,
               SqPsn + Timeout + RetryCount + RnrRetry + MaxReads,
               CurrentState + AlternatePath + AccessFlags + PathMigState},
    Transition{QpType::XrcSend,
               QpState::Rts,
               QpState::Rts,
               {},
               CurrentState + AccessFlags + AlternatePath + PathMigState},
    Transition{QpType::XrcSend, QpState::Rts, QpState::Sqd, {}, Mask(EnableSqdNotify)},
    Transition{QpType::XrcSend,
               QpState::Sqd,
               QpState::Rts,
               {},
               CurrentState + AccessFlags + AlternatePath + PathMigState},
    Transition{QpType::XrcSend,
               QpState::Sqd,
               QpState::Sqd,
               {},
               AddressVector + Timeout + RetryCount + RnrRetry + MaxReads + PkeyIndex +
                   AccessFlags + AlternatePath + PathMigState},

    // The end that receives: without a sending half, which shows in RTR to RTS.
    Transition{
        QpType::XrcReceive, QpState::Reset, QpState::Init, PkeyIndex + Port + AccessFlags, {}},
    Transition{
        QpType::XrcReceive, QpState::Init, QpState::Init, {}, PkeyIndex + Port + AccessFlags},
    Transition{QpType::XrcReceive, QpState::Init, QpState::Rtr,
               AddressVector + PathMtu + DestQpn + RqPsn + MaxDestReads + MinRnrTimer,
               AlternatePath + PkeyIndex + AccessFlags},
    Transition{QpType::XrcReceive, QpState::Rtr, QpState::Rts, SqPsn + Timeout,
               CurrentState + AlternatePath + AccessFlags + MinRnrTimer + PathMigState +
                   RetryCount + RnrRetry + MaxReads},
    Transition{QpType::XrcReceive,
               QpState::Rts,
               QpState::Rts,
               {},
               CurrentState + AccessFlags + AlternatePath + PathMigState + MinRnrTimer},
    Transition{QpType::XrcReceive, QpState::Rts, QpState::Sqd, {}, Mask(EnableSqdNotify)},
    Transition{QpType::XrcReceive,
               QpState::Sqd,
               QpState::Rts,
               {},
               CurrentState + AccessFlags + AlternatePath + PathMigState + MinRnrTimer},
    Transition{QpType::XrcReceive,
               QpState::Sqd,
               QpState::Sqd,
               {},
               AddressVector + Timeout + MaxDestReads + PkeyIndex + AccessFlags + AlternatePath +
                   PathMigState + MinRnrTimer},
    Transition{QpType::Uc, QpState::Reset, QpState::Init, PkeyIndex + Port + AccessFlags, {}},
    Transition{QpType::Uc, QpState::Init, QpState::Init, {}, PkeyIndex + Port + AccessFlags},
    Transition{QpType::Uc, QpState::Init, QpState::Rtr, AddressVector + PathMtu + DestQpn + RqPsn,
               AlternatePath + PkeyIndex + AccessFlags},
    Transition{QpType::Uc, QpState::Rtr, QpState::Rts, Mask(SqPsn),
               CurrentState + AlternatePath + AccessFlags + PathMigState},
    Transition{QpType::Uc,
               QpState::Rts,
               QpState::Rts,
               {},
               CurrentState + AccessFlags + AlternatePath + PathMigState},
    Transition{QpType::Uc, QpState::Rts, QpState::Sqd, {}, Mask(EnableSqdNotify)},
    Transition{QpType::Uc,
               QpState::Sqd,
               QpState::Rts,
               {},
               CurrentState + AccessFlags + AlternatePath + PathMigState},
    Transition{QpType::Uc,
               QpState::Sqd,
               QpState::Sqd,
               {},
               AddressVector + PkeyIndex + AccessFlags + AlternatePath + PathMigState},
    Transition{QpType::Uc, QpState::Sqe, QpState::Rts, {}, CurrentState + AccessFlags},

    Transition{QpType::Ud, QpState::Reset, QpState::Init, PkeyIndex + Port + Qkey, {}},
    Transition{QpType::Ud, QpState::Init, QpState::Init, {}, PkeyIndex + Port + Qkey},
    Transition{QpType::Ud, QpState::Init, QpState::Rtr, {}, PkeyIndex + Qkey},
    Transition{QpType::Ud, QpState::Rtr, QpState::Rts, Mask(SqPsn), CurrentState + Qkey},
    Transition{QpType::Ud, QpState::Rts, QpState::Rts, {}, CurrentState + Qkey},
    Transition{QpType::Ud, QpState::Rts, QpState::Sqd, {}, Mask(EnableSqdNotify)},
    Transition{QpType::Ud, QpState::Sqd, QpState::Rts, {}, CurrentState + Qkey},
    Transition{QpType::Ud, QpState::Sqd, QpState::Sqd, {}, PkeyIndex + Qkey},
    Transition{QpType::Ud, QpState::Sqe, QpState::Rts, {}, CurrentState + Qkey},

    Transition{QpType::RawPacket, QpState::Reset, QpState::Init, Mask(Port), {}},
    Transition{QpType::RawPacket, QpState::Init, QpState::Init, {}, Mask(Port)},
    Transition{QpType::RawPacket, QpState::Init, QpState::Rtr, {}, {}},
    Transition{QpType::RawPacket, QpState::Rtr, QpState::Rts, {}, Mask(CurrentState)},
    Transition{QpType::RawPacket, QpState::Rts, QpState::Rts, {}, Mask(CurrentState)},
    Transition{QpType::RawPacket, QpState::Rts, QpState::Sqd, {}, Mask(EnableSqdNotify)},
    Transition{QpType::RawPacket, QpState::Sqd, QpState::Rts, {}, Mask(CurrentState)},
    Transition{QpType::RawPacket, QpState::Sqe, QpState::Rts, {}, Mask(CurrentState)},
};

}  // namespace

trace::Reason check_transition(QpType type, QpState from, QpState to, QpAttributeMask mask) {
  using trace::ReasonId;
  const Mask given = mask - Mask(State);
  if (to == QpState::Reset || to == QpState::Error) {
    if (!given.empty()) return {.id = ReasonId::AttributeNotAllowed, .object = given.bits};
    return {};
  }
  for (const Transition& row : kTransitions) {
    if (row.type != type || row.from != from || row.to != to) continue;
    const Mask missing = row.required - given;
    if (!missing.empty()) return {.id = ReasonId::AttributeMissing, .object = missing.bits};
    const Mask extra = given - (row.required | row.optional);
    if (!extra.empty()) return {.id = ReasonId::AttributeNotAllowed, .object = extra.bits};
    return {};
  }
  return {.id = ReasonId::BadTransition,
          .object = static_cast<std::uint32_t>(from) << 8 | static_cast<std::uint32_t>(to)};
}

const char* state_name(QpState state) {
  switch (state) {
    case QpState::Reset:
      return "RESET";
    case QpState::Init:
      return "INIT";
    case QpState::Rtr:
      return "RTR";
    case QpState::Rts:
      return "RTS";
    case QpState::Sqd:
      return "SQD";
    case QpState::Sqe:
      return "SQE";
    case QpState::Error:
      return "ERR";
  }
  return "?";
}

}  // namespace softhca::transport
