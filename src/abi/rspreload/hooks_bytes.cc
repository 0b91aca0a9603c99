// How bytes are moved.
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "abi/rspreload/fork_support.h"
#include "abi/rspreload/originals.h"
#include "abi/stands_for.h"

extern "C" [[noreturn]] void __chk_fail();

namespace softhca::abi {
namespace {

// What _FORTIFY_SOURCE asks for: the program would write over something.
void check_room(std::size_t bytes, std::size_t room) {
  if (bytes > room) __chk_fail();
}

}  // namespace

SOFTHCA_HOOK ssize_t hook_recv(int fd, void* to, std::size_t bytes, int flags) {
  const Place place = settled_place(fd);
  return place.is_rsocket() ? ::rrecv(place.fd, to, bytes, flags)
                            : libc().recv(place.fd, to, bytes, flags);
}
SOFTHCA_STANDS_FOR(recv, hook_recv);

SOFTHCA_HOOK ssize_t hook_recv_chk(int fd, void* to, std::size_t bytes, std::size_t room,
                                   int flags) {
  check_room(bytes, room);
  return hook_recv(fd, to, bytes, flags);
}
SOFTHCA_STANDS_FOR(__recv_chk, hook_recv_chk);

SOFTHCA_HOOK ssize_t hook_recvfrom(int fd, void* to, std::size_t bytes, int flags, sockaddr* from,
                                   socklen_t* from_bytes) {
  const Place place = settled_place(fd);
  return place.is_rsocket() ? ::rrecvfrom(place.fd, to, bytes, flags, from, from_bytes)
                            : libc().recvfrom(place.fd, to, bytes, flags, from, from_bytes);
}
SOFTHCA_STANDS_FOR(recvfrom, hook_recvfrom);

SOFTHCA_HOOK ssize_t hook_recvfrom_chk(int fd, void* to, std::size_t bytes, std::size_t room,
                                       int flags, sockaddr* from, socklen_t* from_bytes) {
  check_room(bytes, room);
  return hook_recvfrom(fd, to, bytes, flags, from, from_bytes);
}
SOFTHCA_STANDS_FOR(__recvfrom_chk, hook_recvfrom_chk);

SOFTHCA_HOOK ssize_t hook_recvmsg(int fd, msghdr* message, int flags) {
  const Place place = settled_place(fd);
  return place.is_rsocket() ? ::rrecvmsg(place.fd, message, flags)
                            : libc().recvmsg(place.fd, message, flags);
}
SOFTHCA_STANDS_FOR(recvmsg, hook_recvmsg);

SOFTHCA_HOOK ssize_t hook_read(int fd, void* to, std::size_t bytes) {
  const Place place = settled_place(fd);
  return place.is_rsocket() ? ::rread(place.fd, to, bytes) : libc().read(place.fd, to, bytes);
}
SOFTHCA_STANDS_FOR(read, hook_read);

SOFTHCA_HOOK ssize_t hook_read_chk(int fd, void* to, std::size_t bytes, std::size_t room) {
  check_room(bytes, room);
  return hook_read(fd, to, bytes);
}
SOFTHCA_STANDS_FOR(__read_chk, hook_read_chk);

SOFTHCA_HOOK ssize_t hook_readv(int fd, const iovec* list, int count) {
  const Place place = settled_place(fd);
  return place.is_rsocket() ? ::rreadv(place.fd, list, count) : libc().readv(place.fd, list, count);
}
SOFTHCA_STANDS_FOR(readv, hook_readv);

SOFTHCA_HOOK ssize_t hook_send(int fd, const void* from, std::size_t bytes, int flags) {
  const Place place = settled_place(fd);
  return place.is_rsocket() ? ::rsend(place.fd, from, bytes, flags)
                            : libc().send(place.fd, from, bytes, flags);
}
SOFTHCA_STANDS_FOR(send, hook_send);

SOFTHCA_HOOK ssize_t hook_sendto(int fd, const void* from, std::size_t bytes, int flags,
                                 const sockaddr* to, socklen_t to_bytes) {
  const Place place = settled_place(fd);
  return place.is_rsocket() ? ::rsendto(place.fd, from, bytes, flags, to, to_bytes)
                            : libc().sendto(place.fd, from, bytes, flags, to, to_bytes);
}
SOFTHCA_STANDS_FOR(sendto, hook_sendto);

SOFTHCA_HOOK ssize_t hook_sendmsg(int fd, const msghdr* message, int flags) {
  const Place place = settled_place(fd);
  return place.is_rsocket() ? ::rsendmsg(place.fd, message, flags)
                            : libc().sendmsg(place.fd, message, flags);
}
SOFTHCA_STANDS_FOR(sendmsg, hook_sendmsg);

SOFTHCA_HOOK ssize_t hook_write(int fd, const void* from, std::size_t bytes) {
  const Place place = settled_place(fd);
  return place.is_rsocket() ? ::rwrite(place.fd, from, bytes) : libc().write(place.fd, from, bytes);
}
SOFTHCA_STANDS_FOR(write, hook_write);

SOFTHCA_HOOK ssize_t hook_writev(int fd, const iovec* list, int count) {
  const Place place = settled_place(fd);
  return place.is_rsocket() ? ::rwritev(place.fd, list, count)
                            : libc().writev(place.fd, list, count);
}
SOFTHCA_STANDS_FOR(writev, hook_writev);

// A piece at a time. What the socket does not take stays in the file.
SOFTHCA_HOOK ssize_t hook_sendfile(int fd, int file, off_t* offset, std::size_t bytes) {
  const Place place = settled_place(fd);
  if (!place.is_rsocket()) return libc().sendfile(place.fd, file, offset, bytes);
  char piece[16384];
  off_t at = offset != nullptr ? *offset : ::lseek(file, 0, SEEK_CUR);
  if (at < 0) return -1;
  std::size_t sent = 0;
  ssize_t moved = 0;
  while (sent < bytes) {
    moved = ::pread(file, piece, std::min(sizeof piece, bytes - sent), at);
    if (moved <= 0) break;
    const auto wanted = static_cast<std::size_t>(moved);
    moved = ::rwrite(place.fd, piece, wanted);
    if (moved < 0) break;
    sent += static_cast<std::size_t>(moved);
    at += moved;
    if (static_cast<std::size_t>(moved) < wanted) break;
  }
  if (offset != nullptr)
    *offset = at;
  else
    ::lseek(file, at, SEEK_SET);
  return moved < 0 && sent == 0 ? -1 : static_cast<ssize_t>(sent);
}
SOFTHCA_STANDS_FOR(sendfile, hook_sendfile);
SOFTHCA_STANDS_FOR(sendfile64, hook_sendfile);

}  // namespace softhca::abi
