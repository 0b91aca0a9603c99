// Terms: what a connection is asked for with, and what both sides have agreed on.
//
// Numbers are this side's: what one calls responder resources the other calls initiator depth.
// Where a request says more than its field has bits for, it says the most that the field can.
//
// Spec  IBTA vol. 1, 12.7 (the fields)
#pragma once
#include <cstdint>

#include "wire/cm_message.h"
#include "wire/ip_service.h"
#include "wire/packet.h"

namespace softhca::cm {

enum class Transport : std::uint8_t { Rc, Uc, Xrc };

// Enhanced connection establishment: what devices of one vendor agree on.
struct Ece {
  std::uint32_t vendor_id{};  // 0: nothing
  std::uint32_t options{};
  friend bool operator==(const Ece&, const Ece&) = default;
};

struct Path {
  wire::Gid local{};
  wire::Gid remote{};
  std::uint32_t flow_label{};
  std::uint8_t traffic_class{};
  std::uint8_t hop_limit = 64;
  std::uint8_t service_level{};
  std::uint8_t packet_rate{};  // 0: as fast as the port
  std::uint16_t pkey = wire::kDefaultPkey;
  std::uint8_t mtu = 3;           // 1: 256 ... 5: 4096
  std::uint8_t ack_timeout = 17;  // a time: there and back (0.54 s)
  friend bool operator==(const Path&, const Path&) = default;
};

// How long the other connection manager is waited for, and how often it is asked again.
struct Patience {
  std::uint8_t response_timeout = 20;  // a time (4.3 s, as in Linux)
  std::uint8_t retries = 15;
};

// What a queue pair is to be told, as far as it is known.
struct Terms {
  Transport transport{};
  wire::ServiceId service{};
  wire::IpAddresses addresses{};  // of services of the IP port spaces: as who asks says them
  Path path{};
  wire::Qpn local_qpn{};
  wire::Qpn remote_qpn{};
  wire::Psn local_psn{};               // with which this side tells the peer to begin
  wire::Psn remote_psn{};              // and the peer this side
  std::uint8_t responder_resources{};  // READs and atomics that this side answers at a time
  std::uint8_t initiator_depth{};      // and that it may ask for at a time
  std::uint8_t retry_count{};
  std::uint8_t rnr_retry_count{};
  bool flow_control{};
  bool remote_srq{};
  std::uint64_t remote_guid{};
  Ece remote_ece{};
  std::uint32_t remote_qkey{};  // of datagrams
};

inline constexpr wire::Gid kEveryIpv4Address = wire::Gid::of_ipv4({});

struct ListenRequest {
  wire::ServiceId service{};
  wire::Gid address{};         // zero: every address; kEveryIpv4Address: every one of IPv4
  bool only_ipv6 = false;      // every address is every one of IPv6
  std::uint32_t backlog = 64;  // requests that the program has not answered yet
  bool datagrams = false;      // answers resolutions, not requests to connect
};

// `private_bytes` here and below: read during the call.
struct ConnectRequest {
  Transport transport{};
  wire::ServiceId service{};
  wire::IpAddresses addresses{};  // of services of the IP port spaces
  Path path{};
  wire::Qpn qpn{};
  bool srq{};
  std::uint8_t responder_resources{};
  std::uint8_t initiator_depth{};
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry_count = 7;
  bool flow_control{};
  Ece ece{};
  Patience patience{};
  ConstBytes private_bytes{};
};

struct AcceptRequest {
  wire::Qpn qpn{};
  bool srq{};
  std::uint8_t responder_resources{};
  std::uint8_t initiator_depth{};
  std::uint8_t rnr_retry_count = 7;  // for the peer
  bool flow_control{};
  Ece ece{};
  ConstBytes private_bytes{};
};

// Asks which queue pair serves datagrams of a service.
struct ResolveRequest {
  wire::ServiceId service{};
  wire::IpAddresses addresses{};
  Path path{};
  Patience patience{};
  ConstBytes private_bytes{};
};

struct ResolveAnswer {
  wire::Qpn qpn{};
  std::uint32_t qkey{};
  Ece ece{};
  ConstBytes private_bytes{};
};

// What a program may send along. A service of the IP port spaces has its addresses in front.
inline constexpr std::size_t kReqPrivateBytes = sizeof wire::CmReq::private_bytes;
inline constexpr std::size_t kIpReqPrivateBytes = kReqPrivateBytes - wire::kIpServiceBytes;
inline constexpr std::size_t kRepPrivateBytes = sizeof wire::CmRep::private_bytes;
inline constexpr std::size_t kRejPrivateBytes = sizeof wire::CmRej::private_bytes;
inline constexpr std::size_t kRtuPrivateBytes = sizeof wire::CmRtu::private_bytes;
inline constexpr std::size_t kDreqPrivateBytes = sizeof wire::CmDreq::private_bytes;
inline constexpr std::size_t kSidrReqPrivateBytes = sizeof wire::CmSidrReq::private_bytes;
inline constexpr std::size_t kIpSidrReqPrivateBytes = kSidrReqPrivateBytes - wire::kIpServiceBytes;
inline constexpr std::size_t kSidrRepPrivateBytes = sizeof wire::CmSidrRep::private_bytes;

}  // namespace softhca::cm
