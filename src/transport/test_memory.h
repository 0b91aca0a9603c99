// FakeMemory: a MemoryPort that says yes and remembers, for the tests of the two machines.
#pragma once
#include <vector>

#include "transport/memory_port.h"

namespace softhca::transport {

struct FakeMemory final : MemoryPort {
  trace::Reason check_remote(RemoteRight, wire::Key, std::uint64_t, std::uint64_t) override {
    ++checked;
    return refusal;
  }
  trace::Reason check_shared_queue(std::uint32_t srqn) override {
    if (srqn == shared_queue) return {};
    return {.id = trace::ReasonId::XrcQueueUnknown, .object = srqn};
  }
  trace::Reason place(const PayloadRef& to) override {
    placed.push_back(to);
    return place_refusal;
  }
  Result<std::uint64_t, trace::Reason> execute_atomic(const AtomicOperation& atomic) override {
    ++atomics;
    if (place_refusal) return place_refusal;
    const std::uint64_t original = word;
    if (!atomic.is_swap)
      word += atomic.swap_or_add;
    else if (word == atomic.compare)
      word = atomic.swap_or_add;
    return original;
  }
  trace::Reason invalidate(wire::Key key) override {
    invalidated.push_back(key);
    return invalidate_refusal;
  }
  trace::Reason execute_local(std::uint32_t work) override {
    locals.push_back(work);
    return local_refusal;
  }
  std::optional<ReceiveSlot> take_receive() override {
    if (receives == 0) return std::nullopt;
    --receives;
    return ReceiveSlot{.work = next_receive++, .capacity_bytes = receive_bytes, .broken = {}};
  }

  trace::Reason refusal;
  trace::Reason place_refusal;
  std::uint32_t shared_queue = 0;
  trace::Reason invalidate_refusal;
  trace::Reason local_refusal;
  std::vector<wire::Key> invalidated;
  std::vector<std::uint32_t> locals;  // executed
  int receives = 0;
  std::uint32_t next_receive = 0;
  std::uint64_t receive_bytes = 1 << 20;
  int checked = 0;
  int atomics = 0;         // executed
  std::uint64_t word = 0;  // what they work on, whatever the address
  std::vector<PayloadRef> placed;
};

}  // namespace softhca::transport
