// Channel: a completion channel, as a program holds it.
//
// Threads  any
#pragma once
#include <atomic>
#include <memory>

#include "abi/ibverbs/context.h"

namespace softhca::abi {

class Channel final : public ibv_comp_channel, public Owned {
 public:
  Channel(Context& owner, std::unique_ptr<EventQueue> events);
  static Channel& of(ibv_comp_channel* verbs) { return static_cast<Channel&>(*verbs); }

  void abandon(driver::Engine&, Time) override {}

  Context& owner() { return Context::of(context); }
  EventQueue& events() { return *events_; }

  // Completion queues that use it; the channel cannot go before them. The program sees the number.
  void attach() { std::atomic_ref<int>(refcnt).fetch_add(1); }
  void detach() { std::atomic_ref<int>(refcnt).fetch_sub(1); }
  bool in_use() { return std::atomic_ref<int>(refcnt).load() != 0; }

 private:
  std::unique_ptr<EventQueue> events_;
};

}  // namespace softhca::abi
