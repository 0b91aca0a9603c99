// What is asked and said of sockets.
#include <fcntl.h>

#include <cerrno>
#include <cstdarg>

#include "abi/rspreload/originals.h"
#include "abi/rspreload/places.h"
#include "abi/stands_for.h"

namespace softhca::abi {
namespace {

constexpr unsigned long kFionbio = 0x5421;  // FIONBIO of <asm/ioctls.h>

// The commands that are about the descriptor, not what is behind it.
bool is_about_descriptor(int command) {
  return command == F_GETFD || command == F_SETFD || command == F_DUPFD ||
         command == F_DUPFD_CLOEXEC;
}

}  // namespace

SOFTHCA_HOOK int hook_getpeername(int fd, sockaddr* address, socklen_t* bytes) {
  const Place place = place_of(fd);
  return place.is_rsocket() ? ::rgetpeername(place.fd, address, bytes)
                            : libc().getpeername(place.fd, address, bytes);
}
SOFTHCA_STANDS_FOR(getpeername, hook_getpeername);

SOFTHCA_HOOK int hook_getsockname(int fd, sockaddr* address, socklen_t* bytes) {
  const Place place = place_of(fd);
  return place.is_rsocket() ? ::rgetsockname(place.fd, address, bytes)
                            : libc().getsockname(place.fd, address, bytes);
}
SOFTHCA_STANDS_FOR(getsockname, hook_getsockname);

SOFTHCA_HOOK int hook_setsockopt(int fd, int level, int name, const void* value, socklen_t bytes) {
  const Place place = place_of(fd);
  return place.is_rsocket() ? ::rsetsockopt(place.fd, level, name, value, bytes)
                            : libc().setsockopt(place.fd, level, name, value, bytes);
}
SOFTHCA_STANDS_FOR(setsockopt, hook_setsockopt);

SOFTHCA_HOOK int hook_getsockopt(int fd, int level, int name, void* value, socklen_t* bytes) {
  const Place place = place_of(fd);
  return place.is_rsocket() ? ::rgetsockopt(place.fd, level, name, value, bytes)
                            : libc().getsockopt(place.fd, level, name, value, bytes);
}
SOFTHCA_STANDS_FOR(getsockopt, hook_getsockopt);

SOFTHCA_HOOK int hook_fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);  // a number is read the same way
  va_end(rest);
  const Place place = place_of(fd);
  if (place.behind == Behind::Itself || is_about_descriptor(command)) {
    const int done = libc().fcntl(fd, command, argument);
    if (done >= 0 && (command == F_DUPFD || command == F_DUPFD_CLOEXEC)) share_place(fd, done);
    return done;
  }
  return place.is_rsocket() ? ::rfcntl(place.fd, command, argument)
                            : libc().fcntl(place.fd, command, argument);
}
SOFTHCA_STANDS_FOR(fcntl, hook_fcntl);
SOFTHCA_STANDS_FOR(fcntl64, hook_fcntl);

SOFTHCA_HOOK int hook_ioctl(int fd, unsigned long command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  const Place place = place_of(fd);
  if (!place.is_rsocket() || command != kFionbio) return libc().ioctl(place.fd, command, argument);
  const int flags = ::rfcntl(place.fd, F_GETFL);
  if (flags < 0) return flags;
  const bool on = *static_cast<const int*>(argument) != 0;
  return ::rfcntl(place.fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}
SOFTHCA_STANDS_FOR(ioctl, hook_ioctl);

SOFTHCA_HOOK int hook_fstat(int fd, struct stat* about) {
  const Place place = place_of(fd);
  if (!place.is_rsocket()) return libc().fstat(place.fd, about);
  const int done = libc().fstat(fd, about);
  if (done == 0) about->st_mode = (about->st_mode & ~mode_t{S_IFMT}) | S_IFSOCK;
  return done;
}
SOFTHCA_STANDS_FOR(fstat, hook_fstat);
SOFTHCA_STANDS_FOR(fstat64, hook_fstat);

// As programs call it that were built before glibc 2.33.
SOFTHCA_HOOK int hook_fxstat(int, int fd, struct stat* about) { return hook_fstat(fd, about); }
SOFTHCA_STANDS_FOR(__fxstat, hook_fxstat);
SOFTHCA_STANDS_FOR(__fxstat64, hook_fxstat);

}  // namespace softhca::abi
