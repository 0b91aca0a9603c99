// Fork: what has to be locked while this process forks, and set right afterwards.
//
// A child has a copy of everything but the threads: a lock that another thread held stays locked
// in it for ever, and what that thread was changing stays half changed. So whoever forks first
// takes every lock that the child will need.
//
// See also  os/self.h (lineage), ARCHITECTURE.md, "Fork, exec, threads, exit"
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

namespace softhca::os {

struct ForkHooks {
  void (*before)() = nullptr;     // in the thread that forks
  void (*in_parent)() = nullptr;  // in that thread, afterwards
  void (*in_child)() = nullptr;   // in the only thread of the child
};

// For the rest of this process's life. False if there is no memory for it. What was registered last
// is called first before a fork, and last afterwards.
bool on_fork(const ForkHooks& hooks);

// A mutex that can be held over a fork. A thread may fork while it is inside (in a handler of a
// signal that came in the middle of a call); it is then not taken twice.
class ForkMutex {
 public:
  void lock();
  bool try_lock();
  void unlock();

  // From ForkHooks: before; in the parent and in the child.
  void lock_for_fork();
  void unlock_after_fork();

 private:
  std::mutex mutex_;
  std::atomic<std::uint64_t> owner_{0};  // a thread, as the C library names it; 0: none
  bool inside_ = false;  // the thread that forks had it already; belongs to the owner
};

}  // namespace softhca::os
