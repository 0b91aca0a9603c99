#include "driver/completion_queue.h"

#include <atomic>

#include "nic/ring_format.h"

namespace softhca::driver {

using nic::Cqe;

namespace {

// The lap is written last, with release; whoever sees it sees the rest.
std::uint64_t load_lap(Bytes slot) {
  auto* lap = reinterpret_cast<std::uint64_t*>(slot.data() + offsetof(Cqe, lap));
  return std::atomic_ref<std::uint64_t>(*lap).load(std::memory_order_acquire);
}

// All but the lap, which has been looked at.
Cqe load_cqe(Bytes slot) {
  Cqe cqe;
  std::memcpy(writable_bytes_of(cqe).data(), slot.data(), offsetof(Cqe, lap));
  return cqe;
}

Completion completion_of(const Cqe& cqe) {
  const auto status = static_cast<transport::Status>(cqe.status);
  Completion out{.wr_id = cqe.cookie,
                 .status = status,
                 .opcode = {},
                 .with_immediate = false,
                 .reason = static_cast<trace::ReasonId>(cqe.reason),
                 .qpn = {cqe.qpn},
                 .byte_count = 0,
                 .immediate = 0};
  if (status != transport::Status::Success) return out;  // C30: nothing else means anything
  out.opcode = static_cast<CompletionOpcode>(cqe.kind);
  out.with_immediate = (cqe.flags & static_cast<std::uint8_t>(nic::CqeFlag::Immediate)) != 0;
  out.byte_count = cqe.byte_count;
  out.immediate = cqe.immediate;
  out.with_network_header =
      (cqe.flags & static_cast<std::uint8_t>(nic::CqeFlag::NetworkHeader)) != 0;
  out.source_qpn = {cqe.source_qpn};
  out.with_invalidation = (cqe.flags & static_cast<std::uint8_t>(nic::CqeFlag::Invalidated)) != 0;
  return out;
}

constexpr std::uint32_t kForgotten = 0xffff'ffff;  // no QPN

}  // namespace

bool CompletionQueue::is_empty() const {
  const std::uint64_t at = next_.load(std::memory_order_relaxed);
  const Bytes slot = ring_.bytes().subspan(at % capacity_ * sizeof(Cqe), sizeof(Cqe));
  return load_lap(slot) != 1 + at / capacity_;
}

std::size_t CompletionQueue::poll(std::span<Completion> out) {
  if (is_empty()) return 0;
  const std::lock_guard lock(consumer_);
  std::uint64_t at = next_.load(std::memory_order_relaxed);
  std::size_t count = 0;
  while (count < out.size()) {
    const Bytes slot = ring_.bytes().subspan(at % capacity_ * sizeof(Cqe), sizeof(Cqe));
    if (load_lap(slot) != 1 + at / capacity_) break;
    const Cqe cqe = load_cqe(slot);
    if (cqe.qpn != kForgotten) out[count++] = completion_of(cqe);
    ++at;
  }
  next_.store(at, std::memory_order_relaxed);
  // The doorbell record: the device may use the slots again.
  auto* record =
      reinterpret_cast<std::uint64_t*>(ring_.bytes().data() + std::size_t{capacity_} * sizeof(Cqe));
  std::atomic_ref<std::uint64_t>(*record).store(at, std::memory_order_release);
  return count;
}

void CompletionQueue::forget(wire::Qpn qpn) {
  const std::lock_guard lock(consumer_);
  for (std::uint64_t at = next_.load(std::memory_order_relaxed);; ++at) {
    const Bytes slot = ring_.bytes().subspan(at % capacity_ * sizeof(Cqe), sizeof(Cqe));
    if (load_lap(slot) != 1 + at / capacity_) return;
    const auto of = load_le<std::uint32_t>(slot, offsetof(Cqe, qpn));
    if (of == qpn.value) store_le(slot, offsetof(Cqe, qpn), kForgotten);
  }
}

}  // namespace softhca::driver
