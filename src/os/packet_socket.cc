#include "os/packet_socket.h"

#include <arpa/inet.h>
#include <linux/if_arp.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "os/sockets.h"

namespace softhca::os {

// In front of every frame, in both directions. VIRTIO 1.2, 5.1.6, as virtio_net_hdr of Linux, whose
// header C++ cannot read.
struct OffloadHeader {
  static constexpr std::uint8_t kNeedsChecksum = 1;  // in flags
  static constexpr std::uint8_t kNotJoined = 0;      // of segments
  std::uint8_t flags;
  std::uint8_t joined;
  std::uint16_t header_bytes;
  std::uint16_t segment_bytes;
  std::uint16_t checksum_start;  // what it covers, to the end of the frame
  std::uint16_t checksum_offset;
};
static_assert(sizeof(OffloadHeader) == 10);

namespace {

constexpr int kPacketBufferBytes = 8 << 20;
constexpr std::size_t kTagBytes = 4;
constexpr std::size_t kTagAt = 12;  // behind the two addresses
// The longest packet of IP, its header of Ethernet, and room for a tag in front.
constexpr std::size_t kFrameRoom = 65536 + ETH_HLEN + 2 * kTagBytes;

sockaddr_ll link_address(int interface_index, bool receives) {
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_ifindex = interface_index;
  address.sll_protocol = receives ? htons(ETH_P_ALL) : std::uint16_t{0};
  return address;
}

// RFC 1071. The field holds the sum of the pseudo header.
void fill_in_checksum(const OffloadHeader& header, Bytes frame) {
  const bool is_wanted = (header.flags & OffloadHeader::kNeedsChecksum) != 0;
  const std::size_t field = std::size_t{header.checksum_start} + header.checksum_offset;
  if (!is_wanted || header.joined != OffloadHeader::kNotJoined || field + 2 > frame.size()) return;
  std::uint64_t sum = 0;
  for (std::size_t at = header.checksum_start; at < frame.size(); at += 2)
    sum += at + 1 < frame.size() ? load_be<std::uint16_t>(frame, at)
                                 : std::to_integer<unsigned>(frame[at]) << 8;
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  const auto checksum = static_cast<std::uint16_t>(~sum);
  store_be<std::uint16_t>(frame, field, checksum == 0 ? 0xffff : checksum);
}

std::optional<tpacket_auxdata> auxiliary_of(msghdr& message) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA) continue;
    tpacket_auxdata auxiliary;
    std::memcpy(&auxiliary, CMSG_DATA(c), sizeof auxiliary);
    return auxiliary;
  }
  return std::nullopt;
}

}  // namespace

// Frames are received behind room for a tag. Large, and only what is used takes memory.
struct PacketSocket::Room {
  struct Control {
    alignas(cmsghdr) std::byte bytes[CMSG_SPACE(sizeof(tpacket_auxdata))];
  };

  Room() {
    for (std::size_t i = 0; i < kReceivedAtMost; ++i) {
      parts[i] = {iovec{&headers[i], sizeof headers[i]},
                  iovec{slot(i).data() + kTagBytes, kFrameRoom - kTagBytes}};
      msghdr& message = messages[i].msg_hdr;
      message.msg_iov = parts[i].data();
      message.msg_iovlen = parts[i].size();
      message.msg_control = &controls[i];
    }
  }

  Bytes slot(std::size_t i) { return {bytes.get() + i * kFrameRoom, kFrameRoom}; }

  // The frame in a slot as it was on the wire; empty if it did not fit.
  ConstBytes frame(std::size_t i) {
    msghdr& message = messages[i].msg_hdr;
    const std::size_t got = messages[i].msg_len;
    if ((message.msg_flags & MSG_TRUNC) != 0 || got < sizeof(OffloadHeader) + ETH_HLEN) return {};
    const Bytes frame = slot(i).first(kTagBytes + got - sizeof(OffloadHeader));
    fill_in_checksum(headers[i], frame.subspan(kTagBytes));
    const auto auxiliary = auxiliary_of(message);
    if (!auxiliary || (auxiliary->tp_status & TP_STATUS_VLAN_VALID) == 0)
      return frame.subspan(kTagBytes);
    const bool says_type = (auxiliary->tp_status & TP_STATUS_VLAN_TPID_VALID) != 0;
    std::memmove(frame.data(), frame.data() + kTagBytes, kTagAt);
    store_be<std::uint16_t>(frame, kTagAt, says_type ? auxiliary->tp_vlan_tpid : ETH_P_8021Q);
    store_be<std::uint16_t>(frame, kTagAt + 2, auxiliary->tp_vlan_tci);
    return frame;
  }

  std::unique_ptr<std::byte[]> bytes =
      std::make_unique_for_overwrite<std::byte[]>(kReceivedAtMost * kFrameRoom);
  std::array<OffloadHeader, kReceivedAtMost> headers;
  std::array<Control, kReceivedAtMost> controls;
  std::array<std::array<iovec, 2>, kReceivedAtMost> parts;
  std::array<mmsghdr, kReceivedAtMost> messages{};
};

PacketSocket::PacketSocket() = default;
PacketSocket::PacketSocket(PacketSocket&&) noexcept = default;
PacketSocket& PacketSocket::operator=(PacketSocket&&) noexcept = default;
PacketSocket::~PacketSocket() = default;

// Without a protocol nothing arrives before everything is set.
Result<PacketSocket, SystemError> PacketSocket::open(std::uint32_t interface_index, PacketUse use) {
  PacketSocket made;
  made.fd_.reset(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.fd_) return last_error("socket(AF_PACKET)");
  const int fd = made.fd_.get();
  for (const int option : {PACKET_VNET_HDR, PACKET_AUXDATA, PACKET_IGNORE_OUTGOING})
    if (!set_option(fd, SOL_PACKET, option, 1)) return last_error("setsockopt");
  enlarge_send_buffer(fd, kPacketBufferBytes);
  enlarge_receive_buffer(fd, kPacketBufferBytes);
  made.interface_index_ = static_cast<int>(interface_index);
  sockaddr_ll address = link_address(made.interface_index_, use == PacketUse::Both);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return last_error("bind");
  socklen_t bytes = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0)
    return last_error("getsockname");
  made.loopback_ = address.sll_hatype == ARPHRD_LOOPBACK;
  if (!made.loopback_ && address.sll_hatype != ARPHRD_ETHER) return SystemError{EPROTOTYPE, "bind"};
  std::copy_n(address.sll_addr, made.address_.size(), made.address_.begin());
  if (use == PacketUse::Both) made.room_ = std::make_unique<Room>();
  return made;
}

Result<void, SystemError> PacketSocket::set_membership(int kind, bool on) {
  packet_mreq wanted{};
  wanted.mr_ifindex = interface_index_;
  wanted.mr_type = static_cast<unsigned short>(kind);
  if (setsockopt(fd_.get(), SOL_PACKET, on ? PACKET_ADD_MEMBERSHIP : PACKET_DROP_MEMBERSHIP,
                 &wanted, sizeof wanted) != 0)
    return last_error("setsockopt");
  return {};
}

Result<void, SystemError> PacketSocket::set_promiscuous(bool on) {
  return set_membership(PACKET_MR_PROMISC, on);
}
Result<void, SystemError> PacketSocket::set_all_multicasts(bool on) {
  return set_membership(PACKET_MR_ALLMULTI, on);
}

PacketsSent PacketSocket::send(std::span<const ConstBytes> frames) {
  constexpr std::size_t kBatch = 32;
  OffloadHeader nothing{};  // to be done by the kernel
  std::array<mmsghdr, kBatch> messages;
  std::array<std::array<iovec, 2>, kBatch> parts;
  PacketsSent sent;
  while (sent.taken < frames.size()) {
    const std::size_t count = std::min(kBatch, frames.size() - sent.taken);
    for (std::size_t i = 0; i < count; ++i) {
      const ConstBytes frame = frames[sent.taken + i];
      parts[i] = {iovec{&nothing, sizeof nothing},
                  iovec{const_cast<std::byte*>(frame.data()), frame.size()}};
      messages[i] = {};
      messages[i].msg_hdr.msg_iov = parts[i].data();
      messages[i].msg_hdr.msg_iovlen = parts[i].size();
    }
    const int n = sendmmsg(fd_.get(), messages.data(), static_cast<unsigned>(count),
                           MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      sent.taken += static_cast<std::size_t>(n);
    } else if (is_full(errno)) {
      return sent;
    } else if (errno != EINTR) {
      ++sent.taken;  // the first one is refused for good; the others may still go
      ++sent.lost;
    }
  }
  return sent;
}

std::size_t PacketSocket::receive(std::span<ConstBytes> out) {
  for (std::size_t i = 0; i < kReceivedAtMost; ++i)
    room_->messages[i].msg_hdr.msg_controllen = sizeof(Room::Control);
  const int n =
      recvmmsg(fd_.get(), room_->messages.data(),
               static_cast<unsigned>(std::min(out.size(), kReceivedAtMost)), MSG_DONTWAIT, nullptr);
  std::size_t count = 0;
  for (std::size_t i = 0; n > 0 && i < static_cast<std::size_t>(n); ++i)
    if (const ConstBytes frame = room_->frame(i); !frame.empty()) out[count++] = frame;
  return count;
}

}  // namespace softhca::os
