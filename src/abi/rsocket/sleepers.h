// Sleepers: threads that sleep on descriptors of sockets, and what wakes them.
//
// Whoever looks after a socket may take what another thread is asleep for: the descriptor that this
// one sleeps on then says nothing. So a thread announces that it will sleep, looks once more, and
// sleeps on a descriptor besides that whoever took something makes readable. It stays so until all
// who slept have left; meanwhile nobody begins to sleep.
//
// Threads  any. REQUIRES: no lock of a socket is held when a Nap begins
#pragma once

namespace softhca::abi {

class Nap {
 public:
  Nap();
  ~Nap();
  Nap(const Nap&) = delete;
  Nap& operator=(const Nap&) = delete;

  int fd() const;
};

// Something has come to a socket. Cheap if nobody sleeps.
void wake_sleepers();

}  // namespace softhca::abi
