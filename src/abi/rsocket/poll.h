// rpoll and rselect: waiting for sockets of rsockets and for any other descriptors together.
#pragma once
#include <rdma/rsocket.h>

#include <span>

#include "abi/errno_of.h"

namespace softhca::abi {

// As poll(2). `timeout_ms` below 0: for ever.
Outcome<int> poll_sockets(std::span<pollfd> wanted, int timeout_ms);

// As select(2).
Outcome<int> select_sockets(int count, fd_set* readable, fd_set* writable, fd_set* exceptional,
                            const timeval* timeout);

}  // namespace softhca::abi
