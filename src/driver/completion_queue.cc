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

// A poll that was held up may still look at memory that was another ring's: it sees a lap, whole.
void store_cqe(Bytes slot, const Cqe& cqe) {
  std::memcpy(slot.data(), bytes_of(cqe).data(), offsetof(Cqe, lap));
  auto* lap = reinterpret_cast<std::uint64_t*>(slot.data() + offsetof(Cqe, lap));
  std::atomic_ref<std::uint64_t>(*lap).store(cqe.lap, std::memory_order_release);
}

// All but the lap, which has been looked at.
Cqe load_cqe(Bytes slot) {
  Cqe cqe;
  std::memcpy(writable_bytes_of(cqe).data(), slot.data(), offsetof(Cqe, lap));
  return cqe;
}

// In place, since what is copied right after it was written waits for those writes.
void describe(const Cqe& cqe, Completion& out) {
  const auto status = static_cast<transport::Status>(cqe.status);
  out = {};
  out.wr_id = cqe.cookie;
  out.status = status;
  out.reason = static_cast<trace::ReasonId>(cqe.reason);
  out.qpn = {cqe.qpn};
  out.at = {static_cast<std::int64_t>(cqe.time_ps)};
  if (status != transport::Status::Success) return;  // C30: nothing else means anything
  out.opcode = static_cast<CompletionOpcode>(cqe.kind);
  out.with_immediate = (cqe.flags & static_cast<std::uint8_t>(nic::CqeFlag::Immediate)) != 0;
  out.byte_count = cqe.byte_count;
  out.immediate = cqe.immediate;
  out.with_network_header =
      (cqe.flags & static_cast<std::uint8_t>(nic::CqeFlag::NetworkHeader)) != 0;
  out.source_qpn = {cqe.source_qpn};
  out.with_invalidation = (cqe.flags & static_cast<std::uint8_t>(nic::CqeFlag::Invalidated)) != 0;
  out.flow_tag = cqe.flow_tag;
  out.tag = cqe.tag;
  out.wants_sync = (cqe.flags & static_cast<std::uint8_t>(nic::CqeFlag::WantsSync)) != 0;
  out.tag_matched = (cqe.flags & static_cast<std::uint8_t>(nic::CqeFlag::TagMatched)) != 0;
  out.tag_data_here = (cqe.flags & static_cast<std::uint8_t>(nic::CqeFlag::TagDataHere)) != 0;
}

CompletionQueue::Side side_of(const Cqe& cqe) {
  const bool is_send = cqe.kind < static_cast<std::uint8_t>(nic::CqeKind::Receive);
  return is_send ? CompletionQueue::Side::Send : CompletionQueue::Side::Receive;
}

constexpr std::uint32_t kForgotten = 0xffff'ffff;  // no QPN

}  // namespace

CompletionQueue::CompletionQueue(std::uint32_t cqn, std::uint32_t capacity, RingMemory ring,
                                 EventSink* events)
    : cqn_(cqn), events_(events), ring_(&start_ring(capacity, std::move(ring))) {}

CompletionQueue::Ring& CompletionQueue::start_ring(std::uint32_t capacity, RingMemory memory) {
  std::byte* const start = memory.bytes().data();
  rings_.push_back(std::unique_ptr<Ring>(
      new Ring{.start = start, .capacity = capacity, .memory = std::move(memory)}));
  return *rings_.back();
}

Bytes CompletionQueue::Ring::slot(std::uint64_t at) const {
  return {start + at % capacity * sizeof(Cqe), sizeof(Cqe)};
}

Bytes CompletionQueue::Ring::doorbell_record() const {
  return {start + std::size_t{capacity} * sizeof(Cqe), sizeof(std::uint64_t)};
}

bool CompletionQueue::is_filled(const Ring& ring) {
  const std::uint64_t at = ring.next.load(std::memory_order_relaxed);
  return load_lap(ring.slot(at)) == 1 + at / ring.capacity;
}

std::size_t CompletionQueue::poll(std::span<Completion> out) {
  if (is_empty()) return 0;
  const std::lock_guard lock(consumer_);
  Ring& ring = *ring_.load(std::memory_order_relaxed);
  std::uint64_t at = ring.next.load(std::memory_order_relaxed);
  std::size_t count = 0;
  while (count < out.size()) {
    const Bytes slot = ring.slot(at);
    if (load_lap(slot) != 1 + at / ring.capacity) break;
    const Cqe cqe = load_cqe(slot);
    if (cqe.qpn != kForgotten) {
      describe(cqe, out[count++]);
      if (remembers_) taken_[{cqe.qpn, side_of(cqe)}] = cqe.work + 1;
    }
    ++at;
  }
  ring.next.store(at, std::memory_order_relaxed);
  // The doorbell record: the device may use the slots again.
  auto* record = reinterpret_cast<std::uint64_t*>(ring.doorbell_record().data());
  std::atomic_ref<std::uint64_t>(*record).store(at, std::memory_order_release);
  return count;
}

std::uint32_t CompletionQueue::taken(wire::Qpn qpn, Side side) {
  ASSERT(remembers_);
  const std::lock_guard lock(consumer_);
  const auto found = taken_.find({qpn.value, side});
  return found == taken_.end() ? 0 : found->second;
}

void CompletionQueue::forget(wire::Qpn qpn) {
  const std::lock_guard lock(consumer_);
  for (const Side side : {Side::Send, Side::Receive}) taken_.erase({qpn.value, side});
  const Ring& ring = *ring_.load(std::memory_order_relaxed);
  for (std::uint64_t at = ring.next.load(std::memory_order_relaxed);; ++at) {
    const Bytes slot = ring.slot(at);
    if (load_lap(slot) != 1 + at / ring.capacity) return;
    const auto of = load_le<std::uint32_t>(slot, offsetof(Cqe, qpn));
    if (of == qpn.value) store_le(slot, offsetof(Cqe, qpn), kForgotten);
  }
}

std::optional<std::uint32_t> CompletionQueue::move_to(std::uint32_t capacity, RingMemory memory) {
  const std::lock_guard lock(consumer_);
  const Ring& old = *ring_.load(std::memory_order_relaxed);
  std::vector<Cqe> left;
  for (std::uint64_t at = old.next.load(std::memory_order_relaxed);; ++at) {
    const Bytes slot = old.slot(at);
    if (load_lap(slot) != 1 + at / old.capacity) break;
    const Cqe cqe = load_cqe(slot);
    if (cqe.qpn == kForgotten) continue;
    if (left.size() == capacity) return std::nullopt;
    left.push_back(cqe);
  }
  if (rings_.size() >= 2) rings_[rings_.size() - 2]->memory = RingMemory();
  Ring& fresh = start_ring(capacity, std::move(memory));
  for (std::size_t at = 0; at < left.size(); ++at) {
    left[at].lap = 1;
    store_cqe(fresh.slot(at), left[at]);
  }
  ring_.store(&fresh, std::memory_order_release);
  return static_cast<std::uint32_t>(left.size());
}

}  // namespace softhca::driver
