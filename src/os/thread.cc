#include "os/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <future>

#include "base/assert.h"
#include "base/sanitized.h"

namespace softhca::os {

struct Thread::Native {
  pthread_t id{};
};

namespace {

struct Start {
  std::string name;
  std::function<void()> body;
  std::promise<void> runs;
};

void set_name(pthread_t id, const std::string& name) {
  pthread_setname_np(id, name.substr(0, 15).c_str());
}

// An ordinary thread that asks for short slices is put on a CPU when it wakes, also where another
// one spins, instead of after the other's slice (EEVDF, since Linux 6.12). Older kernels refuse or
// take no notice. (The structure and the call are not in this C library: sched_setattr(2).)
void prefer_short_slices() {
  struct {
    std::uint32_t size;
    std::uint32_t policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime_ns, deadline_ns, period_ns;
  } attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  attributes.runtime_ns = 100'000;  // the shortest that the kernel grants
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

// Enough for everything that runs there several times over; the default is 8 MiB of the program's
// address space, or whatever its limits say. The kernel takes pages of it as they are used.
constexpr std::size_t kStackBytes = std::size_t{512} << 10;

int create(pthread_t& id, void* (*body)(void*), void* argument) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  int error = pthread_create(&id, &attributes, body, argument);
  pthread_attr_destroy(&attributes);
  // The thread-local variables of the program lie there too, and there may be many.
  if (error == EINVAL) error = pthread_create(&id, nullptr, body, argument);
  return error;
}

// Those that are there for certain: counted when one has been made, and no more before it ends.
std::atomic<std::int64_t> g_own_threads{0};

void* run(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  set_name(pthread_self(), start->name);
  prefer_short_slices();
  start->runs.set_value();
  start->body();
  --g_own_threads;
  return nullptr;
}

}  // namespace

Thread::Thread(std::unique_ptr<Native> native) : native_(std::move(native)) {}
Thread::Thread() noexcept = default;
Thread::Thread(Thread&& other) noexcept : native_(std::move(other.native_)) {}
Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    join();
    native_ = std::move(other.native_);
  }
  return *this;
}
Thread::~Thread() { join(); }

Result<Thread, SystemError> Thread::start(const std::string& name, std::function<void()> body) {
  auto start = std::make_unique<Start>(Start{name, std::move(body), {}});
  const std::future<void> runs = start->runs.get_future();
  auto native = std::make_unique<Native>();

  // A thread inherits the mask, so it is full from its first instruction on.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = create(native->id, run, start.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return SystemError{error, "pthread_create"};
  ++g_own_threads;
  set_name(native->id, name);  // it may not run yet; whoever looks for it finds it
  static_cast<void>(start.release());
  // A sanitizer allocates before the thread is ours. Who forks meanwhile would leave its allocator
  // locked in the child, since that of GCC 12 has no rule for forks.
  if (kSanitized) runs.wait();
  return Thread(std::move(native));
}

void Thread::join() {
  if (native_ == nullptr) return;
  ASSERT(!is_current());
  pthread_join(native_->id, nullptr);
  native_.reset();
}

void Thread::let_go() {
  if (native_ == nullptr) return;
  pthread_detach(native_->id);
  native_.reset();
}

void Thread::abandon() {
  native_.reset();
  g_own_threads = 0;
}

std::uint64_t own_threads() {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(g_own_threads, 0));
}

bool Thread::is_current() const {
  return native_ != nullptr && pthread_equal(native_->id, pthread_self()) != 0;
}

void pause_for(Duration duration) {
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  timespec rest{};
  rest.tv_sec = duration.nanoseconds() / kNsPerSecond;
  rest.tv_nsec = duration.nanoseconds() % kNsPerSecond;
  nanosleep(&rest, nullptr);
}

}  // namespace softhca::os
