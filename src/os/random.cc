#include "os/random.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

namespace softhca::os {

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  // GRND_NONBLOCK: a program must not hang in early boot; nothing that needs secrecy hangs on it.
  if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == sizeof seed) return seed;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_nsec) << 32 ^ static_cast<std::uint64_t>(now.tv_sec) ^
         static_cast<std::uint64_t>(getpid()) << 16;
}

}  // namespace softhca::os
