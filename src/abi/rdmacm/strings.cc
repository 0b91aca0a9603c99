// Names of events.
#include "abi/entry.h"
#include "abi/rdmacm/id.h"

namespace softhca::abi {

VERB("RDMACM_1.0", const char*, rdma_event_str, (rdma_cm_event_type event)) {
  switch (event) {
#define NAME(event) \
  case event:       \
    return #event
    NAME(RDMA_CM_EVENT_ADDR_RESOLVED);
    NAME(RDMA_CM_EVENT_ADDR_ERROR);
    NAME(RDMA_CM_EVENT_ROUTE_RESOLVED);
    NAME(RDMA_CM_EVENT_ROUTE_ERROR);
    NAME(RDMA_CM_EVENT_CONNECT_REQUEST);
    NAME(RDMA_CM_EVENT_CONNECT_RESPONSE);
    NAME(RDMA_CM_EVENT_CONNECT_ERROR);
    NAME(RDMA_CM_EVENT_UNREACHABLE);
    NAME(RDMA_CM_EVENT_REJECTED);
    NAME(RDMA_CM_EVENT_ESTABLISHED);
    NAME(RDMA_CM_EVENT_DISCONNECTED);
    NAME(RDMA_CM_EVENT_DEVICE_REMOVAL);
    NAME(RDMA_CM_EVENT_MULTICAST_JOIN);
    NAME(RDMA_CM_EVENT_MULTICAST_ERROR);
    NAME(RDMA_CM_EVENT_ADDR_CHANGE);
    NAME(RDMA_CM_EVENT_TIMEWAIT_EXIT);
#undef NAME
  }
  return "UNKNOWN EVENT";
}

}  // namespace softhca::abi
