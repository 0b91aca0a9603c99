// Addresses of names.
#include "abi/entry.h"
#include "abi/rdmacm/lookup.h"

namespace softhca::abi {

BLOCKING_VERB("RDMACM_1.0", int, rdma_getaddrinfo,
              (const char* node, const char* service, const rdma_addrinfo* hints,
               rdma_addrinfo** found)) {
  return answer_minus_one([&] { return look_up(node, service, hints, found); });
}

VERB("RDMACM_1.0", void, rdma_freeaddrinfo, (rdma_addrinfo * first)) { FreeAddrinfo()(first); }

}  // namespace softhca::abi
