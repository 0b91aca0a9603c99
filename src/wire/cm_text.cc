#include "wire/cm_text.h"

#include <fmt/format.h>

#include <array>

namespace softhca::wire {
namespace {

// In the order of CmMessage.
constexpr std::array<std::string_view, std::variant_size_v<CmMessage>> kCmNames = {
    "ConnectRequest",    "MsgRcptAck",      "ConnectReject",   "ConnectReply",       "ReadyToUse",
    "DisconnectRequest", "DisconnectReply", "ServiceIDResReq", "ServiceIDResReqResp"};

std::string_view subject_name(CmSubject subject) {
  switch (subject) {
    case CmSubject::Req:
      return "REQ";
    case CmSubject::Rep:
      return "REP";
    case CmSubject::Other:
      break;
  }
  return "other";
}

std::string_view rej_reason_name(RejReason reason) {
  switch (reason) {
    case RejReason::NoQp:
      return "no queue pair available";
    case RejReason::NoResources:
      return "no resources available";
    case RejReason::Timeout:
      return "timeout";
    case RejReason::UnsupportedRequest:
      return "unsupported request";
    case RejReason::InvalidCommId:
      return "invalid communication id";
    case RejReason::InvalidCommInstance:
      return "invalid communication instance";
    case RejReason::InvalidServiceId:
      return "invalid service id";
    case RejReason::InvalidTransport:
      return "invalid transport service type";
    case RejReason::StaleConnection:
      return "stale connection";
    case RejReason::InvalidGid:
      return "port GID rejected";
    case RejReason::InvalidMtu:
      return "invalid path MTU";
    case RejReason::InsufficientResources:
      return "insufficient responder resources";
    case RejReason::Consumer:
      return "by the program";
    case RejReason::RnrRetryCount:
      return "RNR retry count rejected";
    case RejReason::DuplicateCommId:
      return "duplicate local communication id";
  }
  return "another reason";
}

std::string_view sidr_status_name(SidrStatus status) {
  switch (status) {
    case SidrStatus::Valid:
      return "valid";
    case SidrStatus::Unsupported:
      return "service not supported";
    case SidrStatus::Rejected:
      return "by the program";
    case SidrStatus::NoQp:
      return "no queue pair available";
    case SidrStatus::Redirect:
      return "redirected";
    case SidrStatus::UnsupportedVersion:
      return "version not supported";
  }
  return "another status";
}

std::string ids_text(const auto& m) {
  return fmt::format("local {:#x} remote {:#x}", m.local_id.value, m.remote_id.value);
}

std::string text_of(const CmReq& m) {
  return fmt::format("local {:#x} service {:#x} qp {:#08x} psn {:#08x} from {} to {} mtu {}",
                     m.local_id.value, m.service.value, m.qpn.value, m.psn.value,
                     gid_text(m.primary.local_gid), gid_text(m.primary.remote_gid), m.path_mtu);
}
std::string text_of(const CmMra& m) {
  return fmt::format("{} of {} timeout {}", ids_text(m), subject_name(m.subject),
                     m.service_timeout);
}
std::string text_of(const CmRej& m) {
  return fmt::format("{} of {} reason {} ({})", ids_text(m), subject_name(m.subject),
                     static_cast<unsigned>(m.reason), rej_reason_name(m.reason));
}
std::string text_of(const CmRep& m) {
  return fmt::format("{} qp {:#08x} psn {:#08x}", ids_text(m), m.qpn.value, m.psn.value);
}
std::string text_of(const CmRtu& m) { return ids_text(m); }
std::string text_of(const CmDreq& m) {
  return fmt::format("{} qp {:#08x}", ids_text(m), m.remote_qpn.value);
}
std::string text_of(const CmDrep& m) { return ids_text(m); }
std::string text_of(const CmSidrReq& m) {
  return fmt::format("request {:#x} service {:#x}", m.request_id.value, m.service.value);
}
std::string text_of(const CmSidrRep& m) {
  return fmt::format("request {:#x} service {:#x} status {} ({}) qp {:#08x} qkey {:#x}",
                     m.request_id.value, m.service.value, static_cast<unsigned>(m.status),
                     sidr_status_name(m.status), m.qpn.value, m.qkey);
}

}  // namespace

std::string_view cm_message_name(const CmMessage& message) { return kCmNames[message.index()]; }

std::string cm_text(const CmMad& mad) {
  return fmt::format("CM {} tid {:#x} {}", cm_message_name(mad.message), mad.transaction,
                     std::visit([](const auto& message) { return text_of(message); }, mad.message));
}

}  // namespace softhca::wire
