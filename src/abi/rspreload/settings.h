// Settings: which sockets become rsockets, and how large these are.
//
// /etc/rdma/rsocket/preload_config has a line for each kind that does: program, domain, type and
// protocol, each may be "*". Without the file, or without a line, all do. RS_SQ_SIZE, RS_RQ_SIZE
// and RS_INLINE set the queues; RDMAV_FORK_SAFE lets programs fork (fork_support.h).
#pragma once

namespace softhca::abi {

bool is_wanted(int domain, int type, int protocol);
bool supports_fork();
void apply_sizes(int rsocket);

}  // namespace softhca::abi
