// Attributes of a queue pair, and the numbers that verbs give to states, statuses and opcodes.
//
// Spec  IBTA vol. 1, 10.3.1 (states), 11.6.2 (completion status); numbers as in libibverbs
#pragma once
#include <cstdint>

#include "base/clock.h"
#include "base/flags.h"
#include "wire/gid.h"
#include "wire/psn.h"
#include "wire/time_code.h"

namespace softhca::transport {

enum class QpState : std::uint8_t {
  Reset = 0,
  Init = 1,
  Rtr = 2,
  Rts = 3,
  Sqd = 4,
  Sqe = 5,
  Error = 6
};
// As ibv_qp_type. An XRC connection has two ends of different kinds.
enum class QpType : std::uint8_t {
  Rc = 2,
  Uc = 3,
  Ud = 4,
  RawPacket = 8,
  XrcSend = 9,
  XrcReceive = 10
};

constexpr bool is_xrc(QpType type) { return type == QpType::XrcSend || type == QpType::XrcReceive; }

enum class Status : std::uint8_t {
  Success = 0,
  LocalLength = 1,
  LocalQpOperation = 2,
  LocalProtection = 4,
  Flushed = 5,
  MwBind = 6,
  BadResponse = 7,
  LocalAccess = 8,
  RemoteInvalidRequest = 9,
  RemoteAccess = 10,
  RemoteOperation = 11,
  RetriesExceeded = 12,
  RnrRetriesExceeded = 13,
  TagList = 22,
};

// As ibv_wr_opcode.
enum class WorkOpcode : std::uint8_t {
  Write = 0,
  WriteImm = 1,
  Send = 2,
  SendImm = 3,
  Read = 4,
  CompareSwap = 5,
  FetchAdd = 6,
  LocalInvalidate = 7,
  BindWindow = 8,
  SendInvalidate = 9,
  AtomicWrite = 15,
};
inline constexpr std::uint32_t kAtomicBytes = 8;  // what an atomic works on, and brings back

constexpr bool is_atomic(WorkOpcode opcode) {
  return opcode == WorkOpcode::CompareSwap || opcode == WorkOpcode::FetchAdd;
}
// What comes back is bytes for the requester's memory.
constexpr bool brings_bytes(WorkOpcode opcode) {
  return opcode == WorkOpcode::Read || is_atomic(opcode);
}
// An ACK alone does not complete it; it takes one of the responder's resources
// (max_dest_rd_atomic).
constexpr bool awaits_response(WorkOpcode opcode) {
  return brings_bytes(opcode) || opcode == WorkOpcode::AtomicWrite;
}
constexpr bool is_send(WorkOpcode opcode) {
  return opcode == WorkOpcode::Send || opcode == WorkOpcode::SendImm ||
         opcode == WorkOpcode::SendInvalidate;
}
// Work on the device's own keys: nothing is sent.
constexpr bool is_local(WorkOpcode opcode) {
  return opcode == WorkOpcode::LocalInvalidate || opcode == WorkOpcode::BindWindow;
}
// Whether a queue pair of this service takes such work (IBTA table 76).
constexpr bool is_offered(QpType type, WorkOpcode opcode) {
  if (type == QpType::XrcReceive) return false;
  switch (opcode) {
    case WorkOpcode::Send:
      return true;
    case WorkOpcode::SendImm:
      return type != QpType::RawPacket;
    case WorkOpcode::Write:
    case WorkOpcode::WriteImm:
    case WorkOpcode::LocalInvalidate:
    case WorkOpcode::BindWindow:
      return type != QpType::RawPacket && type != QpType::Ud;
    case WorkOpcode::Read:
    case WorkOpcode::CompareSwap:
    case WorkOpcode::FetchAdd:
    case WorkOpcode::SendInvalidate:
    case WorkOpcode::AtomicWrite:
      return type != QpType::RawPacket && type != QpType::Ud && type != QpType::Uc;
  }
  return false;
}

// As ibv_qp_attr_mask.
enum class QpAttribute : std::uint32_t {
  State = 1u << 0,
  CurrentState = 1u << 1,
  EnableSqdNotify = 1u << 2,
  AccessFlags = 1u << 3,
  PkeyIndex = 1u << 4,
  Port = 1u << 5,
  Qkey = 1u << 6,
  AddressVector = 1u << 7,
  PathMtu = 1u << 8,
  Timeout = 1u << 9,
  RetryCount = 1u << 10,
  RnrRetry = 1u << 11,
  RqPsn = 1u << 12,
  MaxReads = 1u << 13,
  AlternatePath = 1u << 14,
  MinRnrTimer = 1u << 15,
  SqPsn = 1u << 16,
  MaxDestReads = 1u << 17,
  PathMigState = 1u << 18,
  Capacity = 1u << 19,
  DestQpn = 1u << 20,
  RateLimit = 1u << 25,
};
using QpAttributeMask = Flags<QpAttribute>;

struct AddressVector {
  bool is_global{};
  wire::Gid destination;
  std::uint8_t source_gid_index{};
  std::uint32_t flow_label{};
  std::uint8_t hop_limit{};
  std::uint8_t traffic_class{};
  std::uint8_t service_level{};
  std::uint8_t port{};
  friend bool operator==(const AddressVector&, const AddressVector&) = default;
};

// Every attribute of a queue pair, as set and as queried (CASES C69: given back unchanged).
struct QpAttributes {
  QpState state = QpState::Reset;
  std::uint32_t access_flags{};  // remote rights, as ibv_access_flags
  std::uint16_t pkey_index{};
  std::uint8_t port{};
  std::uint32_t qkey{};
  AddressVector address;
  std::uint32_t path_mtu_bytes{};
  std::uint8_t timeout{};      // 0: no time-out; else a code as in wire/time_code.h
  std::uint8_t retry_count{};  // 0..7
  std::uint8_t rnr_retry{};    // 0..7; 7: for ever
  wire::Psn rq_psn;
  wire::Psn sq_psn;
  std::uint8_t max_reads{};       // READs and atomics outstanding as requester
  std::uint8_t max_dest_reads{};  // and as responder
  std::uint8_t min_rnr_timer{};   // 0..31, coded; 0 is the longest
  wire::Qpn dest_qpn;
  std::uint8_t path_mig_state{};
  QpState believed = QpState::Reset;  // CurrentState: what the program takes its state for
  bool notify_drained{};              // EnableSqdNotify
  bool draining{};                    // only queried: in SQD, and requests are still under way
};

// C9-141: the time of a code; never for code 0.
constexpr Duration ack_timeout(std::uint8_t code) {
  return code == 0 ? Duration{Time::never().ps} : wire::duration_of(code);
}

// IBTA table 45: delay for an RNR NAK timer code (5 bits). 0 is 655.36 ms, 1 is 10 us.
Duration rnr_delay(std::uint8_t code);

}  // namespace softhca::transport
