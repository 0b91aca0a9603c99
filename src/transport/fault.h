// Fault: one row per way in which a responder refuses a request.
//
// Spec  IBTA vol. 1, 9.7.5.2.8 (NAK codes), 9.9 (error detection and handling)
#pragma once
#include <array>
#include <cstdint>

#include "trace/qp_counters.h"
#include "trace/reason.h"
#include "transport/attributes.h"
#include "wire/packet.h"

namespace softhca::transport {

enum class Fault : std::uint8_t {
  SequenceError,
  InvalidRequest,
  RemoteAccess,
  RemoteOperational,
  ReceiverNotReady,
  ReceiveTooSmall,
};

// What the responder's own side hears.
enum class ResponderEvent : std::uint8_t { None, RequestError, AccessError, Fatal };

struct FaultInfo {
  Fault fault;
  wire::AethKind aeth;
  wire::NakCode code;     // NAKs only
  bool enters_error;      // the responder's queue pair
  Status receive_status;  // of the receive that was consumed, if one was
  ResponderEvent event;   // if none was
};

inline constexpr std::array kFaults = {
    FaultInfo{Fault::SequenceError, wire::AethKind::Nak, wire::NakCode::SequenceError, false,
              Status::Success, ResponderEvent::None},
    FaultInfo{Fault::InvalidRequest, wire::AethKind::Nak, wire::NakCode::InvalidRequest, true,
              Status::LocalQpOperation, ResponderEvent::RequestError},
    FaultInfo{Fault::RemoteAccess, wire::AethKind::Nak, wire::NakCode::RemoteAccess, true,
              Status::LocalAccess, ResponderEvent::AccessError},
    FaultInfo{Fault::RemoteOperational, wire::AethKind::Nak, wire::NakCode::RemoteOperational, true,
              Status::LocalProtection, ResponderEvent::Fatal},
    FaultInfo{Fault::ReceiverNotReady, wire::AethKind::RnrNak, wire::NakCode::SequenceError, false,
              Status::Success, ResponderEvent::None},
    FaultInfo{Fault::ReceiveTooSmall, wire::AethKind::Nak, wire::NakCode::InvalidRequest, true,
              Status::LocalLength, ResponderEvent::None},
};

constexpr const FaultInfo& row_of(Fault fault) { return kFaults[static_cast<std::size_t>(fault)]; }

// The key entry itself was refused (deregistered meanwhile), or the bus failed.
constexpr Fault memory_fault(const trace::Reason& reason) {
  return trace::is_key_refusal(reason.id) ? Fault::RemoteAccess : Fault::RemoteOperational;
}

// Which counters an AETH counts in.
struct AethCounters {
  trace::QpCounter sent;
  trace::QpCounter received;
};
constexpr AethCounters counters_of(wire::AethKind kind, std::uint8_t value) {
  using enum trace::QpCounter;
  if (kind == wire::AethKind::Ack) return {AcksSent, AcksReceived};
  if (kind == wire::AethKind::RnrNak) return {RnrNaksSent, RnrNaksReceived};
  switch (static_cast<wire::NakCode>(value)) {
    case wire::NakCode::SequenceError:
      return {SequenceNaksSent, SequenceNaksReceived};
    case wire::NakCode::RemoteAccess:
      return {RemoteAccessNaksSent, RemoteAccessNaksReceived};
    case wire::NakCode::RemoteOperational:
      return {RemoteOperationalNaksSent, RemoteOperationalNaksReceived};
    default:
      return {InvalidRequestNaksSent, InvalidRequestNaksReceived};
  }
}

}  // namespace softhca::transport
