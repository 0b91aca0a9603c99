// Datagrams: a queue pair of the unreliable datagram service, as a pure machine.
//
// Each message is one packet to a peer of its own. Nothing is acknowledged, repeated or put in
// order: a request is done when its packet is made, and a packet that cannot be received is
// dropped. The network header stands in front of every message received: kNetworkHeaderBytes that
// belong to its length.
//
// Spec        IBTA vol. 1, 9.8.3 (unreliable datagram), 9.6.1.1.3 and 10.2.5 (Q_Key), 9.9.3
//             (class D: dropped, the receive stays), C10-93 (length)
// Threads     owned by the device; no locks
// Invariants  (1) each work request completes exactly once, in order
//             (2) a receive that was taken for a packet that is dropped is the next packet's
#pragma once
#include <cstdint>
#include <deque>
#include <optional>

#include "transport/emission.h"
#include "transport/memory_port.h"
#include "transport/requester.h"
#include "transport/responder.h"

namespace softhca::transport {

// As the GRH: IPv6's header is as long, that of IPv4 lies in the last 20 bytes.
inline constexpr std::uint32_t kNetworkHeaderBytes = 40;
// A Q_Key with this bit in a work request stands for the queue pair's own.
inline constexpr std::uint32_t kOwnQkeyBit = 0x8000'0000;

struct DatagramWork {
  SendWork send;
  wire::Qpn dest_qpn;
  std::uint32_t qkey{};
};

struct DatagramCompletion {
  ReceiveCompletion receive;  // bytes include the network header
  wire::Qpn source_qpn;
};

class Datagrams {
 public:
  struct Settings {
    wire::Qpn qpn;
    std::uint32_t qkey{};
    std::uint32_t mtu{};  // of the port: what a message holds at most
    // What the device puts in front of a message. 0 for raw packets, whose message is the frame.
    std::uint32_t header_bytes = kNetworkHeaderBytes;
    std::uint32_t least = 0;  // what a message holds at least
  };
  // What became of a packet.
  enum class Arrival : std::uint8_t {
    Received,
    Failed,  // the receive was at fault: it completes with an error
    WrongQkey,
    Malformed,  // not of this service, or longer than the MTU
    NoReceive,
    ReceiveTooSmall,
  };
  // `memory` outlives this object.
  Datagrams(const Settings& settings, MemoryPort& memory) : settings_(settings), memory_(memory) {}

  void set_qkey(std::uint32_t qkey) { settings_.qkey = qkey; }
  // The sending half begins with this PSN, which counts packets and says nothing to the peer.
  void start(wire::Psn psn) { psn_ = psn; }

  bool wants_work() const { return work_.size() < kWorkAhead; }
  void post(const DatagramWork& work);
  // The payload is to be read at once: the request is done with the next call of any method.
  std::optional<Emission> poll_packet();
  // The payload of the emission just polled could not be read: its request fails.
  void on_payload_fault(Status status, const trace::Reason& reason);
  bool has_send_completion() const { return !sent_.empty(); }
  std::optional<SendCompletion> poll_send_completion();
  // Flushes what is outstanding and what comes, until resume().
  void fail_sends();
  void resume() { failed_ = false; }
  bool failed() const { return failed_; }

  // A packet that has arrived. The device holds the network header and the payload behind it.
  Arrival on_packet(const wire::OpcodeInfo& info, const wire::Headers& headers,
                    std::uint32_t payload_bytes);
  // The same for an Ethernet frame, which the device holds.
  Arrival on_frame(std::uint32_t frame_bytes) { return receive(frame_bytes, {}); }
  std::optional<DatagramCompletion> poll_receive_completion();
  // Flushes the receive that is held.
  void fail_receives();

 private:
  static constexpr std::size_t kWorkAhead = 64;

  void settle();
  Arrival receive(std::uint32_t bytes, const DatagramCompletion& completion);
  void complete(const SendWork& work, Status status, const trace::Reason& reason);

  Settings settings_;
  MemoryPort& memory_;
  wire::Psn psn_;
  std::deque<DatagramWork> work_;
  std::optional<SendWork> leaving_;  // whose packet was polled last
  std::deque<SendCompletion> sent_;
  bool failed_ = false;
  std::optional<ReceiveSlot> held_;
  std::deque<DatagramCompletion> received_;
};

}  // namespace softhca::transport
