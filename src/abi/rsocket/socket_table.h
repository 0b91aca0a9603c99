// SocketTable: the rsockets of this process, by descriptor.
//
// Threads  any
#pragma once
#include "abi/rsocket/socket.h"

namespace softhca::abi {

// REQUIRES: the descriptor is open and belongs to the socket
void keep_socket(std::shared_ptr<Socket> socket);

// Null if the descriptor is of something else.
std::shared_ptr<Socket> known_socket(int fd);

// FAILS WITH EBADF; EPERM where it is the parent's
Outcome<std::shared_ptr<Socket>> socket_of(int fd);

// The caller holds it from now on. FAILS WITH EBADF
Outcome<std::shared_ptr<Socket>> forget_socket(int fd);

}  // namespace softhca::abi
