#include "os/host_mailbox.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "os/host_name.h"
#include "os/sockets.h"

namespace softhca::os {

namespace {

constexpr int kBacklog = 4096;
constexpr int kMailboxBufferBytes = 4 << 20;
// Both sides forget the oldest beyond this; it connects again if need be.
constexpr std::size_t kMaxConnections = 128;
constexpr std::size_t kMaxReady = 16;

bool add_to(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

OwnedFd message_socket() {
  return OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

std::optional<std::uint32_t> peer_uid(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return std::nullopt;
  return peer.uid;
}

// 0, or errno.
int send_message(int fd, ConstBytes head, ConstBytes body) {
  // The kernel does not write through these.
  std::array<iovec, 2> parts{{{const_cast<std::byte*>(head.data()), head.size()},
                              {const_cast<std::byte*>(body.data()), body.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
}

}  // namespace

HostMailbox::HostMailbox(OwnedFd listener, OwnedFd ready)
    : listener_(std::move(listener)), ready_(std::move(ready)) {}

Result<HostMailbox, SystemError> HostMailbox::open(std::string_view name) {
  OwnedFd listener = message_socket();
  if (!listener) return last_error("socket");
  const HostAddress address(name);
  if (bind(listener.get(), address.get(), address.bytes()) != 0) return last_error("bind");
  // Who connects inherits it: every message then carries its sender's user.
  const int on = 1;
  if (setsockopt(listener.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
    return last_error("setsockopt");
  if (listen(listener.get(), kBacklog) != 0) return last_error("listen");
  OwnedFd ready(epoll_create1(EPOLL_CLOEXEC));
  if (!ready) return last_error("epoll_create1");
  if (!add_to(ready.get(), listener.get())) return last_error("epoll_ctl");
  return HostMailbox(std::move(listener), std::move(ready));
}

HostMailbox::Sent HostMailbox::send(const std::string& name, ConstBytes head, ConstBytes body) {
  ASSERT(!head.empty() || !body.empty());
  // Twice: the holder of the name may have changed since we connected.
  for (int attempt = 0; attempt < 2; ++attempt) {
    Outgoing* const to = connect(name);
    if (to == nullptr) return errno == EAGAIN ? Sent::Full : Sent::Nobody;
    const int error = send_message(to->fd.get(), head, body);
    if (error == 0) return Sent::Yes;
    if (error != EPIPE && error != ECONNRESET) return Sent::Full;
    std::erase_if(outgoing_, [&](const Outgoing& one) { return one.name == name; });
  }
  return Sent::Nobody;
}

HostMailbox::Outgoing* HostMailbox::connect(const std::string& name) {
  const auto known = std::ranges::find(outgoing_, name, &Outgoing::name);
  if (known != outgoing_.end()) return &*known;
  OwnedFd fd = message_socket();
  if (!fd) return nullptr;
  enlarge_send_buffer(fd.get(), kMailboxBufferBytes);
  const HostAddress address(name);
  if (::connect(fd.get(), address.get(), address.bytes()) != 0) return nullptr;
  if (outgoing_.size() == kMaxConnections) outgoing_.pop_front();
  outgoing_.push_back({name, std::move(fd)});
  return &outgoing_.back();
}

bool HostMailbox::admit_this_user(std::uint32_t uid) { return uid == own_uid(); }

std::size_t HostMailbox::receive(DatagramArena& arena, std::size_t first, std::size_t most,
                                 const Admission& admits) {
  std::size_t count = 0;
  // Once more if somebody new was let in: what he sent is waiting.
  for (bool again = true; again && count < most;) {
    again = false;
    std::array<epoll_event, kMaxReady> events;
    const int ready = epoll_wait(ready_.get(), events.data(), kMaxReady, 0);
    for (int i = 0; i < ready && count < most; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener_.get())
        again = accept_senders(admits);
      else
        count += receive_from(fd, arena, first + count, most - count);
    }
  }
  return count;
}

// The end of a connection reads as messages of no bytes, as many as one asks for.
std::size_t HostMailbox::receive_from(int fd, DatagramArena& arena, std::size_t first,
                                      std::size_t most) {
  const std::size_t n = arena.receive(fd, first, most);
  std::size_t whole = 0;
  while (whole < n && !arena.arrival(first + whole).bytes.empty()) ++whole;
  if (whole < n) drop_sender(fd);
  return whole;
}

// True if somebody was let in.
bool HostMailbox::accept_senders(const Admission& admits) {
  bool any = false;
  for (std::size_t i = 0; i < kMaxConnections; ++i) {
    OwnedFd sender(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!sender) break;
    const auto uid = peer_uid(sender.get());
    if (!uid || !admits(*uid) || !add_to(ready_.get(), sender.get())) continue;
    if (senders_.size() == kMaxConnections) senders_.erase(senders_.begin());
    senders_.push_back(std::move(sender));
    any = true;
  }
  return any;
}

bool HostMailbox::is_of_this_user(const std::string& name) {
  const Outgoing* const to = connect(name);
  return to != nullptr && peer_uid(to->fd.get()) == own_uid();
}

void HostMailbox::drop_sender(int fd) {
  std::erase_if(senders_, [&](const OwnedFd& sender) { return sender.get() == fd; });
}

void HostMailbox::close() {
  senders_.clear();
  outgoing_.clear();
  listener_.reset();
  ready_.reset();
}

}  // namespace softhca::os
