// Lookup: what rdma_getaddrinfo answers, by the resolver of the C library.
//
// As rdma-core does on a port of Ethernet: one answer, the first; the source is the caller's or
// none, since rdma_resolve_addr chooses it by the route; no canonical names; AF_IB is no hint. The
// parts are allocated one by one, since programs may put others in their place.
#pragma once
#include <rdma/rdma_cma.h>

#include <memory>

#include "abi/errno_of.h"

namespace softhca::abi {

// Frees a whole list.
struct FreeAddrinfo {
  void operator()(rdma_addrinfo* first) const;
};

// 0 and `*found`, which is to be freed, or the number (EAI_...) with which the C library refuses.
// FAILS WITH EINVAL: nothing is asked for
Outcome<int> look_up(const char* node, const char* service, const rdma_addrinfo* hints,
                     rdma_addrinfo** found);

}  // namespace softhca::abi
