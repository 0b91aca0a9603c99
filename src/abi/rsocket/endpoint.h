// Addresses as the kernel has them, and as datagrams and devices do.
#pragma once
#include <infiniband/verbs.h>
#include <rdma/rsocket.h>

#include "rsocket/datagram.h"

namespace softhca::abi {

rsocket::Endpoint endpoint_of(const sockaddr_storage& address);
sockaddr_storage address_of(const rsocket::Endpoint& endpoint);
// The GID of RoCEv2 that has the address.
ibv_gid gid_of(const rsocket::Endpoint& endpoint);

}  // namespace softhca::abi
