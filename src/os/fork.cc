#include "os/fork.h"

#include <pthread.h>

namespace softhca::os {

namespace {
std::uint64_t this_thread() { return static_cast<std::uint64_t>(::pthread_self()); }
}  // namespace

bool on_fork(const ForkHooks& hooks) {
  return ::pthread_atfork(hooks.before, hooks.in_parent, hooks.in_child) == 0;
}

void ForkMutex::lock() {
  mutex_.lock();
  owner_.store(this_thread(), std::memory_order_relaxed);
}

bool ForkMutex::try_lock() {
  if (!mutex_.try_lock()) return false;
  owner_.store(this_thread(), std::memory_order_relaxed);
  return true;
}

void ForkMutex::unlock() {
  owner_.store(0, std::memory_order_relaxed);
  mutex_.unlock();
}

// Whoever reads his own name there wrote it himself.
void ForkMutex::lock_for_fork() {
  const bool inside = owner_.load(std::memory_order_relaxed) == this_thread();
  if (!inside) lock();
  inside_ = inside;
}

void ForkMutex::unlock_after_fork() {
  if (!inside_) unlock();
}

}  // namespace softhca::os
