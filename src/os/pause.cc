#include "os/pause.h"

#include <time.h>

namespace softhca::os {

void pause_for(Duration duration) {
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  timespec rest{};
  rest.tv_sec = duration.nanoseconds() / kNsPerSecond;
  rest.tv_nsec = duration.nanoseconds() % kNsPerSecond;
  nanosleep(&rest, nullptr);
}

}  // namespace softhca::os
