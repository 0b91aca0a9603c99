// Congestion: what queue pairs are told of it by marks in IP headers, and tell each other.
//
// A switch whose queue grows marks packets (ECN) instead of losing them. Who receives a marked
// packet is the notification point and answers with a congestion notification packet (CNP); who
// gets that is the reaction point and sends slower (rate_control.h).
//
// Spec     IBTA vol. 1, annex A17.9 (RoCEv2 congestion management); RFC 3168 (ECN)
// Threads  owned by the device; no locks
#pragma once
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "transport/emission.h"

namespace softhca::transport {

struct CongestionSettings {
  enum class Ecn : std::uint8_t {
    Off,      // marks and CNPs are counted
    Notify,   // and marks are answered
    Control,  // and CNPs are obeyed; what connections send may be marked
  };
  Ecn ecn = Ecn::Notify;
  // Between two CNPs of a queue pair: N of DCQCN (Zhu et al., SIGCOMM 2015, 5.2).
  Duration cnp_interval = microseconds(50);
  std::int64_t line_mbps = 0;  // of the port; 0: not known

  bool notifies() const { return ecn != Ecn::Off; }
  bool controls() const { return ecn == Ecn::Control; }
};

// The notification point of one queue pair.
class NotificationPoint {
 public:
  // A marked packet has come from `peer`. True if it is to be answered; else one was answered a
  // moment ago, or its answer has not left yet.
  bool on_marked(wire::Qpn peer, std::uint16_t pkey, Duration interval, Time now);
  bool is_waiting() const { return waiting_.has_value(); }
  // REQUIRES: one is waiting.
  Emission poll_packet();

 private:
  std::optional<wire::Bth> waiting_;  // of the CNP that is to leave
  Time next_at_{};
};

}  // namespace softhca::transport
