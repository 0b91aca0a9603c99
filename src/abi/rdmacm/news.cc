#include "abi/rdmacm/news.h"

#include <cerrno>

#include "abi/errno_of.h"

namespace softhca::abi {
namespace {

rdma_conn_param parameters_of(const cm::Terms& terms) {
  rdma_conn_param to{};
  to.responder_resources = terms.responder_resources;
  to.initiator_depth = terms.initiator_depth;
  to.flow_control = terms.flow_control ? 1 : 0;
  to.retry_count = terms.retry_count;
  to.rnr_retry_count = terms.rnr_retry_count;
  to.srq = terms.remote_srq ? 1 : 0;
  to.qp_num = terms.remote_qpn.value;
  return to;
}

int status_of(const trace::Reason& reason) { return reason ? -errno_of(reason.id).code : 0; }

}  // namespace

std::optional<News> news_of(const cm::Event& event, bool is_datagram) {
  using enum cm::EventKind;
  News news;
  switch (event.kind) {
    case ConnectRequest:
    case ResolveRequest:
      news.type = RDMA_CM_EVENT_CONNECT_REQUEST;
      break;
    case Reply:
      news.type = RDMA_CM_EVENT_CONNECT_RESPONSE;
      break;
    case Resolved:
      news.datagram_qpn = event.terms.remote_qpn.value;
      news.datagram_qkey = event.terms.remote_qkey;
      [[fallthrough]];
    case Established:
      news.type = RDMA_CM_EVENT_ESTABLISHED;
      break;
    case Rejected:
      news.type = is_datagram ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED;
      news.status = event.status;
      break;
    case Unreachable:
      news.type = RDMA_CM_EVENT_UNREACHABLE;
      news.status = -ETIMEDOUT;
      break;
    case Disconnected:
      news.type = RDMA_CM_EVENT_DISCONNECTED;
      news.status =
          event.reason.id == trace::ReasonId::DisconnectUnanswered ? status_of(event.reason) : 0;
      break;
    case TimewaitExit:
      news.type = RDMA_CM_EVENT_TIMEWAIT_EXIT;
      break;
    case DeviceRemoved:
      news.type = RDMA_CM_EVENT_DEVICE_REMOVAL;
      break;
    case BacklogFull:
      return std::nullopt;
  }
  const bool has_parameters = event.kind == ConnectRequest || event.kind == Reply;
  if (has_parameters) news.connection = parameters_of(event.terms);
  // Linux keeps the bytes of RTU, DREQ and DREP to itself.
  if (has_parameters || event.kind == ResolveRequest || event.kind == Resolved ||
      news.type == RDMA_CM_EVENT_REJECTED)
    news.private_bytes = event.private_bytes;
  return news;
}

}  // namespace softhca::abi
