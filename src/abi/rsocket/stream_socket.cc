#include "abi/rsocket/stream_socket.h"

#include <cerrno>
#include <cstring>

#include "abi/rsocket/keepalive.h"
#include "abi/rsocket/rdma_calls.h"
#include "abi/rsocket/sleepers.h"
#include "os/clock.h"

namespace softhca::abi {
namespace {

constexpr Duration kClosesAtMost = seconds(10);  // until the peer has taken what was sent

// rdma_cm wants an address that it could change.
sockaddr_storage copy_of(const sockaddr& address) {
  sockaddr_storage copy{};
  std::memcpy(&copy, &address, bytes_of_address(address));
  return copy;
}
sockaddr* as_sockaddr(sockaddr_storage& address) { return reinterpret_cast<sockaddr*>(&address); }

// What an id has of an address, before it has one too.
sockaddr_storage shown(const sockaddr& address, int domain) {
  sockaddr_storage copy{};
  copy.ss_family = static_cast<sa_family_t>(domain);
  if (address.sa_family == AF_INET || address.sa_family == AF_INET6) copy = copy_of(address);
  return copy;
}

}  // namespace

Outcome<std::shared_ptr<StreamSocket>> StreamSocket::with_channel(int domain) {
  rdma_event_channel* const events = entry_rdma_create_event_channel();
  if (events == nullptr) return Errno{errno};
  ::fcntl(events->fd, F_SETFL, ::fcntl(events->fd, F_GETFL) | O_NONBLOCK);
  return std::shared_ptr<StreamSocket>(new StreamSocket(domain, events));
}

Outcome<std::shared_ptr<Socket>> StreamSocket::open(int domain) {
  auto socket = with_channel(domain);
  if (!socket) return socket.error();
  rdma_cm_id* id = nullptr;
  if (entry_rdma_create_id((*socket)->events_.get(), &id, nullptr, RDMA_PS_TCP) != 0)
    return Errno{errno};
  (*socket)->id_.reset(id);
  return std::shared_ptr<Socket>(*socket);
}

StreamSocket::~StreamSocket() {
  stop_keepalive(*this);
  if (id_ && id_->qp != nullptr) entry_rdma_destroy_qp(id_.get());
  for (const Mapped& mapped : mapped_) ::ibv_dereg_mr(mapped.region);
}

void StreamSocket::close() {
  Lock lock(mutex_);
  is_closed_ = true;
  wake_sleepers();
  if (!stream_ || !stream_->is_open()) return;
  shut(SHUT_RDWR);
  const os::Clock clock;
  const auto told = [&] { return stream_->is_quiet(); };
  for (look_after(); !told() && clock.now() < Time{} + kClosesAtMost;)
    sleep(lock, told, Time{} + kClosesAtMost - clock.now());
}

Outcome<void> StreamSocket::bind(const sockaddr& address, socklen_t bytes) {
  if (is_foreign(address, bytes)) return Errno{EAFNOSUPPORT};
  const Lock lock(mutex_);
  if (stage_ != Stage::Fresh) return Errno{EINVAL};
  sockaddr_storage copy = copy_of(address);
  if (entry_rdma_bind_addr(id_.get(), as_sockaddr(copy)) != 0) return Errno{errno};
  stage_ = Stage::Bound;
  return {};
}

Outcome<void> StreamSocket::listen(int backlog) {
  const Lock lock(mutex_);
  if (stage_ == Stage::Listening) return {};
  if (stage_ == Stage::Fresh) {  // as TCP: at any address, and a port that is free
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(domain_);
    if (entry_rdma_bind_addr(id_.get(), as_sockaddr(any)) != 0) return Errno{errno};
    stage_ = Stage::Bound;
  }
  if (stage_ != Stage::Bound) return Errno{EINVAL};
  if (entry_rdma_listen(id_.get(), backlog) != 0) return Errno{errno};
  stage_ = Stage::Listening;
  return {};
}

Outcome<void> StreamSocket::shut_down(int how) {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return Errno{EINVAL};
  const Lock lock(mutex_);
  if (!stream_ || is_opening()) return Errno{ENOTCONN};
  shut(how);
  look_after();
  wake_sleepers();
  return {};
}

Outcome<sockaddr_storage> StreamSocket::local_address() {
  const Lock lock(mutex_);
  return shown(id_->route.addr.src_addr, domain_);
}

Outcome<sockaddr_storage> StreamSocket::peer_address() {
  const Lock lock(mutex_);
  if (stage_ != Stage::Connected && stage_ != Stage::Accepting) return Errno{ENOTCONN};
  return shown(id_->route.addr.dst_addr, domain_);
}

Outcome<void> StreamSocket::connect(const sockaddr& address, socklen_t bytes) {
  if (is_foreign(address, bytes)) return Errno{EAFNOSUPPORT};
  Lock lock(mutex_);
  if (stage_ == Stage::Connected || stage_ == Stage::Accepting) return Errno{EISCONN};
  if (is_opening()) return Errno{EALREADY};
  if (stage_ != Stage::Fresh && stage_ != Stage::Bound) return Errno{EINVAL};
  destination_ = copy_of(address);
  if (entry_rdma_resolve_addr(id_.get(), nullptr, as_sockaddr(destination_), kResolveMs) != 0)
    return Errno{errno};
  stage_ = Stage::Resolving;
  if (is_non_blocking()) return Errno{EINPROGRESS};  // poll goes on with it
  return await_connection(lock, false);
}

}  // namespace softhca::abi
