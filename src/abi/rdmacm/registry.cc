#include "abi/rdmacm/registry.h"

#include <atomic>
#include <memory>

#include "abi/rdmacm/tell.h"

namespace softhca::abi {
namespace {

// Never destroyed: threads of the program may still be inside when the process ends.
constinit std::atomic<Registry*> g_registry{nullptr};

}  // namespace

Registry& Registry::only() {
  Registry* known = g_registry.load();
  if (known != nullptr && !known->is_left_behind()) return *known;
  auto fresh = std::make_unique<Registry>();
  fresh->has_parent = known != nullptr;
  if (g_registry.compare_exchange_strong(known, fresh.get())) return *fresh.release();
  return *known;
}

void Registry::note(const void* known) {
  const std::scoped_lock held(known_lock_);
  known_.insert(known);
}

void Registry::forget(const void* known) {
  const std::scoped_lock held(known_lock_);
  known_.erase(known);
}

bool Registry::has(const void* known) {
  const std::scoped_lock held(known_lock_);
  return known_.contains(known);
}

Errno Registry::left_behind() const {
  return refuse("rdma_cm", {.id = trace::ReasonId::LeftBehind});
}

}  // namespace softhca::abi
