#include "os/datagram_arena.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/assert.h"

namespace softhca::os {

namespace {

// Room for a traffic class, a segment size and a number of drops, or for credentials. No room for
// descriptors: a sender who passes some finds them dropped by the kernel.
constexpr std::size_t kControlBytes = 3 * CMSG_SPACE(sizeof(int));
static_assert(kControlBytes >= CMSG_SPACE(sizeof(ucred)));

void read_source(const sockaddr_in6& name, Arrival& arrival) {
  if (name.sin6_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &name, sizeof v4);
    std::array<std::uint8_t, 4> bytes;
    std::memcpy(bytes.data(), &v4.sin_addr, 4);
    arrival.source = IpAddress::of_ipv4(bytes);
    arrival.source_port = ntohs(v4.sin_port);
  } else if (name.sin6_family == AF_INET6) {
    std::memcpy(arrival.source.bytes.data(), &name.sin6_addr, 16);
    arrival.source_port = ntohs(name.sin6_port);
  }
}

void read_control(msghdr& message, Arrival& arrival) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
      ucred credentials;
      std::memcpy(&credentials, CMSG_DATA(c), sizeof credentials);
      arrival.uid = credentials.uid;
    } else if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
      int segment = 0;
      std::memcpy(&segment, CMSG_DATA(c), sizeof segment);
      arrival.segment_bytes = static_cast<std::size_t>(std::max(segment, 0));
    } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
      std::memcpy(&arrival.dropped, CMSG_DATA(c), sizeof arrival.dropped);
    } else if ((c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) ||
               (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS)) {
      // One byte for IPv4, an int for IPv6; both little-endian.
      arrival.traffic_class = *CMSG_DATA(c);
    }
  }
}

}  // namespace

struct DatagramArena::Slots {
  struct ControlRoom {
    alignas(cmsghdr) std::byte bytes[kControlBytes];
  };

  Slots(std::size_t slots, std::size_t slot_bytes)
      : slot_bytes(slot_bytes),
        bytes(std::make_unique_for_overwrite<std::byte[]>(slots * slot_bytes)),
        names(slots),
        controls(slots),
        parts(slots),
        messages(slots),
        arrivals(slots) {
    for (std::size_t i = 0; i < slots; ++i) {
      parts[i] = {slot(i).data(), slot_bytes};
      msghdr& message = messages[i].msg_hdr;
      message.msg_name = &names[i];
      message.msg_iov = &parts[i];
      message.msg_iovlen = 1;
      message.msg_control = controls[i].bytes;
      rearm(i);
    }
  }

  Bytes slot(std::size_t i) { return {bytes.get() + i * slot_bytes, slot_bytes}; }

  // The kernel shortens these to what it wrote.
  void rearm(std::size_t slot) {
    msghdr& message = messages[slot].msg_hdr;
    message.msg_namelen = sizeof(sockaddr_in6);
    message.msg_controllen = kControlBytes;
  }

  // Reads what the kernel wrote into a slot, and makes it ready for the next datagram.
  void take(std::size_t slot) {
    mmsghdr& message = messages[slot];
    Arrival arrival;
    arrival.bytes = this->slot(slot).first(message.msg_len);
    arrival.truncated = (message.msg_hdr.msg_flags & MSG_TRUNC) != 0;
    if (message.msg_hdr.msg_namelen != 0) read_source(names[slot], arrival);
    read_control(message.msg_hdr, arrival);
    arrivals[slot] = arrival;
    rearm(slot);
  }

  std::size_t slot_bytes;
  std::unique_ptr<std::byte[]> bytes;
  std::vector<sockaddr_in6> names;
  std::vector<ControlRoom> controls;
  std::vector<iovec> parts;
  std::vector<mmsghdr> messages;
  std::vector<Arrival> arrivals;
};

DatagramArena::DatagramArena(std::size_t slots, std::size_t slot_bytes)
    : slots_(slots), memory_(std::make_unique<Slots>(slots, slot_bytes)) {}
DatagramArena::~DatagramArena() = default;

std::size_t DatagramArena::receive(int fd, std::size_t first, std::size_t most) {
  if (first >= slots_) return 0;
  const std::size_t count = std::min(most, slots_ - first);
  if (count == 0) return 0;
  const int n = recvmmsg(fd, memory_->messages.data() + first, static_cast<unsigned>(count),
                         MSG_DONTWAIT | MSG_CMSG_CLOEXEC, nullptr);
  if (n <= 0) return 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) memory_->take(first + i);
  return static_cast<std::size_t>(n);
}

const Arrival& DatagramArena::arrival(std::size_t slot) const {
  ASSERT(slot < slots_);
  return memory_->arrivals[slot];
}

}  // namespace softhca::os
