// UnreliableConnection: both halves of a queue pair of the unreliable connected service, as a pure
// machine.
//
// Messages of many packets, in order, to one peer; nothing is acknowledged or repeated. A request
// is done when its last packet is made. A message of which a packet is missing is dropped whole,
// without a word to either side, and the receive that it was filling is the next message's.
//
// What this side itself did wrong is told: a receive that is too small, or names a bad key,
// completes with an error.
//
// Spec        IBTA vol. 1, 9.8.2 (unreliable connection), 9.9.3 (responder errors, class D)
// Threads     owned by the device; no locks
// Invariants  (1) each work request completes exactly once, in order
//             (2) a receive that was taken for a message that is dropped is the next message's
#pragma once
#include <cstdint>
#include <deque>
#include <optional>

#include "transport/memory_port.h"
#include "transport/responder.h"
#include "transport/send_work.h"

namespace softhca::transport {

class UnreliableConnection {
 public:
  struct Settings {
    wire::Qpn dest_qpn;
    wire::Psn expected_psn;
    std::uint32_t mtu{};
    bool may_write{};  // remote right of the queue pair itself
    std::uint32_t max_message_bytes = 1u << 31;
  };
  // `memory` outlives this object.
  UnreliableConnection(const Settings& settings, MemoryPort& memory);

  void set_rights(bool may_write) { settings_.may_write = may_write; }
  // The sending half begins with this PSN.
  void start(wire::Psn psn) { psn_ = psn; }

  // SQD: a message that has begun goes on, none begins.
  void hold(bool on) { holding_ = on; }
  bool is_drained() const { return packets_sent_ == 0; }

  bool wants_work() const { return work_.size() < kWorkAhead; }
  void post(const SendWork& work);
  // The payload is to be read at once: a request whose last packet this is, is done with the next
  // call of any method.
  std::optional<Emission> poll_packet();
  // The payload of the emission just polled could not be read: its request fails.
  void on_payload_fault(Status status, const trace::Reason& reason);
  bool has_send_completion() const { return leaving_ || !sent_.empty(); }
  std::optional<SendCompletion> poll_send_completion();
  // Flushes what is outstanding and what comes, until resume().
  void fail_sends();
  void resume() { failed_ = false; }
  bool failed() const { return failed_; }

  // A packet from the peer; the device holds the payload. Gives why it was dropped, if it was.
  trace::Reason on_packet(const wire::OpcodeInfo& info, const wire::Headers& headers,
                          std::uint32_t payload_bytes);
  std::optional<ReceiveCompletion> poll_receive_completion();
  // Flushes the receive that is held.
  void fail_receives();

 private:
  static constexpr std::size_t kWorkAhead = 64;

  struct Arriving {
    const wire::OpcodeInfo& info;
    const wire::Headers& headers;
    std::uint32_t bytes;
  };
  // The message that is arriving.
  struct Message {
    wire::Kind kind{};
    std::uint64_t offset{};   // bytes that have arrived
    std::uint64_t address{};  // WRITE: from its RETH
    wire::Key key;
    std::uint64_t bytes{};
  };

  // Sending.
  void settle();
  bool execute_locals();
  void complete(const SendWork& work, Status status, const trace::Reason& reason);
  // Receiving.
  trace::Reason check_order(const Arriving& packet);
  trace::Reason check_payload(const Arriving& packet) const;
  trace::Reason begin(const Arriving& packet);
  trace::Reason execute_send(const Arriving& packet);
  trace::Reason execute_write(const Arriving& packet);
  trace::Reason fail_receive(Status status, const trace::Reason& reason);
  void finish(const Arriving& packet);

  Settings settings_;
  MemoryPort& memory_;
  wire::Psn psn_;
  std::deque<SendWork> work_;
  std::uint64_t packets_sent_ = 0;   // of the first of them
  std::optional<SendWork> leaving_;  // whose last packet was polled last
  std::deque<SendCompletion> sent_;
  bool failed_ = false;
  bool holding_ = false;  // SQD

  wire::Psn expected_;
  std::optional<Message> message_;
  std::optional<ReceiveSlot> held_;
  std::deque<ReceiveCompletion> received_;
};

}  // namespace softhca::transport
