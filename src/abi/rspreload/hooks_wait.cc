// How programs wait: the descriptors become those behind them, and rpoll knows the rest.
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

#include "abi/rspreload/originals.h"
#include "abi/rspreload/places.h"
#include "abi/stands_for.h"

extern "C" [[noreturn]] void __chk_fail();

namespace softhca::abi {
namespace {

// As many descriptors as are asked for, on the stack if they are few.
class PollList {
 public:
  explicit PollList(std::size_t count)
      : many_(count > kFew ? static_cast<pollfd*>(std::calloc(count, sizeof(pollfd))) : nullptr),
        is_there_(count <= kFew || many_ != nullptr) {}
  ~PollList() { std::free(many_); }
  PollList(const PollList&) = delete;
  PollList& operator=(const PollList&) = delete;

  pollfd* get() { return is_there_ ? (many_ != nullptr ? many_ : few_) : nullptr; }

 private:
  static constexpr std::size_t kFew = 64;
  pollfd few_[kFew]{};
  pollfd* many_;
  bool is_there_;
};

bool has_places(const pollfd* wanted, nfds_t count) {
  return std::any_of(wanted, wanted + count,
                     [](const pollfd& one) { return place_of(one.fd).behind != Behind::Itself; });
}

int poll_behind(pollfd* wanted, nfds_t count, int timeout_ms) {
  PollList list(count);
  pollfd* const behind = list.get();
  if (behind == nullptr) return errno = ENOMEM, -1;
  for (nfds_t i = 0; i < count; ++i) behind[i] = {place_of(wanted[i].fd).fd, wanted[i].events, 0};
  const int ready = ::rpoll(behind, count, timeout_ms);
  for (nfds_t i = 0; i < count; ++i) wanted[i].revents = behind[i].revents;
  return ready;
}

int milliseconds_of(const timespec* timeout) {
  if (timeout == nullptr) return -1;
  const long long ms = timeout->tv_sec * 1000LL + (timeout->tv_nsec + 999'999) / 1'000'000;
  return static_cast<int>(std::min<long long>(ms, INT_MAX));
}

struct Sets {
  fd_set* readable;
  fd_set* writable;
  fd_set* exceptional;

  int events(int fd) const {
    return (readable != nullptr && FD_ISSET(fd, readable) ? POLLIN : 0) |
           (writable != nullptr && FD_ISSET(fd, writable) ? POLLOUT : 0) |
           (exceptional != nullptr && FD_ISSET(fd, exceptional) ? POLLPRI : 0);
  }
  bool has_places(int count) const {
    for (int fd = 0; fd < count; ++fd)
      if (events(fd) != 0 && place_of(fd).behind != Behind::Itself) return true;
    return false;
  }
};

// Leaves the bit where one of `events` has come; how many are left.
int keep(fd_set* set, const pollfd& one, int asked, int events) {
  if ((one.events & asked) == 0) return 0;
  if ((one.revents & events) != 0) return 1;
  FD_CLR(one.fd, set);
  return 0;
}

int select_behind(int count, const Sets& sets, int timeout_ms) {
  PollList list(static_cast<std::size_t>(count));
  pollfd* const wanted = list.get();
  if (wanted == nullptr) return errno = ENOMEM, -1;
  nfds_t used = 0;
  for (int fd = 0; fd < count; ++fd)
    if (const int events = sets.events(fd); events != 0)
      wanted[used++] = {fd, static_cast<short>(events), 0};
  const int polled = poll_behind(wanted, used, timeout_ms);
  if (polled < 0) return polled;
  int ready = 0;
  for (nfds_t i = 0; i < used; ++i) {
    if ((wanted[i].revents & POLLNVAL) != 0) return errno = EBADF, -1;
    ready += keep(sets.readable, wanted[i], POLLIN, POLLIN | POLLHUP | POLLERR);
    ready += keep(sets.writable, wanted[i], POLLOUT, POLLOUT | POLLERR);
    ready += keep(sets.exceptional, wanted[i], POLLPRI, POLLPRI);
  }
  return ready;
}

}  // namespace

SOFTHCA_HOOK int hook_poll(pollfd* wanted, nfds_t count, int timeout_ms) {
  return has_places(wanted, count) ? poll_behind(wanted, count, timeout_ms)
                                   : libc().poll(wanted, count, timeout_ms);
}
SOFTHCA_STANDS_FOR(poll, hook_poll);

SOFTHCA_HOOK int hook_poll_chk(pollfd* wanted, nfds_t count, int timeout_ms, std::size_t room) {
  if (room / sizeof *wanted < count) __chk_fail();
  return hook_poll(wanted, count, timeout_ms);
}
SOFTHCA_STANDS_FOR(__poll_chk, hook_poll_chk);

// The mask is not looked at where there is an rsocket: signals come as they would without it.
SOFTHCA_HOOK int hook_ppoll(pollfd* wanted, nfds_t count, const timespec* timeout,
                            const sigset_t* mask) {
  return has_places(wanted, count) ? poll_behind(wanted, count, milliseconds_of(timeout))
                                   : libc().ppoll(wanted, count, timeout, mask);
}
SOFTHCA_STANDS_FOR(ppoll, hook_ppoll);

SOFTHCA_HOOK int hook_ppoll_chk(pollfd* wanted, nfds_t count, const timespec* timeout,
                                const sigset_t* mask, std::size_t room) {
  if (room / sizeof *wanted < count) __chk_fail();
  return hook_ppoll(wanted, count, timeout, mask);
}
SOFTHCA_STANDS_FOR(__ppoll_chk, hook_ppoll_chk);

SOFTHCA_HOOK int hook_select(int count, fd_set* readable, fd_set* writable, fd_set* exceptional,
                             timeval* timeout) {
  const Sets sets{readable, writable, exceptional};
  if (count > FD_SETSIZE || !sets.has_places(count))
    return libc().select(count, readable, writable, exceptional, timeout);
  if (timeout == nullptr) return select_behind(count, sets, -1);
  const timespec until{timeout->tv_sec, timeout->tv_usec * 1000};
  return select_behind(count, sets, milliseconds_of(&until));
}
SOFTHCA_STANDS_FOR(select, hook_select);

SOFTHCA_HOOK int hook_pselect(int count, fd_set* readable, fd_set* writable, fd_set* exceptional,
                              const timespec* timeout, const sigset_t* mask) {
  const Sets sets{readable, writable, exceptional};
  if (count > FD_SETSIZE || !sets.has_places(count))
    return libc().pselect(count, readable, writable, exceptional, timeout, mask);
  return select_behind(count, sets, milliseconds_of(timeout));
}
SOFTHCA_STANDS_FOR(pselect, hook_pselect);

}  // namespace softhca::abi
