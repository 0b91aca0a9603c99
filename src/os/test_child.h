// Runs a part of a test in a forked child, as another user or with other limits.
#pragma once
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

#include "base/assert.h"

namespace softhca::os {

inline constexpr int kChildSkips = 77;

// The child's exit status: what `body` returns, 0 for a success.
template <class Body>
int run_in_child(Body body) {
  const pid_t child = ::fork();
  ASSERT(child >= 0);
  if (child == 0) ::_exit(body());
  int status = 0;
  ASSERT(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The child loses all privileges and gets a memlock limit. False if this needs rights it lacks.
inline bool become_ordinary_user(std::uint64_t memlock_bytes) {
  constexpr uid_t kNobody = 65534;
  const rlimit limit{memlock_bytes, memlock_bytes};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  if (::getuid() == 0 && ::setuid(kNobody) != 0) return false;
  return ::prctl(PR_SET_DUMPABLE, 1) == 0;
}

}  // namespace softhca::os
