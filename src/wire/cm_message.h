// CmMad: a datagram of the connection manager as plain values, parsed once; and its bytes.
//
// Management datagrams of class 7 travel as UD SEND-only packets between the queue pairs 1 of two
// ports: 24 bytes of header, 232 of message. A parsed value says all of both but what is reserved.
// Names of members are the specification's, without what the type says. Their times are codes, as
// in wire/time_code.h.
//
// Spec        IBTA vol. 1, 13.4.2 (header), 12.6 (messages: tables 106 ff.), 12.11 (SIDR)
// Invariants  (1) emit owns every bit of its bytes: parse(emit(m)) == m, whatever lay there before
//             (2) each field's place and width are written once, for both directions
#pragma once
#include <array>
#include <cstdint>
#include <variant>

#include "base/bytes.h"
#include "base/result.h"
#include "wire/gid.h"
#include "wire/psn.h"

namespace softhca::wire {

inline constexpr std::size_t kMadBytes = 256;
inline constexpr Qpn kManagementQpn{1};                       // on both sides
inline constexpr std::uint32_t kManagementQkey = 0x80010000;  // of every queue pair 1

// One side's name for a conversation; 0 where there is none.
struct CommId {
  std::uint32_t value{};
  friend constexpr auto operator<=>(CommId, CommId) = default;
};
// What a program listens to. Those of the IP port spaces are in wire/ip_service.h.
struct ServiceId {
  std::uint64_t value{};
  friend constexpr auto operator<=>(ServiceId, ServiceId) = default;
};

// Why a connection is refused (table 109). Reasons of hardware that a RoCE port has not are left
// out; they are numbers like all others.
enum class RejReason : std::uint16_t {
  NoQp = 1,
  NoResources = 3,
  Timeout = 4,
  UnsupportedRequest = 5,
  InvalidCommId = 6,
  InvalidCommInstance = 7,
  InvalidServiceId = 8,
  InvalidTransport = 9,
  StaleConnection = 10,
  InvalidGid = 12,
  InvalidMtu = 26,
  InsufficientResources = 27,
  Consumer = 28,
  RnrRetryCount = 29,
  DuplicateCommId = 30,
};
// Which message an MRA or a REJ is about.
enum class CmSubject : std::uint8_t { Req = 0, Rep = 1, Other = 2 };
enum class SidrStatus : std::uint8_t {
  Valid = 0,
  Unsupported = 1,  // no such service
  Rejected = 2,     // by the program
  NoQp = 3,
  Redirect = 4,
  UnsupportedVersion = 5,
};

// A message ends with bytes of the program, which are always all there.
template <std::size_t N>
using PrivateBytes = std::array<std::byte, N>;
using AdditionalBytes = std::array<std::byte, 72>;

struct CmPath {
  std::uint16_t local_lid{};
  std::uint16_t remote_lid{};
  Gid local_gid{};
  Gid remote_gid{};
  std::uint32_t flow_label{};
  std::uint8_t packet_rate{};
  std::uint8_t traffic_class{};
  std::uint8_t hop_limit{};
  std::uint8_t service_level{};
  bool subnet_local{};
  std::uint8_t ack_timeout{};  // a time
  friend bool operator==(const CmPath&, const CmPath&) = default;
};

// The transport of a REQ (2 would be RD), and of an extended one its extension.
inline constexpr std::uint8_t kCmRc = 0, kCmUc = 1, kCmExtended = 3;
inline constexpr std::uint8_t kCmXrc = 1;

struct CmReq {
  CommId local_id{};
  std::uint32_t vendor_id{};  // ECE, with the header's attribute modifier
  ServiceId service{};
  std::uint64_t ca_guid{};
  std::uint32_t qkey{};
  Qpn qpn{};
  std::uint8_t responder_resources{};
  std::uint32_t local_eecn{};
  std::uint8_t initiator_depth{};
  std::uint32_t remote_eecn{};
  std::uint8_t remote_response_timeout{};  // a time; of who gets the REQ
  std::uint8_t transport{};                // kCmRc, kCmUc, or kCmExtended
  bool flow_control{};
  Psn psn{};
  std::uint8_t local_response_timeout{};  // a time; of who sends it
  std::uint8_t retry_count{};
  std::uint16_t pkey{};
  std::uint8_t path_mtu{};  // 1: 256 ... 5: 4096
  bool rdc_exists{};
  std::uint8_t rnr_retry_count{};
  std::uint8_t max_cm_retries{};
  bool srq{};
  std::uint8_t extended_transport{};  // kCmXrc
  CmPath primary{};
  CmPath alternate{};
  PrivateBytes<92> private_bytes{};
  friend bool operator==(const CmReq&, const CmReq&) = default;
};

// The message has arrived, and its answer takes time.
struct CmMra {
  CommId local_id{};
  CommId remote_id{};
  CmSubject subject{};
  std::uint8_t service_timeout{};  // a time
  PrivateBytes<222> private_bytes{};
  friend bool operator==(const CmMra&, const CmMra&) = default;
};

struct CmRej {
  CommId local_id{};
  CommId remote_id{};
  CmSubject subject{};
  std::uint8_t additional_length{};
  RejReason reason{};
  AdditionalBytes additional{};
  PrivateBytes<148> private_bytes{};
  friend bool operator==(const CmRej&, const CmRej&) = default;
};

struct CmRep {
  CommId local_id{};
  CommId remote_id{};
  std::uint32_t qkey{};
  Qpn qpn{};
  std::uint32_t vendor_id{};  // ECE, in three places
  std::uint32_t local_eecn{};
  Psn psn{};
  std::uint8_t responder_resources{};
  std::uint8_t initiator_depth{};
  std::uint8_t target_ack_delay{};  // a time
  std::uint8_t failover{};          // 1: alternate paths are not supported
  bool flow_control{};
  std::uint8_t rnr_retry_count{};
  bool srq{};
  std::uint64_t ca_guid{};
  PrivateBytes<196> private_bytes{};
  friend bool operator==(const CmRep&, const CmRep&) = default;
};

struct CmRtu {
  CommId local_id{};
  CommId remote_id{};
  PrivateBytes<224> private_bytes{};
  friend bool operator==(const CmRtu&, const CmRtu&) = default;
};

struct CmDreq {
  CommId local_id{};
  CommId remote_id{};
  Qpn remote_qpn{};
  PrivateBytes<220> private_bytes{};
  friend bool operator==(const CmDreq&, const CmDreq&) = default;
};

struct CmDrep {
  CommId local_id{};
  CommId remote_id{};
  PrivateBytes<224> private_bytes{};
  friend bool operator==(const CmDrep&, const CmDrep&) = default;
};

// Which queue pair serves datagrams of a service.
struct CmSidrReq {
  CommId request_id{};
  std::uint16_t pkey{};
  ServiceId service{};
  PrivateBytes<216> private_bytes{};
  friend bool operator==(const CmSidrReq&, const CmSidrReq&) = default;
};

struct CmSidrRep {
  CommId request_id{};
  SidrStatus status{};
  std::uint8_t additional_length{};
  std::uint32_t vendor_id{};  // ECE, in two places
  Qpn qpn{};
  ServiceId service{};
  std::uint32_t qkey{};
  AdditionalBytes additional{};
  PrivateBytes<136> private_bytes{};
  friend bool operator==(const CmSidrRep&, const CmSidrRep&) = default;
};

// In the order of their attribute ids, which begin with kFirstCmAttribute.
using CmMessage =
    std::variant<CmReq, CmMra, CmRej, CmRep, CmRtu, CmDreq, CmDrep, CmSidrReq, CmSidrRep>;
inline constexpr std::uint16_t kFirstCmAttribute = 0x10;

struct CmMad {
  std::uint64_t transaction{};
  std::uint32_t modifier{};  // of the attribute: ECE's options
  CmMessage message{};
  friend bool operator==(const CmMad&, const CmMad&) = default;
};

enum class CmParseError : std::uint8_t {
  WrongLength,
  NotCm,             // another class, version or method
  UnknownAttribute,  // also LAP and APR: there are no alternate paths here
};

// `mad` is the whole payload of the packet. Reserved bits are ignored.
Result<CmMad, CmParseError> parse_cm(ConstBytes mad);

using CmMadBytes = std::array<std::byte, kMadBytes>;
CmMadBytes emit_cm(const CmMad& mad);

}  // namespace softhca::wire
