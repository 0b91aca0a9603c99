// UdpSocket: a non-blocking UDP socket bound to one address.
//
// Never connected, and never lets a datagram be fragmented: the kernel then sends IPv4 with
// identification 0 and DF set, which the sender of an ICRC has to know. The kernel's UDP checksum
// stays on; an ICRC does not cover it. Over IPv6 too it takes datagrams without a checksum, which
// the kernel would drop: RoCEv2 devices send 0 there (Linux rxe does), since the ICRC covers more.
//
// Threads  owned by one
// See also os/datagram_arena.h, which receives
#pragma once
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "os/ip_address.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

struct UdpEndpoint {
  IpAddress address;
  std::uint16_t port{};             // 0: any free one
  std::uint32_t interface_index{};  // scope of a link-local address; where multicasts leave
};

enum class UdpUse : std::uint8_t {
  Shared,    // receives; others of this uid may bind the same endpoint
  SendOnly,  // sends; whatever arrives is thrown away by a filter
  Group,     // receives what is sent to a multicast address on the interface, as others here do
};

// One datagram, or a burst of them that the kernel cuts apart: its `bytes` and `rest`, one after
// the other, are datagrams of segment_bytes each; only the last may be shorter. The kernel numbers
// the IPv4 identifications of a burst from 0.
struct OutgoingDatagram {
  ConstBytes bytes;
  std::span<const ConstBytes> rest{};
  std::uint16_t segment_bytes{};  // 0: no burst
  IpAddress destination;
  std::uint16_t destination_port{};
  std::uint8_t traffic_class{};
  std::uint8_t hop_limit = kDefaultHopLimit;  // 0 counts as the default

  static constexpr std::uint8_t kDefaultHopLimit = 64;
};

inline constexpr std::size_t kMaxBurstSegments = 64;   // of the kernel
inline constexpr std::size_t kMaxBurstBytes = 65'000;  // what an IP packet holds, nearly

struct SendOutcome {
  std::size_t taken{};  // from the front; the next one found the socket full, or is a burst refused
  std::size_t lost{};   // of these, refused for good: no route, too long, firewall
  bool burst_refused{};  // the next one is a burst: send its datagrams one by one
  bool no_bursts{};      // so it is with every burst: the kernel or the interface takes none
};

// The socket at place `member` of the group gets datagrams whose key is `key`.
struct SteeringRule {
  std::uint32_t key{};
  std::uint32_t member{};
};

class UdpSocket {
 public:
  UdpSocket() = default;  // not open

  static Result<UdpSocket, SystemError> open(const UdpEndpoint& endpoint, UdpUse use);

  SendOutcome send(std::span<const OutgoingDatagram> datagrams);

  // Steers every socket bound to this endpoint: the big-endian 32-bit word at `offset` of the UDP
  // payload, shifted right and masked, is the key. No rule for it: the kernel picks by hash.
  // Replaces what was there. A classic BPF program; needs no privilege.
  Result<void, SystemError> steer(std::uint32_t offset, std::uint32_t shift, std::uint32_t mask,
                                  std::span<const SteeringRule> rules);

  // Throws everything away that arrives from now on; what has arrived stays.
  void refuse_arrivals();

  void close() { fd_.reset(); }

  bool is_open() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }
  std::uint16_t port() const { return port_; }
  std::uint64_t inode() const;  // names the socket, as in os/bound_sockets.h; 0 if not open

 private:
  UdpSocket(OwnedFd fd, const UdpEndpoint& endpoint, std::uint16_t port);

  OwnedFd fd_;
  UdpEndpoint endpoint_;
  std::uint16_t port_ = 0;
};

}  // namespace softhca::os
