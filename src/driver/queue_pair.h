// QueuePair: the program's end of a send and a receive ring.
//
// Threads  called with the device owned
#pragma once
#include <cstdint>

#include "driver/attributes.h"
#include "driver/ring_memory.h"
#include "nic/records.h"

namespace softhca::driver {

class QueuePair {
 public:
  wire::Qpn qpn() const { return qpn_; }
  std::uint32_t pd() const { return pd_; }
  transport::QpType type() const { return type_; }
  transport::QpState state() const;                            // as the device has it now
  const QueueCapacity& capacity() const { return capacity_; }  // what was granted
  CompletionQueue& send_cq() const { return *send_cq_; }
  CompletionQueue& receive_cq() const { return *receive_cq_; }
  bool signal_all() const { return signal_all_; }
  EventSink* events() const { return events_; }

 private:
  friend class Engine;

  // One of the two rings, from the program's end.
  struct Ring {
    RingMemory memory;
    std::uint32_t slots{};   // a power of two
    std::uint32_t stride{};  // bytes of a slot
    std::uint32_t posted{};  // requests ever posted, modulo 2^32
    std::uint32_t rung{};    // of these, how many the device was told of

    Bytes slot(std::uint32_t index) const {
      return memory.bytes().subspan(std::size_t{index & (slots - 1)} * stride, stride);
    }
  };
  QueuePair() = default;

  wire::Qpn qpn_;
  std::uint32_t pd_{};
  transport::QpType type_{};
  QueueCapacity capacity_;
  CompletionQueue* send_cq_{};
  CompletionQueue* receive_cq_{};
  bool signal_all_{};
  EventSink* events_{};  // null: nobody
  Ring send_;
  Ring receive_;
  const nic::QpRecord* record_{};       // what the device publishes of it
  transport::QpAttributes attributes_;  // as set
};

}  // namespace softhca::driver
