// Attributes: what the driver's C++ API takes and gives, in the field's terms.
//
// Numbers of states, statuses, opcodes and access flags are those of the verbs specification, so
// that abi/ converts by casting; nothing here depends on a verbs header.
//
// Spec  IBTA vol. 1, 11.2 (verbs), 10.3.1 (queue pair states); man pages of libibverbs
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/clock.h"
#include "base/flags.h"
#include "nic/limits.h"
#include "trace/reason.h"
#include "transport/attributes.h"
#include "wire/gid.h"
#include "wire/psn.h"

namespace softhca::driver {

// As ibv_access_flags. Optional bits (0x3ff00000) are accepted and ignored.
enum class Access : std::uint32_t {
  LocalWrite = 1,
  RemoteWrite = 2,
  RemoteRead = 4,
  RemoteAtomic = 8,
  MwBind = 16,
  ZeroBased = 32,
  OnDemand = 64,
  HugeTlb = 128,
  RelaxedOrdering = 1u << 20,
};
using AccessFlags = Flags<Access>;

enum class PortState : std::uint8_t { Down = 1, Active = 4 };  // as ibv_port_state

struct PortAttributes {
  PortState state{};
  std::uint32_t max_mtu{};     // bytes: 256 ... 4096
  std::uint32_t active_mtu{};  // bytes; the largest whose packets fit the interface
  std::uint32_t interface_mtu{};
  std::uint32_t gid_table_length{};
  std::uint64_t speed_mbps{};  // 0: unknown
  std::uint32_t max_message_bytes{};
  trace::Reason down{};  // why, if Down
};

inline constexpr std::uint32_t kPortCapabilities = 1u << 26;  // IBV_PORT_IP_BASED_GIDS
inline constexpr std::uint16_t kDefaultPkey = 0xffff;         // the only one

struct GidEntry {
  std::uint32_t index{};
  wire::Gid gid;
  friend bool operator==(const GidEntry&, const GidEntry&) = default;
};

// A device of this host, opened or not.
struct DeviceDescription {
  std::string name;       // "softhca0"
  std::string interface;  // "eth0"
  std::uint32_t interface_index{};
  std::uint32_t ordinal{};  // position in the list, from 0
  std::uint64_t guid{};     // stable, not 0; as a number, most significant byte first
  bool loopback{};
  PortAttributes port;
  std::vector<GidEntry> gids;  // filled slots, by index; the table has at least one empty slot
};

struct Region {
  wire::Key key;  // lkey and rkey
  VirtAddr start;
  std::uint64_t length{};
  bool counted_not_pinned{};
};

// What advice about an on-demand region asks for: pages for the device to read or to write, or only
// those that are in memory anyway.
enum class Prefetch : std::uint8_t { ForReading, ForWriting, PresentOnly };

// One scatter-gather entry as the program gave it.
struct Sge {
  std::uint64_t address{};
  std::uint32_t length{};
  std::uint32_t lkey{};
};

enum class SendFlag : std::uint8_t {
  Fence = 1,
  Signaled = 2,
  Solicited = 4,
  Inline = 8
};  // ibv_send_flags
using SendFlags = Flags<SendFlag>;

// Where a datagram goes: an address handle, and the queue pair there.
struct DatagramTarget {
  transport::AddressVector address;
  std::uint32_t pd{};  // of the address handle
  wire::Qpn qpn;
  std::uint32_t qkey{};
};

// What a memory window is to open, for peers.
struct WindowBind {
  wire::Key window;   // as it is now
  wire::Key new_key;  // from then on; of the window's index
  wire::Key region;
  std::uint64_t address{};
  std::uint64_t length{};  // 0: nothing any more (type 1)
  AccessFlags access;      // remote rights; ZeroBased (type 2)
};

struct SendRequest {
  std::uint64_t wr_id{};
  transport::WorkOpcode opcode{};
  SendFlags flags;
  std::span<const Sge> sges;
  std::uint32_t immediate{};  // host order of the 32 bits on the wire
  std::uint64_t remote_address{};
  wire::Key rkey;               // or the key to invalidate
  std::uint32_t xrc_srqn{};     // XRC: the peer's shared receive queue
  std::uint64_t swap_or_add{};  // atomics; numbers of this host, as memory holds them
  std::uint64_t compare{};
  DatagramTarget target{};  // datagrams
  WindowBind bind{};        // BindWindow
};

struct ReceiveRequest {
  std::uint64_t wr_id{};
  std::span<const Sge> sges;
};

// As ibv_wc_opcode.
enum class CompletionOpcode : std::uint8_t {
  Send = 0,
  RdmaWrite = 1,
  RdmaRead = 2,
  CompareSwap = 3,
  FetchAdd = 4,
  BindWindow = 5,
  LocalInvalidate = 6,
  AtomicWrite = 9,
  Receive = 128,
  ReceiveRdmaWithImmediate = 129,
  TagAdded = 130,
  TagRemoved = 131,
  TagsSynchronized = 132,
  ReceiveTagged = 133,
  ReceiveUntagged = 134,
};

// One completion. On an error only wr_id, status, qpn and reason mean anything; the rest is 0.
struct Completion {
  std::uint64_t wr_id{};
  transport::Status status{};
  CompletionOpcode opcode{};
  bool with_immediate{};
  trace::ReasonId reason{};  // the program sees it as vendor_err
  wire::Qpn qpn;
  std::uint32_t byte_count{};
  std::uint32_t immediate{};      // host order of the 32 bits on the wire
  bool with_network_header = {};  // of 40 bytes, in front of the message
  wire::Qpn source_qpn = {};      // of a datagram
  std::uint32_t flow_tag =
      {};                  // of a raw frame: what its flow rule says; of a tag: its private word
  std::uint64_t tag = {};  // of a message that was matched
  bool wants_sync = {};    // tag lists: unexpected messages were not seen
  bool tag_matched = {};
  bool tag_data_here = {};
  Time at = {};                 // by the device's clock
  bool with_invalidation = {};  // of the key in `immediate`
};

// As ibv_event_type.
enum class AsyncEventType : std::uint8_t {
  CqError = 0,
  QpFatal = 1,
  QpRequestError = 2,
  QpAccessError = 3,
  CommunicationEstablished = 4,
  SqDrained = 5,
  DeviceFatal = 8,
  PortActive = 9,
  PortError = 10,
  SrqError = 14,
  SrqLimitReached = 15,
  LastWqeReached = 16,
  GidChange = 18,
};

struct QueueCapacity {
  std::uint32_t send_requests{};
  std::uint32_t receive_requests{};
  std::uint32_t send_sges{};
  std::uint32_t receive_sges{};
  std::uint32_t inline_bytes{};
};

class CompletionQueue;
class QueuePair;
class SharedReceiveQueue;

// Who hears of events. Called with the device owned: it must return at once and not call back.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void completion_event(CompletionQueue& cq) = 0;
  // `qp` or `cq` is the object concerned; both null for device and port events.
  virtual void async_event(AsyncEventType type, QueuePair* qp, CompletionQueue* cq,
                           const trace::Reason& reason) = 0;
  // About a shared receive queue.
  virtual void srq_event(AsyncEventType, SharedReceiveQueue&, const trace::Reason&) {}
};

}  // namespace softhca::driver
