// PacketPort: the frames of one interface, by a packet socket.
//
// Threads  owned by the device's owner
// See also os/packet_socket.h, for what its frames are
#pragma once
#include <vector>

#include "link/frame_port.h"
#include "os/packet_socket.h"

namespace softhca::link {

class PacketPort final : public FramePort {
 public:
  explicit PacketPort(std::uint32_t interface_index) : interface_index_(interface_index) {}

  Result<void, trace::Reason> open_for(FrameUse use) override;
  Sent send(std::span<const ConstBytes> frames) override;
  std::size_t receive(std::span<ConstBytes> out) override { return socket_.receive(out); }
  wire::MacAddress address() const override { return socket_.address(); }
  bool brings_back() const override { return socket_.is_loopback(); }

  // What a poller watches; -1: nothing.
  int fd() const { return use_ > FrameUse::Sending ? socket_.fd() : -1; }
  // Another number whenever it was opened or closed; 0: never yet.
  std::uint32_t fds_version() const { return fds_version_; }
  // Nobody listens to descriptors that fd() does not name any more.
  void close_left() { left_.clear(); }

  // In the child of a fork: closes everything, changes nothing for the parent.
  void abandon();

 private:
  void close();

  std::uint32_t interface_index_;
  FrameUse use_ = FrameUse::None;
  os::PacketSocket socket_;
  std::vector<os::PacketSocket> left_;  // that somebody may be listening to
  std::uint32_t fds_version_ = 0;
};

}  // namespace softhca::link
