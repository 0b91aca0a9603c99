#include "abi/rsocket/sleepers.h"

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "os/event_counter.h"
#include "os/self.h"

namespace softhca::abi {
namespace {

struct Gate {
  static Gate* open() {
    auto bell = os::EventCounter::open();
    if (!bell) throw std::bad_alloc();  // descriptors are used up
    return new Gate{.bell = std::move(*bell)};
  }

  os::EventCounter bell;
  std::uint64_t lineage = os::lineage();
  std::mutex mutex{};
  std::condition_variable settled{};
  std::atomic<int> asleep{0};  // changed under the mutex
  bool rings = false;
};

constinit std::atomic<Gate*> g_gate{nullptr};

// This process's: those who slept when it was forked are not in it.
Gate& gate() {
  Gate* const known = g_gate.load(std::memory_order_acquire);
  if (known != nullptr && known->lineage == os::lineage()) return *known;
  Gate* const made = Gate::open();
  Gate* expected = known;
  if (g_gate.compare_exchange_strong(expected, made, std::memory_order_acq_rel)) return *made;
  delete made;
  return *expected;
}

}  // namespace

Nap::Nap() {
  Gate& at = gate();
  std::unique_lock lock(at.mutex);
  at.settled.wait(lock, [&] { return !at.rings; });
  at.asleep.fetch_add(1);
}

Nap::~Nap() {
  Gate& at = gate();
  const std::lock_guard lock(at.mutex);
  if (at.asleep.fetch_sub(1) > 1 || !at.rings) return;
  at.bell.take_if_any();
  at.rings = false;
  at.settled.notify_all();
}

int Nap::fd() const { return gate().bell.fd(); }

void wake_sleepers() {
  Gate* const at = g_gate.load(std::memory_order_acquire);
  if (at == nullptr || at->asleep.load() == 0 || at->lineage != os::lineage()) return;
  const std::lock_guard lock(at->mutex);
  if (at->asleep.load() == 0 || at->rings) return;
  at->rings = true;
  at->bell.give();
}

}  // namespace softhca::abi
