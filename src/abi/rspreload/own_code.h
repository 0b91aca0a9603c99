// Own code: whether it is our own libraries that ask libc for a socket.
#pragma once
#include <cstdint>

namespace softhca::abi {

// The device's sockets are made by libibverbs.so.1 and librdmacm.so.1, also in threads of theirs,
// and must stay what they are. `caller`: where the call returns to.
bool is_own_code(std::uintptr_t caller);

}  // namespace softhca::abi
