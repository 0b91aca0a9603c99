// Places: what is behind the descriptors that a program holds for sockets.
//
// The program's descriptor is one of /dev/null, which keeps the number: what is behind it may
// change from an rsocket to a socket of the kernel. Several descriptors may have the same behind
// them.
//
// Threads  any
#pragma once
#include <cstdint>

namespace softhca::abi {

enum class Behind : std::uint8_t {
  Itself,  // no place: whatever the descriptor is
  Rsocket,
  Kernel,     // a socket of TCP, since there was no rsocket to be had
  ForkFresh,  // the same, which may become an rsocket: see fork_support.h
  ForkListening,
  ForkActive,
  ForkPassive,
};

struct Place {
  Behind behind{};
  int fd{};  // behind it

  bool is_rsocket() const { return behind == Behind::Rsocket; }
};

Place place_of(int fd);

// A descriptor that holds a place, with what is behind it; -1 and errno.
int new_place(Place place, bool closes_on_exec);
void set_place(int fd, Place place);
// The descriptor has become another one of what is behind `of`.
void share_place(int of, int fd);
// The descriptor holds it no more. True if it was the last that did.
bool leave_place(int fd, Place place);

}  // namespace softhca::abi
