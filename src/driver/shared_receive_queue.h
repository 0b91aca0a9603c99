// SharedReceiveQueue: the program's end of a queue of receives that several queue pairs take from.
//
// Threads  called with the device owned
#pragma once
#include <cstdint>
#include <span>

#include "driver/work_ring.h"
#include "nic/records.h"

namespace softhca::driver {

struct SrqCapacity {
  std::uint32_t requests{};
  std::uint32_t sges{};
  std::uint32_t tags = 0;  // 0: it does not match
};

// Work on the list of tags of a queue that matches.
struct TagRequest {
  CompletionOpcode operation{};  // TagAdded, TagRemoved, TagsSynchronized
  std::uint64_t wr_id{};
  bool signaled{};
  bool synchronizes{};
  std::uint32_t unexpected_seen{};
  std::uint32_t handle{};  // TagRemoved
  std::uint64_t receive_wr_id{};
  std::uint64_t tag{};
  std::uint64_t mask{};
  std::span<const Sge> sges = {};
};

class SharedReceiveQueue {
 public:
  std::uint32_t srqn() const { return srqn_; }
  std::uint32_t pd() const { return pd_; }
  std::uint32_t xrcd() const { return xrcd_; }   // 0: basic
  CompletionQueue* cq() const { return cq_; }    // XRC: where its receives complete
  EventSink* events() const { return events_; }  // null: nobody
  SrqCapacity capacity() const { return {ring_.slots, ring_.segments, tags_}; }  // what was granted
  // Armed, and not reached yet; 0: none.
  std::uint32_t limit() const { return published(record_->limit); }
  // Posted, and not taken by the device yet.
  std::uint32_t waiting() const { return ring_.posted - published(record_->taken); }

 private:
  friend class Engine;
  SharedReceiveQueue() = default;

  std::uint32_t srqn_{};
  std::uint32_t pd_{};
  std::uint32_t xrcd_{};
  std::uint32_t tags_{};
  CompletionQueue* cq_{};
  EventSink* events_{};
  WorkRing ring_;
  const nic::SrqRecord* record_{};  // what the device publishes of it
};

}  // namespace softhca::driver
