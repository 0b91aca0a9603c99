// Thread: one that belongs to us inside somebody else's program.
//
// All signals are blocked in it, so that the program's handlers never run there; it has a name
// that shows in ps and in debuggers, and a stack of modest size. It runs soon after it is woken,
// also beside spinning ones.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "os/system_error.h"

namespace softhca::os {

class Thread {
 public:
  Thread() noexcept;  // none
  Thread(Thread&& other) noexcept;
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();  // joins

  // REQUIRES: `body` does not throw. The kernel keeps 15 characters of the name.
  static Result<Thread, SystemError> start(const std::string& name, std::function<void()> body);

  void join();
  // The thread goes on and ends by itself; nobody waits for it.
  // REQUIRES: what its body uses lives as long as the process
  void let_go();
  // Forgets the thread: in the child of a fork it does not exist.
  void abandon();

  bool is_running() const { return native_ != nullptr; }
  bool is_current() const;

 private:
  struct Native;
  explicit Thread(std::unique_ptr<Native> native);
  std::unique_ptr<Native> native_;
};

// How many threads of this process are ours; less while one of them begins or ends.
std::uint64_t own_threads();

// Gives the processor up for a while, as a waiter on another process does.
void pause_for(Duration duration);

}  // namespace softhca::os
