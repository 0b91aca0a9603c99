// PacketSocket: whole Ethernet frames to and from one interface (AF_PACKET).
//
// Frames are as on the wire: what the kernel's offloads take out on the way (the VLAN tag, a
// checksum that the interface was to fill in) is put back. Segments that the kernel has joined stay
// joined. What this host sends is not received, but on the loopback interface, where everything
// comes back. The kernel's own stack gets a copy of whatever arrives.
//
// Needs CAP_NET_RAW in the user namespace that owns the network namespace.
//
// Threads  owned by one
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "os/interfaces.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

enum class PacketUse : std::uint8_t { SendOnly, Both };

struct PacketsSent {
  std::size_t taken{};  // from the front; the next one found the socket or the interface full
  std::size_t lost{};   // of these, refused for good: too long, or the interface is down
};

class PacketSocket {
 public:
  static constexpr std::size_t kReceivedAtMost = 32;  // by one receive()

  PacketSocket();  // not open
  PacketSocket(PacketSocket&&) noexcept;
  PacketSocket& operator=(PacketSocket&&) noexcept;
  ~PacketSocket();

  // FAILS WITH EPERM; ENODEV; EPROTOTYPE: the interface is none of Ethernet
  static Result<PacketSocket, SystemError> open(std::uint32_t interface_index, PacketUse use);

  // What the interface lets in besides its own: frames for everybody, or those for any group. Ends
  // with the socket. REQUIRES: open.
  Result<void, SystemError> set_promiscuous(bool on);
  Result<void, SystemError> set_all_multicasts(bool on);

  PacketsSent send(std::span<const ConstBytes> frames);

  // Frames that have arrived, at most out.size(). Valid until the next call. REQUIRES: PacketUse
  // Both.
  std::size_t receive(std::span<ConstBytes> out);

  bool is_open() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }
  const MacAddress& address() const { return address_; }  // of the interface, when it was opened
  bool is_loopback() const { return loopback_; }

 private:
  struct Room;
  Result<void, SystemError> set_membership(int kind, bool on);

  OwnedFd fd_;
  int interface_index_ = 0;
  MacAddress address_{};
  bool loopback_ = false;
  std::unique_ptr<Room> room_;  // null: it only sends
};

}  // namespace softhca::os
