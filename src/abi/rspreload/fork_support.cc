#include "abi/rspreload/fork_support.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <semaphore.h>

#include <cstdint>
#include <cstring>

#include "abi/rspreload/originals.h"
#include "abi/rspreload/settings.h"

namespace softhca::abi {
namespace {

struct Option {
  int level;
  int name;
};
constexpr Option kOptions[] = {{SOL_SOCKET, SO_REUSEADDR}, {IPPROTO_TCP, TCP_NODELAY}};

// Among all servers of the host that use rsockets, as stock names it.
class OneAtATime {
 public:
  OneAtATime() : turn_(::sem_open("/rsocket_fork", O_CREAT | O_RDWR, 0770, 1)) {
    if (is_mine()) ::sem_wait(turn_);
  }
  ~OneAtATime() {
    if (!is_mine()) return;
    ::sem_post(turn_);
    ::sem_close(turn_);
  }
  OneAtATime(const OneAtATime&) = delete;
  OneAtATime& operator=(const OneAtATime&) = delete;

  bool is_mine() const { return turn_ != SEM_FAILED; }

 private:
  sem_t* const turn_;
};

void become(int fd, int tcp, int rsocket) {
  apply_sizes(rsocket);
  copy_options(tcp, rsocket, true);
  libc().shutdown(tcp, SHUT_RDWR);
  libc().close(tcp);
  set_place(fd, {Behind::Rsocket, rsocket});
}

// Waits for the server's word, blocking or not, and connects anew.
bool become_client(int fd, int tcp) {
  const int flags = libc().fcntl(tcp, F_GETFL);
  libc().fcntl(tcp, F_SETFL, 0);
  std::uint32_t word = 1;
  const ssize_t got = libc().recv(tcp, &word, sizeof word, MSG_PEEK | MSG_WAITALL);
  libc().fcntl(tcp, F_SETFL, flags);
  if (got != sizeof word || word != 0) return false;

  sockaddr_storage peer{};
  socklen_t bytes = sizeof peer;
  auto* const address = reinterpret_cast<sockaddr*>(&peer);
  if (libc().getpeername(tcp, address, &bytes) != 0) return false;
  const int rsocket = ::rsocket(peer.ss_family, SOCK_STREAM, 0);
  if (rsocket < 0) return false;
  if (::rconnect(rsocket, address, bytes) != 0) {
    ::rclose(rsocket);
    return false;
  }
  become(fd, tcp, rsocket);
  return true;
}

// At every address, at the port that the connection of TCP has.
bool listens_at_port_of(int tcp, int listener) {
  sockaddr_in6 local{};
  socklen_t bytes = sizeof local;
  auto* const address = reinterpret_cast<sockaddr*>(&local);
  if (libc().getsockname(tcp, address, &bytes) != 0) return false;
  sockaddr_in6 any{};
  any.sin6_family = local.sin6_family;
  any.sin6_port = local.sin6_port;  // where sockaddr_in has it too
  const int on = 1;
  ::rsetsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return ::rbind(listener, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0 &&
         ::rlisten(listener, 1) == 0;
}

bool become_server(int fd, int tcp) {
  const OneAtATime turn;
  if (!turn.is_mine()) return false;
  sockaddr_storage local{};
  socklen_t bytes = sizeof local;
  if (libc().getsockname(tcp, reinterpret_cast<sockaddr*>(&local), &bytes) != 0) return false;
  const int listener = ::rsocket(local.ss_family, SOCK_STREAM, 0);
  if (listener < 0) return false;
  const std::uint32_t word = 0;
  int rsocket = -1;
  if (listens_at_port_of(tcp, listener) && libc().write(tcp, &word, sizeof word) == sizeof word)
    rsocket = ::raccept(listener, nullptr, nullptr);
  ::rclose(listener);
  if (rsocket < 0) return false;
  become(fd, tcp, rsocket);
  return true;
}

}  // namespace

void copy_options(int from, int to, bool to_rsocket) {
  const int flags = to_rsocket ? libc().fcntl(from, F_GETFL) : ::rfcntl(from, F_GETFL);
  if (to_rsocket)
    ::rfcntl(to, F_SETFL, flags);
  else
    libc().fcntl(to, F_SETFL, flags & O_NONBLOCK);
  for (const Option option : kOptions) {
    int value = 0;
    socklen_t bytes = sizeof value;
    const int got = to_rsocket ? libc().getsockopt(from, option.level, option.name, &value, &bytes)
                               : ::rgetsockopt(from, option.level, option.name, &value, &bytes);
    if (got != 0 || value == 0) continue;
    if (to_rsocket)
      ::rsetsockopt(to, option.level, option.name, &value, sizeof value);
    else
      libc().setsockopt(to, option.level, option.name, &value, sizeof value);
  }
}

Place settled_place(int fd) {
  const Place place = place_of(fd);
  if (place.behind != Behind::ForkActive && place.behind != Behind::ForkPassive) return place;
  const bool became = place.behind == Behind::ForkActive ? become_client(fd, place.fd)
                                                         : become_server(fd, place.fd);
  if (!became) set_place(fd, {Behind::Kernel, place.fd});
  return place_of(fd);
}

}  // namespace softhca::abi
