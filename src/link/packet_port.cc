#include "link/packet_port.h"

#include <algorithm>
#include <utility>

namespace softhca::link {

using trace::ReasonId;

// A socket that only sends costs nothing for what arrives; it cannot begin or end to receive.
Result<void, trace::Reason> PacketPort::open_for(FrameUse use) {
  if (use == use_) return {};
  const auto socket_for = [](FrameUse u) { return std::min(u, FrameUse::Own); };
  if (socket_for(use) != socket_for(use_)) {
    close();
    if (use == FrameUse::None) return {};
    auto opened = os::PacketSocket::open(
        interface_index_, use == FrameUse::Sending ? os::PacketUse::SendOnly : os::PacketUse::Both);
    if (!opened) return trace::Reason{.id = ReasonId::FramesStayInside};
    socket_ = std::move(*opened);
    use_ = socket_for(use);
    ++fds_version_;
  }
  // An interface that cannot let in more still has what is its own.
  const auto changes = [&](FrameUse u) { return (use == u) != (use_ == u); };
  if (changes(FrameUse::Everything))
    static_cast<void>(socket_.set_promiscuous(use == FrameUse::Everything));
  if (changes(FrameUse::Multicasts))
    static_cast<void>(socket_.set_all_multicasts(use == FrameUse::Multicasts));
  use_ = use;
  return {};
}

void PacketPort::close() {
  if (!socket_.is_open()) return;
  left_.push_back(std::exchange(socket_, {}));
  use_ = FrameUse::None;
  ++fds_version_;
}

FramePort::Sent PacketPort::send(std::span<const ConstBytes> frames) {
  const os::PacketsSent sent = socket_.send(frames);
  return {sent.taken, sent.lost};
}

void PacketPort::abandon() {
  socket_ = {};
  left_.clear();
  use_ = FrameUse::None;
}

}  // namespace softhca::link
