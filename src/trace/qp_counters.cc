#include "trace/qp_counters.h"

namespace softhca::trace {

namespace {

constexpr std::array<QpCounterInfo, kQpCounterCount> all_qp_counters() {
  using enum QpCounter;
  return {{
      {PacketsSent, "packets_sent", false, "packets sent"},
      {BytesSent, "bytes_sent", false, "bytes of IP packets sent"},
      {PacketsReceived, "packets_received", false, "packets received"},
      {BytesReceived, "bytes_received", false, "bytes of IP packets received"},
      {Retransmits, "retransmits", false, "packets sent again"},
      {Timeouts, "timeouts", false, "local ACK timeouts that ran out"},
      {AcksReceived, "acks_received", false, "ACKs received"},
      {SequenceNaksReceived, "sequence_naks_received", false, "NAKs: the peer missed a packet"},
      {InvalidRequestNaksReceived, "invalid_request_naks_received", false,
       "NAKs: the peer found a request invalid"},
      {RemoteAccessNaksReceived, "remote_access_naks_received", false,
       "NAKs: the peer refused an access"},
      {RemoteOperationalNaksReceived, "remote_operational_naks_received", false,
       "NAKs: the peer could not execute a request"},
      {RnrNaksReceived, "rnr_naks_received", false, "NAKs: the peer had no receive ready"},
      {RnrWaits, "rnr_waits", false, "times it waited because the peer had none"},
      {RnrWaitPs, "rnr_wait_ps", true, "time spent in such waits"},
      {WindowFullPs, "window_full_ps", true,
       "time with work that may not be sent: full window, or max_rd_atomic outstanding"},
      {AcksSent, "acks_sent", false, "ACKs sent"},
      {SequenceNaksSent, "sequence_naks_sent", false, "NAKs sent: a packet was missing"},
      {InvalidRequestNaksSent, "invalid_request_naks_sent", false, "NAKs sent: invalid requests"},
      {RemoteAccessNaksSent, "remote_access_naks_sent", false, "NAKs sent: accesses refused"},
      {RemoteOperationalNaksSent, "remote_operational_naks_sent", false,
       "NAKs sent: requests that could not be executed here"},
      {RnrNaksSent, "rnr_naks_sent", false, "NAKs sent: no receive was posted"},
      {Duplicates, "duplicates", false, "requests received again"},
      {OutOfOrder, "out_of_order", false, "requests received ahead of their turn"},
      {EcnMarked, "np_ecn_marked_roce_packets", false,
       "packets received that a full queue has marked"},
      {CnpsSent, "np_cnp_sent", false, "congestion notifications sent for such packets"},
      {CnpsHandled, "rp_cnp_handled", false, "congestion notifications received and obeyed"},
      {CnpsIgnored, "rp_cnp_ignored", false, "congestion notifications received and not obeyed"},
      {DirectRequests, "direct_requests", false,
       "one-sided requests executed in the peer's memory, without packets"},
      {DirectBytes, "direct_bytes", false, "bytes moved by those"},
  }};
}

}  // namespace

const std::array<QpCounterInfo, kQpCounterCount> kQpCounters = all_qp_counters();

}  // namespace softhca::trace
