#include "os/udp_socket.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "os/sockets.h"

namespace softhca::os {

namespace {

constexpr int kSocketBufferBytes = 8 << 20;
constexpr std::size_t kBatch = 32;
constexpr std::size_t kParts = 2 * kMaxBurstSegments;  // REQUIRES: no datagram has more

// Not cleared: a batch of them lies on the stack of the fast path.
struct SocketAddress {
  union {
    sockaddr_in v4;
    sockaddr_in6 v6;
  } storage;
  socklen_t bytes;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

void fill(SocketAddress& to, const IpAddress& address, std::uint16_t port, std::uint32_t scope) {
  if (address.is_ipv4()) {
    sockaddr_in& v4 = to.storage.v4;
    v4 = {};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, address.bytes.data() + 12, 4);
    to.bytes = sizeof v4;
  } else {
    sockaddr_in6& v6 = to.storage.v6;
    v6 = {};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    v6.sin6_scope_id = address.is_link_local() || address.is_link_local_group() ? scope : 0;
    std::memcpy(&v6.sin6_addr, address.bytes.data(), 16);
    to.bytes = sizeof v6;
  }
}

// Room for the traffic class, the hop limit and the segment size of one datagram.
struct Control {
  alignas(cmsghdr) std::array<std::byte, 3 * CMSG_SPACE(sizeof(int))> bytes;
  std::size_t used;

  template <class Value>
  void add(int level, int type, Value value) {
    cmsghdr head{};
    head.cmsg_len = CMSG_LEN(sizeof value);
    head.cmsg_level = level;
    head.cmsg_type = type;
    std::memcpy(bytes.data() + used, &head, sizeof head);
    std::memcpy(bytes.data() + used + CMSG_LEN(0), &value, sizeof value);
    used += CMSG_SPACE(sizeof value);
  }
};

// The kernel does not write through it.
iovec part_of(ConstBytes bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

// One datagram in the kernel's form; points into itself.
struct Outgoing {
  SocketAddress address;
  Control control;

  // Puts its parts where `parts` begins, and takes them off there.
  void prepare(const OutgoingDatagram& datagram, std::uint32_t scope, std::span<iovec>& parts,
               msghdr& message) {
    fill(address, datagram.destination, datagram.destination_port, scope);
    const std::size_t count = 1 + datagram.rest.size();
    parts[0] = part_of(datagram.bytes);
    std::ranges::transform(datagram.rest, parts.begin() + 1, part_of);
    const bool v4 = datagram.destination.is_ipv4();
    control.used = 0;
    if (datagram.traffic_class != 0)
      v4 ? control.add<int>(IPPROTO_IP, IP_TOS, datagram.traffic_class)
         : control.add<int>(IPPROTO_IPV6, IPV6_TCLASS, datagram.traffic_class);
    if (datagram.hop_limit != 0 && datagram.hop_limit != OutgoingDatagram::kDefaultHopLimit)
      v4 ? control.add<int>(IPPROTO_IP, IP_TTL, datagram.hop_limit)
         : control.add<int>(IPPROTO_IPV6, IPV6_HOPLIMIT, datagram.hop_limit);
    if (datagram.segment_bytes != 0) control.add(SOL_UDP, UDP_SEGMENT, datagram.segment_bytes);
    message = {};
    message.msg_name = &address.storage;
    message.msg_namelen = address.bytes;
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    parts = parts.subspan(count);
    if (control.used != 0) {
      message.msg_control = control.bytes.data();
      message.msg_controllen = control.used;
    }
  }
};

// Sends one or more; how many went, or -1.
int send_prepared(int fd, std::span<mmsghdr> messages) {
  if (messages.size() == 1)
    return sendmsg(fd, &messages[0].msg_hdr, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 1;
  return sendmmsg(fd, messages.data(), static_cast<unsigned>(messages.size()),
                  MSG_DONTWAIT | MSG_NOSIGNAL);
}

// EIO: the interface cannot make checksums, or IPsec is in the way.
bool is_no_burst(int error) { return error == EIO || error == EOPNOTSUPP || error == ENOPROTOOPT; }
// The datagrams do not fit the way to this destination; one by one they say so themselves.
bool is_too_long(int error) { return error == EINVAL || error == EMSGSIZE; }

Result<std::uint16_t, SystemError> bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0)
    return last_error("getsockname");
  // The port is at the same place for both families.
  sockaddr_in v4{};
  std::memcpy(&v4, &address, sizeof v4);
  return ntohs(v4.sin_port);
}

bool set_ip_options(int fd, bool v4) {
  constexpr int kHops = OutgoingDatagram::kDefaultHopLimit;
  if (v4)
    return set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO) &&
           set_option(fd, IPPROTO_IP, IP_TTL, kHops) && set_option(fd, IPPROTO_IP, IP_RECVTOS, 1);
  return set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1) &&
         set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO) &&
         set_option(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1) &&
         set_option(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, kHops) &&
         set_option(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1) &&
         set_option(fd, SOL_UDP, UDP_NO_CHECK6_RX, 1);
}

// Multicasts leave by the interface, live as long as other packets, and come back to this host.
bool set_group_sending(int fd, bool v4, std::uint32_t interface_index) {
  constexpr int kHops = OutgoingDatagram::kDefaultHopLimit;
  if (!v4)
    return (interface_index == 0 ||
            set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(interface_index))) &&
           set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, kHops) &&
           set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1);
  ip_mreqn by{};
  by.imr_ifindex = static_cast<int>(interface_index);
  return (interface_index == 0 ||
          setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof by) == 0) &&
         set_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, kHops) &&
         set_option(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1);
}

// Only what is sent to this group, though others here may have joined more.
bool join_group(int fd, const UdpEndpoint& group) {
  if (!group.address.is_ipv4()) {
    ipv6_mreq wanted{};
    std::memcpy(&wanted.ipv6mr_multiaddr, group.address.bytes.data(), 16);
    wanted.ipv6mr_interface = group.interface_index;
    return setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &wanted, sizeof wanted) == 0;
  }
  ip_mreqn wanted{};
  std::memcpy(&wanted.imr_multiaddr, group.address.bytes.data() + 12, 4);
  wanted.imr_ifindex = static_cast<int>(group.interface_index);
  return set_option(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0) &&
         setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &wanted, sizeof wanted) == 0;
}

}  // namespace

UdpSocket::UdpSocket(OwnedFd fd, const UdpEndpoint& endpoint, std::uint16_t port)
    : fd_(std::move(fd)), endpoint_(endpoint), port_(port) {}

Result<UdpSocket, SystemError> UdpSocket::open(const UdpEndpoint& endpoint, UdpUse use) {
  const bool v4 = endpoint.address.is_ipv4();
  OwnedFd fd(socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return last_error("socket");
  if (!set_ip_options(fd.get(), v4)) return last_error("setsockopt");
  if (use != UdpUse::Group && !set_group_sending(fd.get(), v4, endpoint.interface_index))
    return last_error("setsockopt");
  enlarge_receive_buffer(fd.get(), kSocketBufferBytes);
  enlarge_send_buffer(fd.get(), kSocketBufferBytes);
  if (use == UdpUse::Group && !set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1))
    return last_error("setsockopt");
  if (use == UdpUse::Shared && !set_option(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1))
    return last_error("setsockopt");
  // With what arrives comes how much found no room; an old kernel says nothing.
  if (use != UdpUse::SendOnly) set_option(fd.get(), SOL_SOCKET, SO_RXQ_OVFL, 1);
  // Bursts may arrive whole. A kernel that cannot (before 5.0) cuts them apart.
  if (use == UdpUse::Shared) set_option(fd.get(), SOL_UDP, UDP_GRO, 1);
  SocketAddress address;
  fill(address, endpoint.address, endpoint.port, endpoint.interface_index);
  UdpSocket made(std::move(fd), endpoint, 0);
  // Before it has a name: nothing can arrive earlier.
  if (use == UdpUse::SendOnly) made.refuse_arrivals();
  if (bind(made.fd(), address.get(), address.bytes) != 0) return last_error("bind");
  if (use == UdpUse::Group && !join_group(made.fd(), endpoint)) return last_error("setsockopt");
  const Result<std::uint16_t, SystemError> port = bound_port(made.fd());
  if (!port) return port.error();
  made.port_ = *port;
  return made;
}

SendOutcome UdpSocket::send(std::span<const OutgoingDatagram> datagrams) {
  std::array<Outgoing, kBatch> outgoing;
  std::array<mmsghdr, kBatch> messages;
  std::array<iovec, kParts> parts;
  SendOutcome outcome;
  while (outcome.taken < datagrams.size()) {
    std::span<iovec> free_parts(parts);
    std::size_t count = 0;
    while (count < kBatch && outcome.taken + count < datagrams.size() &&
           datagrams[outcome.taken + count].rest.size() < free_parts.size()) {
      outgoing[count].prepare(datagrams[outcome.taken + count], endpoint_.interface_index,
                              free_parts, messages[count].msg_hdr);
      ++count;
    }
    std::size_t sent = 0;
    while (sent < count) {
      const int n = send_prepared(fd_.get(), std::span(messages).subspan(sent, count - sent));
      if (n > 0) {
        sent += static_cast<std::size_t>(n);
      } else if (is_full(errno)) {
        outcome.taken += sent;
        return outcome;
      } else if ((is_no_burst(errno) || is_too_long(errno)) &&
                 datagrams[outcome.taken + sent].segment_bytes != 0) {
        outcome.taken += sent;
        outcome.burst_refused = true;
        outcome.no_bursts = is_no_burst(errno);
        return outcome;
      } else if (errno != EINTR) {
        ++sent;  // the first one is refused for good; the others may still go
        ++outcome.lost;
      }
    }
    outcome.taken += count;
  }
  return outcome;
}

Result<void, SystemError> UdpSocket::steer(std::uint32_t offset, std::uint32_t shift,
                                           std::uint32_t mask,
                                           std::span<const SteeringRule> rules) {
  constexpr std::uint32_t kNobody = 0xffff'ffff;  // beyond every group: the kernel hashes
  std::vector<sock_filter> program;
  program.reserve(4 + 2 * rules.size());
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset));
  program.push_back(BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, shift));
  program.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask));
  for (const SteeringRule& rule : rules) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rule.key, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, rule.member));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, kNobody));
  sock_fprog attached{static_cast<unsigned short>(program.size()), program.data()};
  if (setsockopt(fd_.get(), SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &attached, sizeof attached) != 0)
    return last_error("setsockopt(SO_ATTACH_REUSEPORT_CBPF)");
  return {};
}

void UdpSocket::refuse_arrivals() {
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  sock_fprog attached{1, &drop};
  setsockopt(fd_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &attached, sizeof attached);
}

std::uint64_t UdpSocket::inode() const {
  struct stat file {};
  if (!fd_ || fstat(fd_.get(), &file) != 0) return 0;
  return file.st_ino;
}

}  // namespace softhca::os
