#include "cm/rejection.h"

namespace softhca::cm {
namespace {

using enum trace::ReasonId;
using wire::RejReason;
using wire::SidrStatus;

trace::ReasonId id_of(RejReason reason) {
  switch (reason) {
    case RejReason::Consumer:
      return RejectedByProgram;
    case RejReason::InvalidServiceId:
      return NoListener;
    case RejReason::NoQp:
    case RejReason::NoResources:
    case RejReason::InsufficientResources:
      return PeerExhausted;
    case RejReason::StaleConnection:
      return ConnectionStale;
    case RejReason::Timeout:
      return PeerGaveUp;
    case RejReason::InvalidCommId:
    case RejReason::InvalidCommInstance:
    case RejReason::DuplicateCommId:
      return ConnectionUnknown;
    case RejReason::UnsupportedRequest:
    case RejReason::InvalidTransport:
    case RejReason::InvalidGid:
    case RejReason::InvalidMtu:
    case RejReason::RnrRetryCount:
      break;
  }
  return RejectedByPeer;
}

trace::ReasonId id_of(SidrStatus status) {
  switch (status) {
    case SidrStatus::Unsupported:
      return NoListener;
    case SidrStatus::NoQp:
      return PeerExhausted;
    case SidrStatus::Rejected:
      return RejectedByProgram;
    case SidrStatus::Valid:
    case SidrStatus::Redirect:
    case SidrStatus::UnsupportedVersion:
      break;
  }
  return RejectedByPeer;
}

}  // namespace

trace::Reason reason_of(RejReason reason) {
  return {.id = id_of(reason), .object = static_cast<std::uint32_t>(reason)};
}

trace::Reason reason_of(SidrStatus status) {
  return {.id = id_of(status), .object = static_cast<std::uint32_t>(status)};
}

}  // namespace softhca::cm
