// Requester: the sending half of a reliable connection (RC or XRC), as a pure machine.
//
// Work goes in by post(), answers by on_acknowledge(), on_read_response() and
// on_atomic_response(), time by on_time().
// Out come packets (poll_packet), completions in posting order (poll_completion) and the next
// deadline. What rxe calls "completer" is a part of this class (requester_ack.cc).
//
// The sender is a window over absolute packet numbers: a packet's PSN is its number plus the
// initial PSN, modulo 2^24. Numbers do not wrap, so comparisons are plain.
//
//   oldest_ <= next_ <= end_      oldest unacknowledged, next to send, behind the last posted
//
// Going back to send again moves next_ back; nothing is saved or restored. A READ takes as many
// numbers as its response has packets. Long READs are requested in pieces of kReadPiecePackets, so
// that a response never exceeds what a socket buffer holds; each piece is one READ on the wire.
// An atomic is like a READ of one packet, and shares the limit on outstanding ones with READs; so
// is an atomic WRITE, whose response has no bytes.
//
// Local work (bind a window, invalidate a key) takes no number: it is executed when all packets
// before it have left, before any behind it, and completes in its turn (CASES C23: fenced, it waits
// until all before it is complete).
//
// Spec        IBTA vol. 1, 9.7 (reliable service): C9-97 ff. requester, 9.9.2 errors
// Threads     owned by the device; no locks
// Invariants  (1) oldest_ <= next_ <= end_, checked on entry and exit
//             (2) each work request completes exactly once, in order
#pragma once
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/fifo.h"
#include "trace/qp_counters.h"
#include "transport/attributes.h"
#include "transport/emission.h"
#include "transport/memory_port.h"
#include "transport/send_window.h"
#include "transport/send_work.h"

namespace softhca::transport {

inline constexpr std::uint32_t kAckEveryPackets = 32;   // an ACK is asked for at least so often
inline constexpr std::uint32_t kReadPiecePackets = 32;  // longest READ on the wire

class Requester {
 public:
  struct Settings {
    wire::Qpn dest_qpn;
    wire::Psn initial_psn;
    std::uint32_t mtu{};
    Duration timeout;  // ack_timeout()
    std::uint8_t retry_count{};
    std::uint8_t rnr_retry{};
    std::uint8_t max_reads{};
    wire::Service service = wire::Service::Rc;  // or Xrc
  };
  // `memory` and `counters` outlive this object.
  Requester(const Settings& settings, MemoryPort& memory, trace::QpCounters& counters);

  // What may change in SQD.
  struct Patience {
    Duration timeout;
    std::uint8_t retry_count{};
    std::uint8_t rnr_retry{};
    std::uint8_t max_reads{};
  };
  void set_patience(const Patience& patience);
  // IBTA 10.3.1.5 (SQD): requests that have begun go on, none begins.
  void hold(bool on) { holding_ = on; }
  bool is_drained() const { return work_.empty() || work_.front().first >= highest_sent_; }

  // How many work requests it is ready to take. Posting more is allowed but of no use.
  bool wants_work() const { return work_.size() < kWorkAhead; }
  void post(const SendWork& work);
  // The request was executed without packets: it completes in its turn. REQUIRES: is_idle()
  void complete(const SendWork& work);
  // The PSN of the next packet that is not yet numbered.
  wire::Psn next_psn() const { return psn_of(end_); }

  void on_acknowledge(const wire::Headers& headers, Time now);
  void on_read_response(const wire::OpcodeInfo& info, const wire::Headers& headers,
                        std::uint32_t payload_bytes, Time now);
  // The device holds the original value as the payload in hand.
  void on_atomic_response(const wire::Headers& headers, Time now);
  void on_time(Time now);
  // The packet just polled had to wait for its turn by rate.
  void on_paced(Time now);
  // The payload of an emission could not be read: its work request fails in its turn.
  void on_payload_fault(std::uint32_t work, Status status, const trace::Reason& reason);
  // Fails all outstanding work: the first with `status`, the rest flushed.
  void fail(Status status, const trace::Reason& reason);

  std::optional<Emission> poll_packet(Time now);
  std::optional<SendCompletion> poll_completion();
  // Local work completes without a packet.
  bool has_completion() const { return !done_.empty(); }
  Time next_deadline() const;

  bool failed() const { return failed_; }
  bool is_idle() const { return work_.empty(); }

 private:
  static constexpr std::size_t kWorkAhead = 128;

  struct Operation {
    SendWork work;
    std::uint64_t first{};    // number of its first packet
    std::uint64_t packets{};  // numbers it takes; at least 1, of local work 0
    bool executed = false;    // local work
    bool is_read() const { return work.opcode == WorkOpcode::Read; }
    bool is_local() const { return packets == 0; }
    bool awaits_response() const { return transport::awaits_response(work.opcode); }
    std::uint64_t behind() const { return first + packets; }
  };

  void check_invariants() const;
  wire::Psn psn_of(std::uint64_t number) const {
    return initial_psn_.plus(static_cast<std::uint32_t>(number & wire::kMask24));
  }
  // The number nearest to oldest_ that has this PSN; nothing if it lies before packet 0.
  std::optional<std::uint64_t> number_of(wire::Psn psn) const;
  const Operation* operation_at(std::uint64_t number) const;

  // requester.cc
  bool may_send(Time now) const;
  void note_window(bool full, Time now);
  bool execute_locals();
  bool is_read_allowed() const;
  std::uint32_t reads_outstanding() const;
  Emission emission_of(wire::Operation operation, const Operation& op, std::uint64_t at) const;
  Emission emit_request(const Operation& op, std::uint64_t at) const;
  Emission emit_read(const Operation& op, std::uint64_t at) const;
  Emission emit_atomic(const Operation& op, std::uint64_t at) const;
  std::uint64_t piece_end(const Operation& op, std::uint64_t at) const;

  // requester_ack.cc
  bool acknowledge_before(std::uint64_t number, Time now);
  Operation* front_awaiting(const wire::Headers& headers, Time now);
  bool place_response(Operation& front, std::uint64_t offset, std::uint32_t bytes);
  void take_response(Operation& front, Time now);
  void on_nak(const wire::Headers& headers, std::uint64_t number, Time now);
  void complete_front();
  void settle();

  // requester_retry.cc
  void go_back(std::uint64_t number, Time now);
  void go_back_for_loss(std::uint64_t number, Time now);
  bool spend_retry();
  void restart_timer(Time now);

  // Settings
  wire::Qpn dest_qpn_;
  wire::Psn initial_psn_;
  std::uint32_t mtu_;
  Duration timeout_;
  std::uint8_t retry_count_;
  std::uint8_t rnr_retry_;  // 7: for ever
  std::uint8_t max_reads_;
  wire::Service service_;
  MemoryPort& memory_;
  trace::QpCounters& counters_;

  SendWindow window_;
  Fifo<Operation> work_;  // outstanding, oldest first
  Fifo<SendCompletion> done_;
  std::uint64_t oldest_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t highest_sent_ = 0;  // behind the last packet ever sent; tells a retransmission
  std::uint8_t retries_left_;
  std::uint8_t rnr_retries_left_;
  Time ack_deadline_ = Time::never();       // for oldest_; never() when nothing is outstanding
  Time rnr_until_ = Time{0};                // no packet before; Time{0}: not waiting
  Time rnr_since_{};                        // when that wait began
  Time window_full_since_ = Time::never();  // counted up to here; never(): not full
  bool went_back_ = false;                  // an implied NAK was acted upon; cleared by progress
  bool failed_ = false;
  bool holding_ = false;      // SQD
  std::uint32_t locals_ = 0;  // in work_, and not executed yet
};

}  // namespace softhca::transport
