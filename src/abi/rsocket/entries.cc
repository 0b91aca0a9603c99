// The functions of <rdma/rsocket.h>.
#include <fcntl.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>

#include "abi/entry.h"
#include "abi/rdmacm/tell.h"
#include "abi/rsocket/datagram_socket.h"
#include "abi/rsocket/poll.h"
#include "abi/rsocket/socket_table.h"
#include "abi/rsocket/stream_socket.h"

namespace softhca::abi {
namespace {

constexpr int kTypeFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;

Outcome<std::shared_ptr<Socket>> open_socket(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6)
    return refuse("rsocket", {.id = trace::ReasonId::AddressFamily});
  const int kind = type & ~kTypeFlags;
  const bool streams = kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
  const bool datagrams = kind == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP);
  if (!streams && !datagrams) return Errno{EPROTONOSUPPORT};
  return streams ? StreamSocket::open(domain) : DatagramSocket::open(domain);
}

Outcome<std::shared_ptr<StreamSocket>> stream_of(int fd) {
  auto socket = socket_of(fd);
  if (!socket) return socket.error();
  auto stream = std::dynamic_pointer_cast<StreamSocket>(*socket);
  if (!stream) return Errno{EOPNOTSUPP};
  return stream;
}

// The address to the program: what fits, and how long it is.
void give_address(const sockaddr_storage& from, sockaddr* to, socklen_t* bytes) {
  if (to == nullptr || bytes == nullptr) return;
  const socklen_t whole =
      from.ss_family == AF_UNSPEC ? 0 : bytes_of_address(reinterpret_cast<const sockaddr&>(from));
  std::memcpy(to, &from, std::min(whole, *bytes));
  *bytes = whole;
}

// A call without a value, as 0 or -1.
template <class Call>
int answer_zero(Call&& call) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto outcome = call();
    if (!outcome) return outcome.error();
    return 0;
  });
}

Outcome<ssize_t> as_count(const Outcome<std::size_t>& bytes) {
  if (!bytes) return bytes.error();
  return static_cast<ssize_t>(*bytes);
}

ssize_t send(int fd, Parts parts, int flags, const sockaddr* to, socklen_t to_bytes) {
  return answer_minus_one([&]() -> Outcome<ssize_t> {
    const auto socket = socket_of(fd);
    if (!socket) return socket.error();
    return as_count((*socket)->send(parts, flags, to, to_bytes));
  });
}

ssize_t receive(int fd, Parts parts, int flags, sockaddr* from, socklen_t* from_bytes) {
  return answer_minus_one([&]() -> Outcome<ssize_t> {
    const auto socket = socket_of(fd);
    if (!socket) return socket.error();
    sockaddr_storage source{};
    const auto got = (*socket)->receive(parts, flags, from != nullptr ? &source : nullptr);
    if (got) give_address(source, from, from_bytes);
    return as_count(got);
  });
}

iovec part_of(const void* bytes, std::size_t size) { return {const_cast<void*>(bytes), size}; }

bool is_bad_list(const iovec* list, int count) {
  return count < 0 || (list == nullptr && count > 0);
}

Parts parts_of(const iovec* list, std::size_t count) { return {list, count}; }

}  // namespace

BLOCKING_VERB("RDMACM_1.0", int, rsocket, (int domain, int type, int protocol)) {
  return answer_minus_one([&]() -> Outcome<int> {
    auto socket = open_socket(domain, type, protocol);
    if (!socket) return socket.error();
    if ((type & SOCK_NONBLOCK) != 0) (*socket)->set_flags((*socket)->flags() | O_NONBLOCK);
    const int fd = (*socket)->fd();
    keep_socket(std::move(*socket));
    return fd;
  });
}

BLOCKING_VERB("RDMACM_1.0", int, rbind, (int fd, const sockaddr* address, socklen_t bytes)) {
  return answer_zero([&]() -> Outcome<void> {
    const auto socket = socket_of(fd);
    if (!socket) return socket.error();
    return (*socket)->bind(*address, bytes);
  });
}

BLOCKING_VERB("RDMACM_1.0", int, rlisten, (int fd, int backlog)) {
  return answer_zero([&]() -> Outcome<void> {
    const auto socket = socket_of(fd);
    if (!socket) return socket.error();
    return (*socket)->listen(backlog);
  });
}

BLOCKING_VERB("RDMACM_1.0", int, raccept, (int fd, sockaddr* address, socklen_t* bytes)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto listener = socket_of(fd);
    if (!listener) return listener.error();
    auto socket = (*listener)->accept();
    if (!socket) return socket.error();
    if (const auto peer = (*socket)->peer_address()) give_address(*peer, address, bytes);
    const int accepted = (*socket)->fd();
    keep_socket(std::move(*socket));
    return accepted;
  });
}

BLOCKING_VERB("RDMACM_1.0", int, rconnect, (int fd, const sockaddr* address, socklen_t bytes)) {
  return answer_zero([&]() -> Outcome<void> {
    const auto socket = socket_of(fd);
    if (!socket) return socket.error();
    return (*socket)->connect(*address, bytes);
  });
}

BLOCKING_VERB("RDMACM_1.0", int, rshutdown, (int fd, int how)) {
  return answer_zero([&]() -> Outcome<void> {
    const auto socket = socket_of(fd);
    if (!socket) return socket.error();
    return (*socket)->shut_down(how);
  });
}

BLOCKING_VERB("RDMACM_1.0", int, rclose, (int fd)) {
  return answer_zero([&]() -> Outcome<void> {
    auto socket = forget_socket(fd);
    if (!socket) return socket.error();
    if (!(*socket)->is_left_behind()) {
      (*socket)->close();
      return {};
    }
    // The parent's: its memory and its locks stay as they are.
    ::close(fd);
    new std::shared_ptr<Socket>(std::move(*socket));
    return {};
  });
}

BLOCKING_VERB("RDMACM_1.0", ssize_t, rrecv, (int fd, void* to, size_t bytes, int flags)) {
  const iovec part = part_of(to, bytes);
  return receive(fd, parts_of(&part, 1), flags, nullptr, nullptr);
}

BLOCKING_VERB("RDMACM_1.0", ssize_t, rrecvfrom,
              (int fd, void* to, size_t bytes, int flags, sockaddr* from, socklen_t* from_bytes)) {
  const iovec part = part_of(to, bytes);
  return receive(fd, parts_of(&part, 1), flags, from, from_bytes);
}

BLOCKING_VERB("RDMACM_1.0", ssize_t, rrecvmsg, (int fd, msghdr* message, int flags)) {
  message->msg_controllen = 0;  // there is nothing to tell
  message->msg_flags = 0;
  return receive(fd, parts_of(message->msg_iov, message->msg_iovlen), flags,
                 static_cast<sockaddr*>(message->msg_name), &message->msg_namelen);
}

BLOCKING_VERB("RDMACM_1.0", ssize_t, rread, (int fd, void* to, size_t bytes)) {
  return entry_rrecv(fd, to, bytes, 0);
}

BLOCKING_VERB("RDMACM_1.0", ssize_t, rreadv, (int fd, const iovec* list, int count)) {
  if (is_bad_list(list, count)) return errno = EINVAL, -1;
  return receive(fd, parts_of(list, static_cast<std::size_t>(count)), 0, nullptr, nullptr);
}

BLOCKING_VERB("RDMACM_1.0", ssize_t, rsend, (int fd, const void* from, size_t bytes, int flags)) {
  const iovec part = part_of(from, bytes);
  return send(fd, parts_of(&part, 1), flags, nullptr, 0);
}

BLOCKING_VERB("RDMACM_1.0", ssize_t, rsendto,
              (int fd, const void* from, size_t bytes, int flags, const sockaddr* to,
               socklen_t to_bytes)) {
  const iovec part = part_of(from, bytes);
  return send(fd, parts_of(&part, 1), flags, to, to_bytes);
}

BLOCKING_VERB("RDMACM_1.0", ssize_t, rsendmsg, (int fd, const msghdr* message, int flags)) {
  if (message->msg_control != nullptr && message->msg_controllen > 0) return errno = ENOTSUP, -1;
  return send(fd, parts_of(message->msg_iov, message->msg_iovlen), flags,
              static_cast<const sockaddr*>(message->msg_name), message->msg_namelen);
}

BLOCKING_VERB("RDMACM_1.0", ssize_t, rwrite, (int fd, const void* from, size_t bytes)) {
  return entry_rsend(fd, from, bytes, 0);
}

BLOCKING_VERB("RDMACM_1.0", ssize_t, rwritev, (int fd, const iovec* list, int count)) {
  if (is_bad_list(list, count)) return errno = EINVAL, -1;
  return send(fd, parts_of(list, static_cast<std::size_t>(count)), 0, nullptr, 0);
}

BLOCKING_VERB("RDMACM_1.0", int, rpoll, (pollfd * fds, nfds_t count, int timeout)) {
  return answer_minus_one([&] { return poll_sockets({fds, count}, timeout); });
}

BLOCKING_VERB("RDMACM_1.0", int, rselect,
              (int count, fd_set* readable, fd_set* writable, fd_set* exceptional,
               timeval* timeout)) {
  return answer_minus_one(
      [&] { return select_sockets(count, readable, writable, exceptional, timeout); });
}

VERB("RDMACM_1.0", int, rgetpeername, (int fd, sockaddr* address, socklen_t* bytes)) {
  return answer_zero([&]() -> Outcome<void> {
    const auto socket = socket_of(fd);
    if (!socket) return socket.error();
    const auto peer = (*socket)->peer_address();
    if (!peer) return peer.error();
    give_address(*peer, address, bytes);
    return {};
  });
}

VERB("RDMACM_1.0", int, rgetsockname, (int fd, sockaddr* address, socklen_t* bytes)) {
  return answer_zero([&]() -> Outcome<void> {
    const auto socket = socket_of(fd);
    if (!socket) return socket.error();
    const auto local = (*socket)->local_address();
    if (!local) return local.error();
    give_address(*local, address, bytes);
    return {};
  });
}

VERB("RDMACM_1.0", int, rsetsockopt,
     (int fd, int level, int name, const void* value, socklen_t bytes)) {
  return answer_zero([&]() -> Outcome<void> {
    const auto socket = socket_of(fd);
    if (!socket) return socket.error();
    return (*socket)->set_option(level, name, {static_cast<const std::byte*>(value), bytes});
  });
}

VERB("RDMACM_1.0", int, rgetsockopt, (int fd, int level, int name, void* value, socklen_t* bytes)) {
  return answer_zero([&]() -> Outcome<void> {
    const auto socket = socket_of(fd);
    if (!socket) return socket.error();
    return (*socket)->get_option(level, name, value, *bytes);
  });
}

VERB("RDMACM_1.0", int, rfcntl, (int fd, int command, ...)) {
  va_list rest;
  va_start(rest, command);
  const int argument = command == F_SETFL || command == F_SETFD ? va_arg(rest, int) : 0;
  va_end(rest);
  return answer_minus_one([&]() -> Outcome<int> {
    const auto socket = socket_of(fd);
    if (!socket) return socket.error();
    if (command == F_GETFL) return (*socket)->flags();
    if (command == F_GETFD || command == F_SETFD) return ::fcntl(fd, command, argument);
    if (command != F_SETFL) return Errno{ENOTSUP};
    (*socket)->set_flags(((*socket)->flags() & ~O_NONBLOCK) | (argument & O_NONBLOCK));
    return 0;
  });
}

BLOCKING_VERB("RDMACM_1.0", off_t, riomap,
              (int fd, void* memory, size_t bytes, int protection, int, off_t offset)) {
  return answer_minus_one([&]() -> Outcome<off_t> {
    const auto socket = stream_of(fd);
    if (!socket) return socket.error();
    return (*socket)->map(memory, bytes, protection, offset);
  });
}

BLOCKING_VERB("RDMACM_1.0", int, riounmap, (int fd, void* memory, size_t bytes)) {
  return answer_zero([&]() -> Outcome<void> {
    const auto socket = stream_of(fd);
    if (!socket) return socket.error();
    return (*socket)->unmap(memory, bytes);
  });
}

BLOCKING_VERB("RDMACM_1.0", size_t, riowrite,
              (int fd, const void* from, size_t bytes, off_t offset, int flags)) {
  return answer_minus_one([&]() -> Outcome<std::size_t> {
    const auto socket = stream_of(fd);
    if (!socket) return socket.error();
    return (*socket)->write_mapped({static_cast<const std::byte*>(from), bytes}, offset, flags);
  });
}

}  // namespace softhca::abi
