// QueuePair: the program's end of a send and a receive ring.
//
// Threads  called with the device owned
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "driver/attributes.h"
#include "driver/work_ring.h"
#include "nic/records.h"

namespace softhca::driver {

class QueuePair {
 public:
  wire::Qpn qpn() const { return qpn_; }
  std::uint32_t pd() const { return pd_; }
  transport::QpType type() const { return type_; }
  transport::QpState state() const;  // as the device has it now
  const transport::QpAttributes& attributes() const { return attributes_; }  // as set
  const QueueCapacity& capacity() const { return capacity_; }                // what was granted
  CompletionQueue* send_cq() const { return send_cq_; }        // null: it does not send
  CompletionQueue* receive_cq() const { return receive_cq_; }  // null: none, or those of XRC queues
  SharedReceiveQueue* srq() const { return srq_; }             // null: it has receives of its own
  std::uint32_t xrcd() const { return xrcd_; }                 // XRC targets; 0: none
  bool signal_all() const { return signal_all_; }
  // Who holds it: an XRC target may be open several times. Null: nobody who hears of events.
  std::span<EventSink* const> holders() const { return holders_; }

 private:
  friend class Engine;

  QueuePair() = default;

  wire::Qpn qpn_;
  std::uint32_t pd_{};
  transport::QpType type_{};
  QueueCapacity capacity_;
  CompletionQueue* send_cq_{};
  CompletionQueue* receive_cq_{};
  SharedReceiveQueue* srq_{};
  std::uint32_t xrcd_{};
  bool signal_all_{};
  std::vector<EventSink*> holders_;
  WorkRing send_;
  WorkRing receive_;
  const nic::QpRecord* record_{};       // what the device publishes of it
  transport::QpAttributes attributes_;  // as set
};

}  // namespace softhca::driver
