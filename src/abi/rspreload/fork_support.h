// Fork support: connections that a child of a fork can go on with.
//
// A connection of rsockets belongs to the process that made it. So, where a program wants to fork
// (RDMAV_FORK_SAFE), connections begin as TCP, and become rsockets when the first byte is to be
// moved, which for a server that forks is in the child: it listens with an rsocket at the same
// port, says so by four zero bytes, and the client connects to it. One server of a host does so at
// a time.
//
// See also  docs/rsockets.md
#pragma once
#include "abi/rspreload/places.h"

namespace softhca::abi {

// What is behind the descriptor, now that bytes are to be moved.
Place settled_place(int fd);

// The options that a socket takes along when it becomes another one: a socket's of TCP to an
// rsocket, or back.
void copy_options(int from, int to, bool to_rsocket);

}  // namespace softhca::abi
