// How sockets come and go.
#include <fcntl.h>

#include <cerrno>
#include <cstdarg>

#include "abi/rspreload/fork_support.h"
#include "abi/rspreload/originals.h"
#include "abi/rspreload/own_code.h"
#include "abi/rspreload/settings.h"
#include "abi/stands_for.h"

namespace softhca::abi {
namespace {

constexpr int kTypeFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;

int close_behind(Place place) {
  return place.is_rsocket() ? ::rclose(place.fd) : libc().close(place.fd);
}

// A place for what has been opened, or nothing at all.
int placed(Place place, bool closes_on_exec) {
  const int fd = new_place(place, closes_on_exec);
  if (fd >= 0) return fd;
  const int error = errno;
  close_behind(place);
  errno = error;
  return -1;
}

int accepted(int listener, sockaddr* address, socklen_t* bytes, int flags) {
  const Place place = place_of(listener);
  if (place.is_rsocket()) {
    const int fd = ::raccept(place.fd, address, bytes);
    if (fd < 0) return fd;
    if ((flags & SOCK_NONBLOCK) != 0) ::rfcntl(fd, F_SETFL, O_NONBLOCK);
    return placed({Behind::Rsocket, fd}, (flags & SOCK_CLOEXEC) != 0);
  }
  const int fd = libc().accept4(place.fd, address, bytes, flags);
  if (fd < 0 || place.behind != Behind::ForkListening) return fd;
  return placed({Behind::ForkPassive, fd}, (flags & SOCK_CLOEXEC) != 0);
}

// There is no rsocket at the other end: TCP from now on, by the same descriptor.
bool fall_back_to_tcp(int fd, Place& place) {
  int domain = 0;
  int type = 0;
  socklen_t bytes = sizeof domain;
  if (::rgetsockopt(place.fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 ||
      ::rgetsockopt(place.fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_STREAM)
    return false;
  const int tcp = libc().socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (tcp < 0) return false;
  copy_options(place.fd, tcp, false);
  ::rclose(place.fd);
  place = {Behind::Kernel, tcp};
  set_place(fd, place);
  return true;
}

// The descriptor has become another one of what is behind `of`; what was behind it before goes.
void take_over(int fd, int of) {
  const Place before = place_of(fd);
  if (before.behind != Behind::Itself && leave_place(fd, before)) close_behind(before);
  share_place(of, fd);
}

}  // namespace

SOFTHCA_HOOK int hook_socket(int domain, int type, int protocol) {
  const auto caller = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  const int kind = type & ~kTypeFlags;
  if (is_own_code(caller) || !is_wanted(domain, kind, protocol))
    return libc().socket(domain, type, protocol);
  if (kind == SOCK_STREAM && supports_fork()) {
    const int fd = libc().socket(domain, type, protocol);
    return fd < 0 ? fd : placed({Behind::ForkFresh, fd}, (type & SOCK_CLOEXEC) != 0);
  }
  const int fd = ::rsocket(domain, type, protocol);
  if (fd < 0) return libc().socket(domain, type, protocol);
  apply_sizes(fd);
  return placed({Behind::Rsocket, fd}, (type & SOCK_CLOEXEC) != 0);
}
SOFTHCA_STANDS_FOR(socket, hook_socket);

SOFTHCA_HOOK int hook_bind(int fd, const sockaddr* address, socklen_t bytes) {
  const Place place = place_of(fd);
  return place.is_rsocket() ? ::rbind(place.fd, address, bytes)
                            : libc().bind(place.fd, address, bytes);
}
SOFTHCA_STANDS_FOR(bind, hook_bind);

SOFTHCA_HOOK int hook_listen(int fd, int backlog) {
  const Place place = place_of(fd);
  if (place.is_rsocket()) return ::rlisten(place.fd, backlog);
  const int done = libc().listen(place.fd, backlog);
  if (done == 0 && place.behind == Behind::ForkFresh)
    set_place(fd, {Behind::ForkListening, place.fd});
  return done;
}
SOFTHCA_STANDS_FOR(listen, hook_listen);

SOFTHCA_HOOK int hook_accept(int fd, sockaddr* address, socklen_t* bytes) {
  return accepted(fd, address, bytes, 0);
}
SOFTHCA_STANDS_FOR(accept, hook_accept);

SOFTHCA_HOOK int hook_accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  return accepted(fd, address, bytes, flags);
}
SOFTHCA_STANDS_FOR(accept4, hook_accept4);

SOFTHCA_HOOK int hook_connect(int fd, const sockaddr* address, socklen_t bytes) {
  Place place = place_of(fd);
  if (place.is_rsocket()) {
    const int done = ::rconnect(place.fd, address, bytes);
    const int error = errno;
    const bool goes_on = error == EINPROGRESS || error == EALREADY || error == EISCONN;
    if (done == 0 || goes_on || !fall_back_to_tcp(fd, place)) {
      errno = error;
      return done;
    }
  } else if (place.behind == Behind::ForkFresh) {
    set_place(fd, {Behind::ForkActive, place.fd});
  }
  return libc().connect(place.fd, address, bytes);
}
SOFTHCA_STANDS_FOR(connect, hook_connect);

SOFTHCA_HOOK int hook_shutdown(int fd, int how) {
  const Place place = place_of(fd);
  return place.is_rsocket() ? ::rshutdown(place.fd, how) : libc().shutdown(place.fd, how);
}
SOFTHCA_STANDS_FOR(shutdown, hook_shutdown);

SOFTHCA_HOOK int hook_close(int fd) {
  const Place place = place_of(fd);
  if (place.behind == Behind::Itself) return libc().close(fd);
  const int done = leave_place(fd, place) ? close_behind(place) : 0;
  libc().close(fd);
  return done;
}
SOFTHCA_STANDS_FOR(close, hook_close);
SOFTHCA_STANDS_FOR(__close, hook_close);

SOFTHCA_HOOK int hook_dup(int fd) {
  settled_place(fd);
  const int copy = libc().dup(fd);
  if (copy >= 0) share_place(fd, copy);
  return copy;
}
SOFTHCA_STANDS_FOR(dup, hook_dup);

SOFTHCA_HOOK int hook_dup3(int fd, int to, int flags) {
  settled_place(fd);
  const int copy = libc().dup3(fd, to, flags);
  if (copy >= 0) take_over(copy, fd);
  return copy;
}
SOFTHCA_STANDS_FOR(dup3, hook_dup3);

SOFTHCA_HOOK int hook_dup2(int fd, int to) {
  settled_place(fd);
  const int copy = libc().dup2(fd, to);
  if (copy >= 0 && fd != to) take_over(copy, fd);
  return copy;
}
SOFTHCA_STANDS_FOR(dup2, hook_dup2);

}  // namespace softhca::abi
