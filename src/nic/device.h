// Device: the NIC. Doorbells in, DMA and packets out.
//
//   commands   create, modify, destroy: what the driver asks for on the control path
//   MMIO       doorbells: a queue has work
//   progress   receive packets, run timers, send packets, all within a budget
//
// Packets are built in frames of the device's own. A frame that the link does not take now stays
// in the outbox and leaves later, byte for byte the same.
//
// Spec        IBTA vol. 1, chapters 9-11; annex A17 (RoCEv2)
// Threads     owned by one caller at a time; no locks
// Invariants  (1) nothing that the device emits is visible before the memory accesses it depends on
//             (2) a packet reaches a queue pair only with a right ICRC, and from its peer's
//                 address; a datagram from anywhere, with the Q_Key
// See also    ARCHITECTURE.md, "The life of one RDMA WRITE"
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "link/frame_port.h"
#include "link/link.h"
#include "nic/caller.h"
#include "nic/completion_queue.h"
#include "nic/host_memory.h"
#include "nic/key_table.h"
#include "nic/multicast.h"
#include "nic/queue_pair.h"
#include "nic/records.h"
#include "nic/steering.h"
#include "pcie/port.h"
#include "wire/cm_message.h"
#include "wire/icrc.h"

namespace softhca::nic {

// How long ago something was heard, when a queue pair's acknowledgement timer first ran out.
struct Silence {
  std::optional<Duration> by_pair;  // by the queue pair; nothing: never
  std::optional<Duration> of_peer;  // from the peer's address, by any queue pair
};

class Device {
 public:
  struct Parts {
    pcie::DmaPort& memory;
    pcie::InterruptTarget& interrupts;
    link::Link& link;
    trace::Tracer& tracer;
    Tables tables;
    link::FramePort* frames = nullptr;   // null: raw packets stay inside
    std::uint32_t first_qpn = 0x100000;  // of this device's block, also of its SRQNs
    std::uint32_t qpn_start = 0;         // where in the block numbering starts
    faults::Injector* faults = nullptr;  // a plan of faults
    transport::CongestionSettings congestion = {};
    SameHost* neighbours = nullptr;  // null: nobody else is on this host
  };
  explicit Device(const Parts& parts);

  // Commands. Numbers come from the device; resources must be set up before.
  KeyTable& keys() { return keys_; }
  const KeyTable& keys() const { return keys_; }
  Multicast& multicast() { return multicast_; }
  DeviceMemory& own_memory() { return memory_.on_device(); }
  Steering& steering() { return steering_; }
  // Whose RoCEv2 packets are the device's own and not for flow rules.
  void set_addresses(std::vector<wire::Gid> addresses) { addresses_ = std::move(addresses); }
  // Of the port; 0: not known. Counts for queue pairs that come to RTR from now on.
  void set_line_rate(std::uint64_t mbps) {
    congestion_.line_mbps = static_cast<std::int64_t>(mbps);
  }
  // Opens the interface for frames as far as there is a use for them, or closes it: after a change
  // of flow rules or of a raw packet queue pair. FAILS WITH FramesStayInside, and they do
  Result<void, trace::Reason> open_for_frames();
  void set_event_queue(RingPlace ring) { events_ = EventQueue(ring); }
  std::uint32_t take_cqn() { return cqn_next_++; }
  void create_cq(std::uint32_t cqn, RingPlace ring,
                 CompletionQueue::Overrun overrun = CompletionQueue::Overrun::Fails);
  // From now on completions go to another ring, whose first `filled` entries are in place.
  void move_cq(std::uint32_t cqn, RingPlace ring, std::uint32_t filled);
  void moderate_cq(std::uint32_t cqn, const Moderation& rule, Time now);
  void destroy_cq(std::uint32_t cqn);
  // Nothing when all numbers are out.
  std::optional<std::uint32_t> take_srqn() { return srqs_.take_number(); }
  const SrqRecord& srq_record(std::uint32_t srqn) { return srqs_.record(srqn); }
  void create_srq(const SrqContext& context) { srqs_.create(context); }
  // Tells once when fewer than `limit` are waiting, at once if that is so now; 0: never.
  void set_srq_limit(std::uint32_t srqn, std::uint32_t limit, Time now);
  // REQUIRES: what is waiting lies at its indices in the new ring.
  void move_srq(std::uint32_t srqn, const QueuePlace& ring);
  // Work on its list of tags, done and completed at once. REQUIRES: it has one.
  struct TagWork {
    CqeKind kind{};  // TagAdded, TagRemoved, TagsSynchronized
    std::uint64_t cookie{};
    bool signaled{};
    bool synchronizes{};  // the program has seen `unexpected_seen`
    std::uint32_t unexpected_seen{};
    TagList::Entry entry;  // TagRemoved: its handle
  };
  // Gives the handle of a tag that was added; nothing if the list is full.
  std::optional<std::uint32_t> work_on_tags(std::uint32_t srqn, const TagWork& work, Time now);
  // REQUIRES: no queue pair was created with it.
  void destroy_srq(std::uint32_t srqn);
  std::optional<wire::Qpn> take_qpn();
  void give_back_qpn(wire::Qpn qpn);
  void create_qp(const QpContext& context);
  void destroy_qp(wire::Qpn qpn, Time now);
  // REQUIRES: an allowed transition; `path` counts from RTR on.
  void modify_qp(wire::Qpn qpn, const transport::QpAttributes& attributes, transport::QpState to,
                 const wire::Datagram& path, Time now);
  transport::QpState qp_state(wire::Qpn qpn) const;
  bool is_draining(wire::Qpn qpn) const;
  // Everything to ERR: the device stops.
  void stop(const trace::Reason& why, Time now);

  // A write to a doorbell register in BAR 0 (nic/ring_format.h). Others are ignored.
  void mmio_write(std::uint64_t offset, std::uint64_t value, Time now);

  // Does at most a budget's worth of work. True if there was any. With a caller who comes back at
  // once, what has arrived goes before what is to be sent: the answers leave with his next request,
  // with his next call that finds nothing, or kPutOff later; kOwedFor later (next_deadline) they
  // have to leave whoever calls.
  bool progress(Time now, Caller caller = Caller::MayLeave);
  Time next_deadline() const;
  // Sends what was put off for a caller who comes back.
  void send_owed(Time now);

  // Hears every first cause: which queue pair, and why.
  using FailureListener = std::function<void(wire::Qpn, const trace::Reason&)>;
  void set_failure_listener(FailureListener listener) { on_failure_ = std::move(listener); }
  // Hears, once for each connection, that a queue pair is about to send again for a timeout.
  using SilenceListener = std::function<void(wire::Qpn, const Silence&)>;
  void set_silence_listener(SilenceListener listener) { on_silence_ = std::move(listener); }

  // Queue pair 1 is the device's own. Its listener hears every management datagram that is whole
  // and has the Q_Key; without one they are for nobody.
  struct ManagementDatagram {
    wire::Datagram from;
    wire::Qpn source_qpn{};
    ConstBytes mad;     // wire::kMadBytes
    ConstBytes packet;  // as it came
  };
  using ManagementListener = std::function<void(const ManagementDatagram&, Time now)>;
  void set_management_listener(ManagementListener listener) {
    on_management_ = std::move(listener);
  }
  // Sends one from queue pair 1 to queue pair 1. False: there is no room now.
  bool send_management(const wire::Datagram& path, const wire::CmMadBytes& mad, Time now);

 private:
  static constexpr std::size_t kReceiveBatch = 64;
  static constexpr int kReceiveRounds = 4;  // batches for each progress()
  static constexpr Duration kPutOff = microseconds(20);
  static constexpr Duration kOwedFor = milliseconds(2);
  static constexpr int kSendBudget = 256;  // packets for each progress()
  static constexpr std::size_t kFrames = 128;
  static constexpr std::size_t kBatchBytes = 131072;  // then what is built goes to the link
  static constexpr std::size_t kRawFrames = 32;
  static constexpr std::size_t kPayloadAt = 64;  // in a frame; headers end there
  static_assert(kPayloadAt >= wire::kMaxHeaderBytes);
  static constexpr std::size_t kFrameBytes = kPayloadAt + wire::kMaxMtu + 64;

  struct Slot {
    std::unique_ptr<QueuePair> qp;
    bool active{};                  // in active_
    bool established_told{};        // that the first message came
    bool failure_told{};            // its first cause was reported
    bool end_told{};                // that it takes no more shared receives
    bool silence_told{};            // that a timeout made it send again
    link::Way way{};                // of its last packet, as published
    Time heard_at = Time::never();  // never(): nothing has come to it
    trace::QpCounters seen{};       // when the device's counters last took them over
  };
  // A packet that has passed everything that does not depend on those before it.
  struct Arrived {
    wire::Packet packet;
    Slot* slot{};
    const link::Frame* frame{};  // in received_
  };
  // A frame that is built and not yet taken by the link.
  struct Built {
    ConstBytes bytes;  // in frames_
    wire::Datagram datagram;
    Time ready_at{};
    bool has_icrc{};
  };
  // A queue pair that holds its receives, by its slot, until the device has received what lay there
  // when its peer was shut out.
  struct Held {
    std::uint32_t index{};
    std::vector<local::RingPlace> until;
  };
  // What becomes visible only later (simulated costs).
  struct Later {
    Time at{};
    PendingCqe cqe;
    bool is_end{};  // of a queue pair's shared receives, instead of a completion
  };

  Slot* find(wire::Qpn qpn);
  const Slot* find(wire::Qpn qpn) const;

  // device.cc
  void after_work(Slot& slot, Time now);
  void hold(std::uint32_t index, Time now);
  void forget_held(std::uint32_t index);
  void publish(Slot& slot);
  void set_published_state(wire::Qpn qpn, std::uint32_t state);
  void enter_error(Slot& slot, const trace::Reason& reason, Time now);
  void write_cqe(PendingCqe& pending, Time now);
  void raise_event(EqeKind kind, std::uint32_t object, trace::ReasonId reason, Time now);
  void on_failure(Slot& slot, const trace::Reason& reason, Time now);
  void fail_cq(CompletionQueue& cq, const trace::Reason& why, Time now);
  void fail_qp(Slot& slot, const trace::Reason& why, Time now);
  void tell_end(Slot& slot, Time now);
  void tell_of_shared_queues(Time now);
  void defer(const Later& what);
  void run_deferred(Time now);
  void run_moderation(Time now);
  bool put_off(Time now);

  // device_frames.cc
  void switch_frame(Slot& slot, const QueuePair::Outgoing& outgoing, Time now);
  void steer(ConstBytes frame, const wire::FrameFields& fields, Steering::Who who, Time now);
  bool stays_inside(const wire::FrameFields& fields) const;
  bool is_own_packet(const wire::FrameFields& fields) const;
  std::size_t receive_frames(Time now);
  void send_frames();

  // device_wire.cc
  std::size_t receive(Time now);
  std::optional<wire::Packet> parse(const link::Frame& frame);
  bool is_intact(const link::Frame& frame, const wire::Packet& packet, Time now);
  static bool listens(const QueuePair& qp, const wire::Packet& packet);
  static bool hears(const QueuePair& qp, const wire::Packet& packet);
  void deliver_multicast(const link::Frame& frame, Time now);
  bool examine(const link::Frame& frame, Arrived& into, Time now);
  void note_received(Slot& slot, const Arrived& arrived, Time now);
  void take_notification(const Arrived& arrived, Time now);
  void take_placed(const PlacedNotice& notice, const link::Frame& frame, Time now);
  void flush_held(Time now);
  static std::size_t run_at(std::span<const Arrived> packets);
  void deliver(std::span<const Arrived> run, Time now);
  void deliver_datagram(const Arrived& arrived, Time now);
  void take_management(const link::Frame& frame, const wire::Packet& packet, Time now);
  void drop(wire::Qpn qpn, const wire::Headers& headers, trace::Counter counter, Time now);
  static bool is_from_peer(const QueuePair& qp, const link::Frame& frame);
  bool run_timers(Time now);
  bool transmit(Time now, Turn first = Turn::Responses);
  std::size_t turn_of(const QueuePair& qp, Time now);
  // `turn` packets may be built now, this one included.
  bool build_frame(Slot& slot, Time now, Turn first, std::size_t turn);
  Bytes next_frame(std::size_t header_bytes);
  std::uint64_t close_frame(Bytes frame, std::size_t covered, const wire::Datagram& path,
                            Time ready_at, bool has_icrc = true);
  bool goes_by_memory(Slot& slot, const wire::Datagram& path, wire::Qpn to, Time now);
  void flush_outbox(Time now);
  bool has_room() const { return outbox_.size() < kFrames && raw_waiting_ < kRawFrames; }
  void activate(Slot& slot);
  void count_transport(Slot& slot, Time now);
  void tell_silence(Slot& slot, Time now);

  trace::Tracer& tracer_;
  link::Link& link_;
  pcie::InterruptTarget& interrupts_;
  Tables tables_;
  faults::Injector* faults_;
  SameHost* neighbours_;
  transport::CongestionSettings congestion_;
  KeyTable keys_;
  Multicast multicast_;
  HostMemory memory_;
  SharedReceiveQueues srqs_;
  Steering steering_;
  link::FramePort* frame_port_;
  link::FrameUse frame_use_ = link::FrameUse::None;
  std::array<std::vector<std::byte>, kRawFrames> raw_frames_;  // that leave
  std::size_t raw_waiting_ = 0;  // of these, from the front, for the interface to take
  std::array<ConstBytes, kReceiveBatch> raw_received_;
  std::vector<wire::Gid> addresses_;
  EventQueue events_;
  std::uint32_t first_qpn_;
  FreeList qpns_;
  std::uint32_t cqn_next_ = 1;
  std::unordered_map<std::uint32_t, CompletionQueue> cqs_;
  std::vector<Slot> slots_;  // by QPN - first_qpn_
  std::vector<std::uint32_t> used_slots_;
  std::deque<std::uint32_t> active_;  // slots that may have something to send, in turn
  std::vector<Held> held_;            // whose receives are not flushed yet
  bool is_receiving_ = false;         // what is received is being worked on
  Time timers_at_ = Time::never();    // no deadline of any queue pair is earlier
  Time events_at_ = Time::never();    // no event that a completion queue holds back is due earlier
  Time owed_since_ = Time::never();   // when sending was put off for a caller who comes back
  std::deque<Later> later_;           // by time
  std::deque<Built> outbox_;
  Time refused_at_ = Time::never();  // when the link had no room for what is to leave
  std::vector<std::byte> frames_;    // kFrames of kFrameBytes, and room behind the last one
  wire::IcrcMemory icrcs_;
  std::size_t frame_next_ = 0;
  std::size_t built_bytes_ = 0;  // since the outbox was last flushed
  // Of one batch. Members, since making them anew costs more than a small message.
  std::array<link::Frame, kReceiveBatch> received_;
  std::array<Arrived, kReceiveBatch> arrived_;
  std::array<ConstBytes, kReceiveBatch> ahead_;   // of a run
  std::array<link::Frame, kReceiveBatch> batch_;  // that leaves
  FailureListener on_failure_;
  SilenceListener on_silence_;
  ManagementListener on_management_;
  wire::Psn management_psn_{};
};

}  // namespace softhca::nic
