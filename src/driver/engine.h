// Engine: what kernel and provider do for one device: memory, keys, queues, progress.
//
// The same engine runs live (live/live_device.h gives it a clock, a lock and a thread) and in a
// simulated world. It is pure: time comes in as an argument, memory, bus and cable as parts.
//
// Threads     owned by one caller at a time; no locks inside (CompletionQueue::poll excepted)
// Invariants  (1) every pin and mapping made here is undone when its object goes
//             (2) an object with dependants is not destroyed (ObjectBusy)
// See also    ARCHITECTURE.md, "The life of one RDMA WRITE"
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/range.h"
#include "base/result.h"
#include "driver/attributes.h"
#include "driver/completion_queue.h"
#include "driver/queue_pair.h"
#include "driver/shared_receive_queue.h"
#include "nic/caller.h"
#include "nic/completion_queue.h"
#include "nic/key_table.h"
#include "nic/steering.h"

namespace softhca::driver {

struct EngineParts;  // driver/engine_parts.h: RAM, pins, IOMMU, bus, cable, tables
struct EngineState;
class Connections;    // driver/connections.h
struct FileIdentity;  // driver/engine_parts.h

class Engine {
 public:
  explicit Engine(EngineParts parts);
  ~Engine();

  // Protection domains. FAILS WITH LimitExceeded; ObjectBusy
  Result<std::uint32_t, trace::Reason> alloc_pd();
  Result<void, trace::Reason> dealloc_pd(std::uint32_t pd);

  // Registers [start, +length) under `io_address`, the address that peers and SGEs will use
  // (usually the same number as start; with ZeroBased it is 0). With OnDemand nothing is pinned,
  // and 2^64 - 1 bytes at 0 are all of the program's memory. `caller` is where the program
  // calls, for people; 0: unknown. FAILS WITH NotHugePages,
  // OnDemandUntranslated, HoleInRange, PageReadOnly, MemlockExceeded,
  // BadAccessFlags, BadLength, SpecialMapping, KeysExhausted, AddressesExhausted, PageOffsetDiffers
  Result<Region, trace::Reason> register_memory(std::uint32_t pd, VirtAddr start,
                                                std::uint64_t length, WireAddr io_address,
                                                AccessFlags access, Time now,
                                                std::uint64_t caller = 0);
  // FAILS WITH RegionHasWindows
  Result<void, trace::Reason> deregister_memory(wire::Key key, Time now);

  // Registers memory that is mapped for as long as the region lives, whatever the program does, and
  // that needs no pins: a dma-buf. REQUIRES: a live process.
  // FAILS WITH BadAccessFlags, BadLength, PageOffsetDiffers, KeysExhausted, AddressesExhausted
  Result<Region, trace::Reason> register_mapped(std::uint32_t pd, Bytes memory, WireAddr io_address,
                                                AccessFlags access, Time now);
  // A first cause that the engine was not asked about, for whoever listens.
  void tell(std::string_view what, const trace::Reason& reason) const;

  // Maps pages of on-demand regions before they are asked for. Without `wait` pages that cannot be
  // had are no failure. FAILS WITH AdviceOnOtherRegion, AdviceOutOfBounds; waiting, also what
  // register_memory says about pages
  Result<void, trace::Reason> advise(std::uint32_t pd, Prefetch how, std::span<const Sge> about,
                                     bool wait, Time now);

  // Memory on the device: `handle` names it. Zeroed, at a multiple of 2^log_alignment bytes.
  // FAILS WITH BadLength, AttributeOutOfRange, DeviceMemoryExhausted; ObjectBusy
  Result<std::uint32_t, trace::Reason> alloc_dm(std::uint64_t bytes, std::uint32_t log_alignment);
  Result<void, trace::Reason> free_dm(std::uint32_t handle);
  // FAILS WITH OutOfBounds, DeviceMemoryAlignment
  Result<void, trace::Reason> copy_to_dm(std::uint32_t handle, std::uint64_t offset,
                                         ConstBytes from);
  Result<void, trace::Reason> copy_from_dm(std::uint32_t handle, std::uint64_t offset, Bytes to);
  static trace::Reason check_dm_copy(std::uint64_t dm_bytes, std::uint64_t offset,
                                     std::uint64_t bytes);
  // A region of it, whose addresses begin at zero; an empty one is allowed. FAILS WITH OutOfBounds,
  // BadAccessFlags, ZeroBasedMissing, KeysExhausted
  struct DeviceRange {
    std::uint32_t handle{};
    std::uint64_t offset{};
    std::uint64_t bytes{};
  };
  Result<Region, trace::Reason> register_dm(std::uint32_t pd, const DeviceRange& range,
                                            AccessFlags access, Time now);
  // Changes a region under its key. On failure it is what it was.
  // FAILS WITH what register_memory says; RegionHasWindows
  struct RegionChange {
    std::optional<std::uint32_t> pd;
    std::optional<Range<VirtSpace>> buffer;  // its I/O address is the buffer's own
    std::optional<AccessFlags> access;
  };
  Result<void, trace::Reason> change_memory(wire::Key key, const RegionChange& change, Time now);
  // A region of every address without a byte: reads as zeros, forgets what is written. For local
  // use alone. FAILS WITH KeysExhausted
  Result<wire::Key, trace::Reason> register_nothing(std::uint32_t pd);

  // Memory windows; a window that is bound is unbound. They are bound by post_send.
  // FAILS WITH WindowsExhausted
  Result<wire::Key, trace::Reason> alloc_window(std::uint32_t pd, nic::WindowType type);
  void dealloc_window(wire::Key window);
  // All windows of a region: whoever owned them has left them behind.
  void unbind_windows(wire::Key region);

  // The first region ever registered here, as an example for people.
  struct RegionExample {
    VirtAddr start;
    BusAddr bus;  // of its first byte
    std::uint64_t bytes{};
    std::uint64_t pages{};
    std::uint64_t leaves{};
  };
  std::optional<RegionExample> first_region() const;

  // Completion queues. `events` hears completion and error events; may be null.
  struct CompletionQueueSpec {
    std::uint32_t entries{};
    EventSink* events{};
    bool loses_overrun{};  // a completion without room is lost, and the queue does not fail
    Bytes lent{};          // memory of the program for its ring; empty: the driver's own
  };
  // How many bytes can be lent for its ring; 0 for a queue that cannot be.
  static std::uint64_t ring_bytes(const CompletionQueueSpec& spec);
  Result<CompletionQueue*, trace::Reason> create_cq(const CompletionQueueSpec& spec, Time now);
  Result<CompletionQueue*, trace::Reason> create_cq(std::uint32_t entries, EventSink* events,
                                                    Time now) {
    return create_cq({.entries = entries, .events = events}, now);
  }
  // Makes it hold at least `entries`; what was not polled stays, in order.
  // FAILS WITH AttributeOutOfRange, CompletionsUnpolled (more than that are not polled yet)
  Result<void, trace::Reason> resize_cq(CompletionQueue& cq, std::uint32_t entries, Time now);
  // See nic::Moderation.
  void moderate_cq(CompletionQueue& cq, const nic::Moderation& rule, Time now);
  Result<void, trace::Reason> destroy_cq(CompletionQueue& cq, Time now);
  // The next completion (or, solicited_only, the next solicited or failed one) raises an event.
  void arm_cq(CompletionQueue& cq, bool solicited_only, Time now);

  struct QueuePairSpec {
    std::uint32_t pd{};
    transport::QpType type = transport::QpType::Rc;
    CompletionQueue* send_cq{};
    CompletionQueue* receive_cq{};
    SharedReceiveQueue* srq{};  // null: receives of its own
    std::uint32_t xrcd{};       // XRC targets, which have neither domain nor completion queues
    QueueCapacity capacity;
    bool signal_all{};
    EventSink* events{};
    // Raw packets. A work queue is the receiving half of one; a queue pair with such ones behind
    // it spreads its frames over them, as often as each is named, and receives none itself.
    bool is_work_queue{};
    std::vector<QueuePair*> spread_over = {};  // a power of two
    nic::Spreading spreading = {};
    struct Lent {  // as that of a completion queue
      Bytes send{};
      Bytes receive{};
    } lent = {};
  };
  struct RingBytes {
    std::uint64_t send{};
    std::uint64_t receive{};
  };
  static RingBytes ring_bytes(const QueuePairSpec& spec);
  // FAILS WITH LimitExceeded, OpcodeNotSupported (service), InlineTooLong, TooManySges,
  // SharedQueueOtherDomain, SharedQueueKind, RawNotPermitted
  Result<QueuePair*, trace::Reason> create_qp(const QueuePairSpec& spec, Time now);
  Result<void, trace::Reason> modify_qp(QueuePair& qp, const transport::QpAttributes& attributes,
                                        transport::QpAttributeMask mask, Time now);
  transport::QpAttributes query_qp(const QueuePair& qp) const;
  // FAILS WITH ObjectBusy (it has flow rules)
  Result<void, trace::Reason> destroy_qp(QueuePair& qp, Time now);
  // The XRC target `qpn` of the domain, for one more holder; null if there is none.
  QueuePair* open_qp(std::uint32_t xrcd, wire::Qpn qpn, EventSink* events);
  // One holder gives it up; with the last one it is destroyed.
  Result<void, trace::Reason> close_qp(QueuePair& qp, EventSink* events, Time now);

  // Shared receive queues; with an XRC domain and a completion queue, or with neither.
  struct SrqSpec {
    std::uint32_t pd{};
    std::uint32_t xrcd{};
    CompletionQueue* cq{};
    SrqCapacity capacity;
    EventSink* events{};
    Bytes lent = {};  // as that of a completion queue
  };
  static std::uint64_t ring_bytes(const SrqSpec& spec);
  // FAILS WITH LimitExceeded, AttributeOutOfRange, SharedQueueKind
  Result<SharedReceiveQueue*, trace::Reason> create_srq(const SrqSpec& spec, Time now);
  // FAILS WITH SharedQueueTooSmall, AttributeOutOfRange
  Result<void, trace::Reason> resize_srq(SharedReceiveQueue& srq, std::uint32_t requests, Time now);
  // Tells once when fewer than `limit` are waiting; 0: never. FAILS WITH SharedQueueTooSmall
  Result<void, trace::Reason> arm_srq(SharedReceiveQueue& srq, std::uint32_t limit, Time now);
  // FAILS WITH ObjectBusy: queue pairs were created with it
  Result<void, trace::Reason> destroy_srq(SharedReceiveQueue& srq, Time now);

  // XRC domains: the one of a file, or a new one. Each opening is closed once.
  struct XrcdOpening {
    bool create{};
    bool exclusive{};
  };
  // FAILS WITH LimitExceeded, XrcDomainExists, XrcDomainMissing, XrcDomainElsewhere
  Result<std::uint32_t, trace::Reason> open_xrcd(const std::optional<FileIdentity>& file,
                                                 XrcdOpening how);
  Result<void, trace::Reason> close_xrcd(std::uint32_t xrcd);  // FAILS WITH ObjectBusy

  // Flow rules: which frames come to a raw packet queue pair.
  // FAILS WITH FlowNotRaw, LimitExceeded
  Result<nic::Steering::Id, trace::Reason> create_flow(const QueuePair& qp, nic::FlowRule rule);
  void destroy_flow(nic::Steering::Id flow);

  // Datagrams to a multicast group come to the queue pair too; to attach it twice changes nothing.
  // FAILS WITH NotMulticast, MulticastService, LimitExceeded, UdpPortTaken, NoInterface
  Result<void, trace::Reason> attach_multicast(QueuePair& qp, const wire::Gid& group);
  // FAILS WITH NotAttached
  Result<void, trace::Reason> detach_multicast(QueuePair& qp, const wire::Gid& group);
  // From all groups: whoever attached it has left it behind.
  void detach_all(QueuePair& qp);

  // Whether packets can be addressed so.
  // FAILS WITH NoGrh, GidIndexUnset, DestinationGidZero, GidFamilyDiffers
  trace::Reason check_address(const transport::AddressVector& address) const;

  // Posts one work request and rings the doorbell when `more` is false.
  // FAILS WITH QueueFull, QpNotReady, TooManySges, InlineTooLong, MessageTooLong,
  // OpcodeNotSupported; datagrams also with what check_address and the path to a peer say
  Result<void, trace::Reason> post_send(QueuePair& qp, const SendRequest& request, bool more,
                                        Time now);
  Result<void, trace::Reason> post_receive(QueuePair& qp, const ReceiveRequest& request, bool more,
                                           Time now);
  Result<void, trace::Reason> post_receive(SharedReceiveQueue& srq, const ReceiveRequest& request,
                                           bool more, Time now);
  // Gives the handle of a tag that was added. FAILS WITH QueueFull, TooManySges, SharedQueueKind
  Result<std::uint32_t, trace::Reason> post_tags(SharedReceiveQueue& srq, const TagRequest& request,
                                                 Time now);
  // Rings the doorbells of what was posted with `more`.
  void ring_send_doorbell(QueuePair& qp, Time now);
  void ring_receive_doorbell(QueuePair& qp, Time now);
  void ring_receive_doorbell(SharedReceiveQueue& srq, Time now);

  // A program is gone: destroys what it made and left behind, as a kernel does when it closes a
  // dead program's device. Queue pairs first, so that nothing of it answers any more; then regions,
  // completion queues and protection domains.
  void release_program(std::uint32_t program, Time now);

  // Receives, runs timers, sends; does at most a budget's worth. True if it did anything.
  bool progress(Time now, nic::Caller caller = nic::Caller::MayLeave);
  // Sends what was put off for a caller who comes back.
  void send_owed(Time now);
  // When progress is needed although nothing arrives. never() if not.
  Time next_deadline() const;

  // The port and its addresses; live they are refreshed from the interface.
  // Tells contexts what of it has changed.
  void set_port(const PortAttributes& port, std::vector<GidEntry> gids);
  const PortAttributes& port() const;
  std::span<const GidEntry> gids() const;

  // Stops the device as a broken one would: every queue pair to ERR, DeviceFatal to every sink.
  void stop(const trace::Reason& why, Time now);
  bool stopped() const;

  // The connection manager of the port; made when it is first asked for.
  Connections& connections();
  bool has_connections() const;
  void add_sink(EventSink& sink);  // hears device and port events
  void remove_sink(EventSink& sink);

  // Tells of a call that was refused before it came here, once for each reason.
  void tell_refused(std::string_view call, const trace::Reason& reason);
  // Tells of what has not failed, and may.
  void warn(std::string_view what, const trace::Reason& reason, std::string_view particulars) const;
  // Every reason that is a first cause goes here too (live: one line on stderr), and warnings.
  // `particulars` are sentences about the objects concerned, or nothing.
  using ReasonListener = std::function<void(trace::Telling how, std::string_view what,
                                            const trace::Reason&, std::string_view particulars)>;
  void set_reason_listener(ReasonListener listener);

 private:
  trace::Reason check_spec(const QueuePairSpec& spec) const;
  trace::Reason open_addresses(const QueuePair& qp) const;
  trace::Reason check_room(const QueuePair& qp);
  std::uint32_t slots_given_back(const QueuePair& qp, CompletionQueue::Side side) const;
  Result<std::size_t, trace::Reason> store_address(const QueuePair& qp, const DatagramTarget& to,
                                                   Bytes slot) const;

  std::unique_ptr<EngineState> state_;
};

}  // namespace softhca::driver
