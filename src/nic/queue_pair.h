// QueuePair: the device's end of a queue pair: rings in host memory on one side, transport on the
// other.
//
// Fetches work requests by DMA (each once, into a copy of its own), checks them, gives them to the
// requester, finds receives for the responder, and moves payload between scatter lists and packets.
//
// Spec        IBTA vol. 1, 10.3 (queue pairs), 10.8 (work requests)
// Threads     owned by the device
// Invariants  (1) every request that was posted completes exactly once: executed or flushed
//             (2) a slot of a ring is read once
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "faults/injector.h"
#include "link/link.h"
#include "nic/host_memory.h"
#include "nic/limits.h"
#include "nic/receive_queue.h"
#include "nic/ring_format.h"
#include "nic/same_host.h"
#include "nic/shared_receive_queue.h"
#include "nic/steering.h"
#include "transport/attributes.h"
#include "transport/congestion.h"
#include "transport/datagram.h"
#include "transport/rate_control.h"
#include "transport/requester.h"
#include "transport/responder.h"
#include "transport/unreliable.h"
#include "wire/datagram.h"

namespace softhca::nic {

struct QpContext {
  wire::Qpn qpn;
  std::uint32_t pd{};
  transport::QpType type{};
  std::uint32_t srqn{};  // of the shared receive queue it takes from; 0: its own
  std::uint32_t xrcd{};  // XRC targets: their domain
  std::uint32_t send_cqn{};
  std::uint32_t receive_cqn{};
  QueuePlace send;
  QueuePlace receive;
  std::uint32_t max_inline{};
  std::uint32_t max_frame_bytes{};  // raw packets: what the interface carries
  // Raw packets: the queue pairs that its frames are spread over, a power of two; none: its own.
  std::vector<wire::Qpn> spread_over{};
  Spreading spreading{};
};

// Which half of a queue pair sends first.
enum class Turn : std::uint8_t { Responses, Requests };

// Where the payloads of this packet and of those that are built next may lie: `count` rooms of a
// ring.
struct Rooms {
  Bytes ring;
  std::size_t stride{};
  std::size_t first{};
  std::size_t count = 1;
  // REQUIRES: i < count.
  Bytes at(std::size_t i) const {
    const std::size_t start = (first + i) * stride;
    return ring.subspan(start < ring.size() ? start : start - ring.size()).first(stride);
  }
};

// A completion for the device to write, and on which queue.
struct PendingCqe {
  std::uint32_t cqn{};
  Cqe cqe;
};

class QueuePair final : public transport::MemoryPort {
 public:
  static constexpr std::size_t kStagedPackets = 64;  // whose payload is read at once
  static constexpr std::size_t kTurnBytes = 65536;

  // `counters` and `congestion` outlive this object; `faults` is null without a plan of them,
  // `neighbours` where there can be none, and `link` where they are told nothing.
  QueuePair(const QpContext& context, HostMemory& memory, SharedReceiveQueues& shared,
            trace::Tracer& tracer, trace::QpCounters& counters,
            const transport::CongestionSettings& congestion, faults::Injector* faults,
            SameHost* neighbours = nullptr, link::Link* link = nullptr);

  // Command interface. `path` is the datagram that packets to the peer travel in.
  void to_rtr(const transport::QpAttributes& attributes, const wire::Datagram& path);
  void to_rts(const transport::QpAttributes& attributes);
  void update(const transport::QpAttributes& attributes);  // what may change while connected
  // In SQD, what else may change: the path, if one is given, and how long it waits.
  void adjust(const transport::QpAttributes& attributes, const wire::Datagram& path);
  void to_reset();
  void set_state(transport::QpState state);
  // Fails what is outstanding; later work is flushed.
  void enter_error(transport::Status first, const trace::Reason& reason, Time now);
  // Its receives are not flushed yet: its peer may have filled some, and said so. By the time that
  // everything which the peer has said was heard, flush_held() does it.
  bool holds_receives() const { return holds_receives_; }
  void flush_held(Time now);
  // Unreliable services: only the sending half has failed, until it is set to RTS again.
  void enter_send_error(Time now);

  void on_send_doorbell(std::uint32_t producer, Time now);
  void on_receive_doorbell(std::uint32_t producer, Time now);
  // A packet from the peer. Its payload stays valid during the call. `ahead` are the payloads of
  // the packets that follow at once and continue its WRITE or SEND: they may be placed with it.
  // When they have followed, end_run() forgets about them.
  void on_packet(const wire::Packet& packet, std::span<const ConstBytes> ahead, Time now);
  void end_run() { placed_ahead_ = 0; }
  // Of a WRITE that goes on, nothing but its bytes is to be noticed yet.
  bool has_no_news() const { return responder_ && !responder_->has_news(); }
  // Once after each message that it placed in a receive of its own device.
  bool take_told_itself() { return std::exchange(told_itself_, false); }
  // The peer's device has filled a receive. False if it is not the next one.
  bool on_placed(const PlacedNotice& notice, Time now);
  // Why an unreliable connection dropped the packet just given to it, if it did.
  trace::Reason last_drop() const { return last_drop_; }
  // The same for a queue pair of datagrams; from anybody.
  transport::Datagrams::Arrival on_datagram(const wire::Packet& packet,
                                            const wire::Datagram& datagram, Time now);
  // And for one of raw packets: an Ethernet frame that the device's rules steer to it.
  transport::Datagrams::Arrival on_frame(ConstBytes frame, std::uint32_t tag, Time now);
  // A packet for it was marked on its way. True if its sender is to be told.
  bool on_marked(const wire::Packet& packet, const wire::Datagram& datagram, Time now);
  // A congestion notification, from the peer; for datagrams, from anybody.
  void on_notification(Time now);
  void on_time(Time now);

  struct Outgoing {
    transport::Emission emission;
    bool is_response{};
    bool is_notification{};
  };
  // The next packet. Its payload is then gathered into the first of the rooms by gather(), which
  // tells the transport if it could not be (then the packet does not leave). The others are for the
  // packets that are built next, as far as there is room: what follows in the message may be read
  // into them already.
  std::optional<Outgoing> poll_packet(Time now, Turn first);
  pcie::Outcome gather(const Outgoing& outgoing, const Rooms& rooms, Time now);

  // The datagram that the packet just polled travels in.
  const wire::Datagram& path_of(const Outgoing& outgoing) const;

  // Until the next doorbell, packet or timer poll_packet() gives nothing, and completes nothing.
  bool has_nothing_to_send() const {
    return state_ == transport::QpState::Rts && requester_ && responder_ && !rate_ &&
           requester_->is_idle() && !requester_->failed() && !requester_->has_completion() &&
           !responder_->has_replies() && !notifications_.is_waiting();
  }
  // Of work on the device's own keys, or a datagram that could not leave: without a packet.
  bool has_send_completion() const;
  std::optional<PendingCqe> poll_completion(Time now);
  std::optional<transport::ResponderFailure> poll_failure();
  Time next_deadline() const;
  // Latest ready_at of the memory accesses made so far; nothing it emits is visible before.
  Time ready_at() const { return ready_at_; }
  // Of the last completion that failed, with its particulars; a CQE carries only its number.
  const trace::Reason& last_reason() const { return last_reason_; }

  transport::QpState state() const { return state_; }
  // In SQD: whether requests that had begun are still under way.
  bool is_draining() const;
  // Once, when none is any more and the program wanted to know.
  bool take_drained();
  const QpContext& context() const { return context_; }
  // Its receives are not, or not only, its own.
  bool shares_receives() const { return context_.srqn != 0 || context_.xrcd != 0; }
  wire::Service service() const;
  bool is_for_datagrams() const { return context_.type == transport::QpType::Ud; }
  bool is_raw() const { return context_.type == transport::QpType::RawPacket; }
  // A request is done with its last packet, and what fails stops the sending half alone.
  bool is_unreliable() const {
    return context_.type == transport::QpType::Uc || is_for_datagrams() || is_raw();
  }
  const wire::Datagram& path() const { return path_; }
  // How many packets it may send before others have their turn.
  std::size_t turn_packets() const { return turn_packets_; }
  wire::Qpn peer() const { return peer_; }
  std::uint32_t send_done() const { return send_done_; }
  std::uint32_t receive_done() const { return receives_.done(); }
  std::uint32_t receive_posted() const { return receives_.posted(); }
  trace::QpCounters& counters() { return counters_; }
  Expected expected() const;  // without what the program was told
  // As QpRecord has it.
  std::uint32_t path_word() const { return direct_.path; }
  // Its messages go into receives of the peer, which is told through memory.
  bool places_messages() const { return direct_.receive.has_value(); }

  // MemoryPort, for the transport.
  trace::Reason check_remote(transport::RemoteRight right, wire::Key key, std::uint64_t address,
                             std::uint64_t bytes) override;
  trace::Reason check_shared_queue(std::uint32_t srqn) override;
  trace::Reason place(const transport::PayloadRef& to) override;
  Result<std::uint64_t, trace::Reason> execute_atomic(
      const transport::AtomicOperation& atomic) override;
  trace::Reason invalidate(wire::Key key) override;
  trace::Reason execute_local(std::uint32_t work) override;
  std::optional<transport::ReceiveSlot> take_receive() override;

 private:
  using Segments = std::vector<Segment>;
  // A send request as fetched: kept until it completes.
  struct Fetched {
    SendWqe wqe;
    AddressSegment address;  // datagrams
    wire::Datagram path;     // made of it
    Segments segments;
    std::vector<std::byte> inline_bytes;
  };
  static constexpr std::uint32_t kFetchedSlots = 256;  // more than the requester takes ahead

  // How one-sided requests reach a peer on this host.
  struct Direct {
    std::shared_ptr<Neighbour> neighbour;  // null: none, or not asked for yet
    Time again_at{};                       // they go as packets until then
    Duration pause{};                      // the last one
    std::uint32_t path{};                  // as QpRecord has it
    std::uint32_t behind_packets{};        // behind the last request that had to go as packets
    // SENDs.
    bool never_sends{};                    // the peer has no receives of its own
    bool is_told{};                        // of a message, and it may not have heard yet
    std::optional<NextReceive> receive{};  // nothing: not known
    PostedReceives receives{};
  };
  // WRITEs that are executed together.
  struct DirectBatch {
    std::vector<transport::SendWork> works;
    std::vector<DirectRequest> requests;
    pcie::SpanList local;
  };
  enum class Way : std::uint8_t { Packets, Direct, Later };

  // What the device does by itself for a rendezvous: reads the message, then tells the peer.
  struct Rendezvous {
    std::uint32_t work{};
    bool is_told{};  // that is what is under way
    Fetched request;
    FetchedReceive receive;
  };

  Fetched& fetched(std::uint32_t work) {
    if (!rendezvous_.empty()) [[unlikely]]
      if (Rendezvous* const own = rendezvous_of(work)) return own->request;
    return fetched_[work % kFetchedSlots];
  }

  void name_shared(std::uint32_t srqn);
  // The protection domain of the keys that a peer names: its own, or that of the shared queue.
  std::uint32_t domain_in_hand() const {
    return context_.xrcd == 0 ? context_.pd : named_ != nullptr ? named_->context().pd : 0;
  }
  std::uint32_t domain_of(const transport::PayloadRef& region);
  void set_path(const wire::Datagram& path);
  void take_response(const wire::Packet& packet, Time now);
  std::optional<Outgoing> poll_request(Time now);
  std::optional<Outgoing> poll_response(Time now);
  bool may_send(Time now);
  void pace(const std::optional<Outgoing>& outgoing, Time now);
  Outgoing poll_notification();
  void count(trace::QpCounter of_pair, trace::Counter of_device);
  void fetch_sends(Time now);
  bool fetch_send(std::uint32_t index, Fetched& into, trace::Reason& reason, Time now);
  // `unread` is why the request could not be fetched, or None.
  transport::SendWork check_send(std::uint32_t index, Fetched& request, const trace::Reason& unread,
                                 Time now);
  void fail_by_plan(transport::SendWork& work, std::uint64_t wr_id, Time now);
  trace::Reason check_atomic(std::uint64_t bytes) const;
  void post(const transport::SendWork& work);
  void on_payload_fault(std::uint32_t work, const trace::Reason& reason);
  // queue_pair_direct.cc
  Way way_of(const transport::SendWork& work, Time now);
  Neighbour* find_neighbour(Time now);
  void start(const transport::SendWork& work, Time now);
  bool join_batch(const transport::SendWork& work, Time now);
  void run_batch(Time now);
  bool execute_direct(const transport::SendWork& work, Time now);
  std::uint64_t locate(const Fetched& request, std::uint64_t offset, pcie::Direction direction,
                       pcie::SpanList& spans, Time now);
  std::size_t ask_neighbour(transport::WorkOpcode kind, std::span<const DirectRequest> requests,
                            const pcie::SpanList& local, Time now);
  void complete_direct(const transport::SendWork& work, Time now);
  void go_by_packets(Time now);
  Connection connection() const;
  bool may_place(Time now) const;
  bool has_heard();
  bool place_message(const transport::SendWork& work, Time now);
  Delivered deliver_message(const transport::SendWork& work, Time now);
  bool tell(const transport::SendWork& work, Time now);
  void note_posted(const transport::SendWork& work);
  // queue_pair_shared.cc
  std::optional<transport::ReceiveSlot> take_tagged(SharedReceiveQueue& from);
  void start_rendezvous();
  Rendezvous* rendezvous_of(std::uint32_t work);
  void post_own(Rendezvous& own, transport::SendWork work);
  std::optional<PendingCqe> on_own_done(const transport::SendCompletion& done, Time now);
  // queue_pair_memory.cc
  trace::Reason bind_window(const SendWqe& wqe);
  // queue_pair_datagram.cc
  bool wants_sends() const;
  bool flushes_sends() const;
  void take_address(Fetched& into, ConstBytes bytes) const;
  trace::Reason check_address(const Fetched& request) const;
  std::optional<PendingCqe> poll_datagram_receive(Time now);
  std::optional<transport::SendCompletion> poll_send_completion();

  void flush_receives(Time now);
  pcie::Outcome place_in_region(const transport::PayloadRef& to);
  pcie::Outcome place_in_segments(const Segments& segments, std::uint32_t pd, std::uint64_t offset,
                                  ConstBytes payload);
  pcie::Outcome place_in_receive(const transport::PayloadRef& to);
  bool is_placed(std::uint64_t place, std::uint64_t bytes);
  bool place_run(const transport::PayloadRef& to);
  bool place_receive_run(const transport::PayloadRef& to);
  bool write_run(KeyAccess access, std::uint64_t next);
  pcie::Outcome read_request(const Segments& segments, std::uint64_t offset,
                             std::span<const Bytes> to, Time now);
  static std::size_t cut_out(std::span<const Bytes> from, std::uint64_t offset, std::uint64_t bytes,
                             std::span<Bytes> into);
  bool stage(const transport::PayloadRef& from, const Segments& segments, const Rooms& rooms,
             Time now);
  bool is_staged(const transport::PayloadRef& from, Bytes room) const;
  static constexpr std::size_t kMostInRun = 64;  // placed at once
  // Runs over the part [offset, +bytes) of a scatter list.
  template <class Move>
  pcie::Outcome each_piece(const Segments& segments, std::uint64_t offset, std::uint64_t bytes,
                           Move&& move);
  void note(const pcie::Outcome& outcome) { ready_at_ = later(ready_at_, outcome.ready_at); }
  std::optional<PendingCqe> poll_send_cqe(Time now);
  PendingCqe send_cqe(const transport::SendCompletion& done, Time now);
  PendingCqe receive_cqe(const transport::ReceiveCompletion& done, Time now);

  QpContext context_;
  HostMemory& memory_;
  SharedReceiveQueues& shared_;
  trace::Tracer& tracer_;
  trace::QpCounters& counters_;
  faults::Injector* faults_;  // null: nothing is planned
  SameHost* neighbours_;      // null: there are none
  link::Link* link_;          // to them; null: what they are sent goes as packets
  transport::QpState state_ = transport::QpState::Reset;
  bool notify_drained_ = false;
  bool holds_receives_ = false;
  bool told_itself_ = false;
  wire::Datagram path_;
  std::size_t turn_packets_ = kTurnBytes / wire::kMaxMtu;
  wire::Qpn peer_;
  const transport::CongestionSettings& congestion_;
  transport::NotificationPoint notifications_;
  wire::Datagram notification_path_;                 // of the one that is to leave
  std::optional<transport::RateControl> rate_;       // from RTR on, where rates are controlled
  Time paced_until_ = Time::never();                 // when what it held back may go
  std::unique_ptr<transport::Requester> requester_;  // from RTS on
  std::unique_ptr<transport::Responder> responder_;  // from RTR on
  // Datagrams and raw packets: instead of both, from RTR on.
  std::unique_ptr<transport::Datagrams> datagrams_;
  std::unique_ptr<transport::UnreliableConnection> unreliable_;  // likewise

  std::uint32_t send_posted_ = 0;  // by doorbell, modulo 2^32
  std::uint32_t send_fetched_ = 0;
  std::uint32_t send_done_ = 0;
  ReceiveQueue receives_;                // its own
  SharedReceiveQueue* named_ = nullptr;  // XRC: by the packet in hand; null: none of the domain
  std::vector<Fetched> fetched_;
  Direct direct_;
  DirectBatch batch_;                        // empty between calls
  std::optional<transport::SendWork> held_;  // until what is before it is acknowledged
  FetchedReceive receive_;                   // the one that the responder fills
  std::deque<PendingCqe> flushed_;           // of receives
  std::deque<Rendezvous> rendezvous_;
  std::uint32_t rendezvous_next_ = 0;
  Time stalled_until_{};                // by plan the responder answers nothing before
  const wire::Bth* request_ = nullptr;  // that the responder has in hand
  bool is_send_in_hand_{};              // the packet in hand is of a SEND
  ConstBytes payload_;                  // of the packet in hand
  std::span<const ConstBytes> ahead_;
  std::uint32_t flow_tag_{};      // of the frame that was received last
  std::size_t placed_ahead_ = 0;  // packets that follow and whose payload is placed already
  std::uint64_t placed_to_{};     // where that of the next one is
  Time now_{};                    // of the call in hand
  Time ready_at_{};
  trace::Reason last_reason_{};
  trace::Reason last_drop_{};
};

template <class Move>
pcie::Outcome QueuePair::each_piece(const Segments& segments, std::uint64_t offset,
                                    std::uint64_t bytes, Move&& move) {
  pcie::Outcome total{.ready_at = {}};
  for (const Segment& s : segments) {
    if (bytes == 0) break;
    if (offset >= s.bytes) {
      offset -= s.bytes;
      continue;
    }
    const std::uint64_t here = std::min<std::uint64_t>(s.bytes - offset, bytes);
    const pcie::Outcome one = move(wire::Key{s.lkey}, s.address + offset, total.done_bytes, here);
    total.ready_at = later(total.ready_at, one.ready_at);
    total.reason = one.reason;
    if (!one) return total;
    total.done_bytes += here;
    bytes -= here;
    offset = 0;
  }
  ASSERT(bytes == 0);
  return total;
}

}  // namespace softhca::nic
