// The formats that driver and device share in host memory: WQEs, CQEs, EQEs; and the doorbells.
//
// Little-endian records without pointers. The device reads a record once, by DMA, into a copy of
// its own, and checks that copy: what the program does to its memory meanwhile does not matter.
//
//   send ring      slots of `stride` bytes: SendWqe, for datagrams an AddressSegment, then Segments
//                  or inline bytes
//   receive ring   slots of `stride` bytes: ReceiveWqe, then Segments
//   completion     Cqe slots, a power of two of them; `lap` tells a new one from an old one
//   event          Eqe slots, likewise
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace softhca::nic {

// A scatter-gather entry.
struct Segment {
  std::uint64_t address{};
  std::uint32_t bytes{};
  std::uint32_t lkey{};
};
static_assert(sizeof(Segment) == 16);

enum class WqeFlag : std::uint8_t { Fence = 1, Signaled = 2, Solicited = 4, Inline = 8 };

struct SendWqe {
  std::uint64_t cookie{};  // comes back in the CQE
  std::uint64_t remote_address{};
  std::uint32_t rkey{};
  std::uint32_t immediate{};
  std::uint32_t index{};  // of the work request, counted from 0; a stale slot has another
  std::uint8_t opcode{};  // transport::WorkOpcode
  std::uint8_t flags{};   // WqeFlag
  std::uint16_t segments{};
  std::uint32_t inline_bytes{};
  std::uint32_t xrc_srqn{};  // XRC: the shared receive queue of the peer
  // Atomics. Binding a window: bytes; access flags in the lower half and the window's key as it was
  // in the upper one. Where it begins, the new key and the region's are remote_address, rkey and
  // immediate.
  std::uint64_t swap_or_add{};
  std::uint64_t compare{};
  std::uint64_t reserved2{};
};
static_assert(sizeof(SendWqe) == 64 && std::has_unique_object_representations_v<SendWqe>);

// Where a datagram goes, and from where: what the driver made of an address handle.
struct AddressSegment {
  std::uint8_t source[16]{};  // GIDs
  std::uint8_t destination[16]{};
  std::uint32_t qpn{};
  std::uint32_t qkey{};
  std::uint32_t flow_label{};
  std::uint32_t pd{};  // of the address handle
  std::uint16_t source_port{};
  std::uint8_t hop_limit{};
  std::uint8_t traffic_class{};
  std::uint32_t reserved[3]{};
};
static_assert(sizeof(AddressSegment) == 64);
static_assert(std::has_unique_object_representations_v<AddressSegment>);

struct ReceiveWqe {
  std::uint64_t cookie{};
  std::uint32_t index{};
  std::uint32_t segments{};
};
static_assert(sizeof(ReceiveWqe) == 16);

enum class CqeKind : std::uint8_t {
  Send = 0,
  Write = 1,
  Read = 2,
  CompareSwap = 3,
  FetchAdd = 4,
  BindWindow = 5,
  LocalInvalidate = 6,
  AtomicWrite = 9,
  Receive = 128,
  ReceiveWrite = 129,
  TagAdded = 130,
  TagRemoved = 131,
  TagsSynchronized = 132,
  ReceiveTagged = 133,
  ReceiveUntagged = 134,
};
enum class CqeFlag : std::uint8_t {
  Immediate = 1,
  Solicited = 2,
  NetworkHeader = 4,
  Invalidated = 8,
  WantsSync = 16,    // tag lists: the program has not seen all unexpected messages
  TagMatched = 32,   // a message that a tag waited for
  TagDataHere = 64,  // and its data is in place
};

struct Cqe {
  std::uint64_t cookie{};
  std::uint32_t qpn{};
  std::uint32_t work{};
  std::uint32_t byte_count{};
  std::uint32_t immediate{};  // or the key that was invalidated
  std::uint16_t reason{};     // trace::ReasonId
  std::uint8_t status{};      // transport::Status
  std::uint8_t kind{};        // CqeKind
  std::uint8_t flags{};       // CqeFlag
  std::uint8_t reserved[3]{};
  std::uint64_t time_ps{};
  std::uint64_t tag{};         // of a message that was matched
  std::uint32_t source_qpn{};  // of a datagram
  std::uint32_t flow_tag{};  // of a raw frame: what its flow rule says; of a tag: its private word
  std::uint64_t lap{};       // 1 + position / slots: written last; 0 in a fresh ring
};
static_assert(sizeof(Cqe) == 64 && offsetof(Cqe, lap) == 56);
static_assert(std::has_unique_object_representations_v<Cqe>);

// Behind the last slot of a completion ring: how many entries the program has taken off.
inline constexpr std::size_t kCqDoorbellRecordBytes = 64;

enum class EqeKind : std::uint32_t {
  Completion = 1,
  CqError = 2,
  QpFatal = 3,
  QpRequestError = 4,
  QpAccessError = 5,
  QpLastWqe = 6,
  SrqError = 7,
  SrqLimit = 8,
  Established = 9,
  SqDrained = 10,
};

struct Eqe {
  std::uint32_t kind{};    // EqeKind
  std::uint32_t object{};  // CQN, QPN or SRQN
  std::uint32_t reason{};  // trace::ReasonId
  std::uint32_t lap{};     // 1 + position / slots, modulo 2^32
};
static_assert(sizeof(Eqe) == 16 && std::has_unique_object_representations_v<Eqe>);

// MMIO: one 64-bit register for each doorbell of each queue, at an offset in BAR 0.
enum class Doorbell : std::uint32_t { Send = 0, Receive = 1, ArmCq = 2, SharedReceive = 3 };

// Send, Receive: `object` is a QPN, the value the number of requests posted so far (modulo 2^32).
// SharedReceive: likewise, with an SRQN.
// ArmCq: `object` is a CQN, the value 1 for any completion, 2 for solicited ones.
constexpr std::uint64_t doorbell_offset(Doorbell doorbell, std::uint32_t object) {
  return (std::uint64_t{object} << 2 | static_cast<std::uint32_t>(doorbell)) * 8;
}

}  // namespace softhca::nic
