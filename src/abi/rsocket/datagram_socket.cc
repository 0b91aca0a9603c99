#include "abi/rsocket/datagram_socket.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "abi/rsocket/endpoint.h"
#include "abi/rsocket/sleepers.h"
#include "os/clock.h"

namespace softhca::abi {
namespace {

constexpr std::size_t kUdpBytesAtMost = 8192;  // of a datagram that goes by UDP, with its head
constexpr std::size_t kPeersAtMost = 4096;     // whoever sends to us is one
constexpr std::size_t kArrivedAtMost = 1024;   // more are dropped, as of UDP
constexpr Duration kLeavesAtMost = seconds(1);

Outcome<sockaddr_storage> named(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (name(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return Errno{errno};
  return address;
}

bool is_any_or_loopback(const rsocket::Endpoint& endpoint) {
  const auto& bytes = endpoint.address;
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  const std::size_t size = endpoint.is_ipv6 ? 16 : 4;
  if (!endpoint.is_ipv6 && bytes[0] == std::byte{127}) return true;
  return std::all_of(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size - 1),
                     is_zero) &&
         (is_zero(bytes[size - 1]) || (endpoint.is_ipv6 && bytes[15] == std::byte{1}));
}

}  // namespace

Outcome<std::shared_ptr<Socket>> DatagramSocket::open(int domain) {
  const int fd = ::socket(domain, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Errno{errno};
  return std::shared_ptr<Socket>(new DatagramSocket(domain, fd));
}

DatagramSocket::~DatagramSocket() {
  arrived_.clear();
  peers_.clear();
  ports_.clear();
  ::close(fd_);
}

void DatagramSocket::close() {
  Lock lock(mutex_);
  is_closed_ = true;
  wake_sleepers();
  const os::Clock clock;
  const auto quiet = [&] {
    return std::ranges::all_of(ports_, [](const auto& port) { return port->is_quiet(); });
  };
  while (look_after() || (!quiet() && clock.now() < Time{} + kLeavesAtMost)) {
  }
}

Outcome<void> DatagramSocket::bind(const sockaddr& address, socklen_t bytes) {
  if (::bind(fd_, &address, bytes) != 0) return Errno{errno};
  return {};
}

Outcome<void> DatagramSocket::listen(int) { return Errno{EOPNOTSUPP}; }

Outcome<std::shared_ptr<Socket>> DatagramSocket::accept() { return Errno{EOPNOTSUPP}; }

Outcome<void> DatagramSocket::connect(const sockaddr& address, socklen_t bytes) {
  const Lock lock(mutex_);
  if (::connect(fd_, &address, bytes) != 0) return Errno{errno};
  connected_.reset();
  if (address.sa_family == AF_UNSPEC) return {};
  sockaddr_storage copy{};
  std::memcpy(&copy, &address, std::min<std::size_t>(bytes, sizeof copy));
  const rsocket::Endpoint endpoint = endpoint_of(copy);
  if (const auto peer = peer_at(endpoint); !peer) return peer.error();
  connected_ = endpoint;
  return {};
}

Outcome<void> DatagramSocket::shut_down(int how) {
  if (::shutdown(fd_, how) != 0) return Errno{errno};
  return {};
}

Outcome<sockaddr_storage> DatagramSocket::local_address() { return named(fd_, ::getsockname); }
Outcome<sockaddr_storage> DatagramSocket::peer_address() { return named(fd_, ::getpeername); }

// Which address of this host datagrams to the peer come from.
Outcome<rsocket::Endpoint> DatagramSocket::source_towards(const rsocket::Endpoint& peer) {
  const auto own = local_address();
  if (!own) return own.error();
  rsocket::Endpoint source = endpoint_of(*own);
  if (source.port != 0 && !is_any_or_loopback(source)) return source;
  const int probe = ::socket(peer.is_ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return Errno{errno};
  const sockaddr_storage to = abi::address_of(peer);
  const auto& to_address = reinterpret_cast<const sockaddr&>(to);
  const bool leads = ::connect(probe, &to_address, bytes_of_address(to_address)) == 0;
  const Outcome<sockaddr_storage> found =
      leads ? named(probe, ::getsockname) : Outcome<sockaddr_storage>(Errno{errno});
  ::close(probe);
  if (!found) return found.error();
  if (source.port == 0) {  // a port of its own, as UDP gives it with the first datagram
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(domain_);
    const auto& any_address = reinterpret_cast<const sockaddr&>(any);
    if (::bind(fd_, &any_address, bytes_of_address(any_address)) != 0) return Errno{errno};
    const auto bound = local_address();
    if (!bound) return bound.error();
    source.port = endpoint_of(*bound).port;
  }
  rsocket::Endpoint towards = endpoint_of(*found);
  towards.port = source.port;
  return towards;
}

Outcome<DatagramPort*> DatagramSocket::port_at(const rsocket::Endpoint& local) {
  for (const auto& port : ports_)
    if (port->local() == local) return port.get();
  const rsocket::StreamShape shape = rsocket::possible_shape(shape_);
  auto opened = DatagramPort::open(
      local,
      {.sends = std::min(shape.sends, std::max(shape.send_bytes / DatagramPort::kSlotBytes, 1u)),
       .receives =
           std::min(shape.receives, std::max(shape.receive_bytes / DatagramPort::kSlotBytes, 1u)),
       .inline_bytes = inline_bytes_});
  if (!opened) return opened.error();
  ports_.push_back(std::move(*opened));
  wake_sleepers();  // they sleep without it
  return ports_.back().get();
}

Outcome<DatagramSocket::Peer*> DatagramSocket::peer_at(const rsocket::Endpoint& endpoint) {
  if (const auto known = peers_.find(endpoint); known != peers_.end()) return &known->second;
  const auto source = source_towards(endpoint);
  if (!source) return source.error();
  const auto port = port_at(*source);
  if (!port) return port.error();
  if (peers_.size() >= kPeersAtMost) peers_.erase(peers_.begin());
  return &peers_.try_emplace(endpoint, Peer{.port = *port}).first->second;
}

Outcome<std::size_t> DatagramSocket::send_by_udp(Parts parts, const rsocket::Endpoint& to,
                                                 const Peer& peer, bool has_bytes) {
  if (total_bytes(parts) > kUdpBytesAtMost - rsocket::kIntroductionBytesMax) return Errno{EMSGSIZE};
  const rsocket::Endpoint& local = peer.port->local();
  std::array<std::byte, rsocket::kIntroductionBytesMax> head{};
  const std::size_t head_bytes = rsocket::store_introduction(head, {.has_bytes = has_bytes,
                                                                    .qpn = peer.port->qpn(),
                                                                    .is_ipv6 = local.is_ipv6,
                                                                    .address = local.address});
  std::vector<iovec> all{{head.data(), head_bytes}};
  all.insert(all.end(), parts.begin(), parts.end());
  sockaddr_storage address = abi::address_of(to);
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = bytes_of_address(reinterpret_cast<sockaddr&>(address));
  message.msg_iov = all.data();
  message.msg_iovlen = all.size();
  if (::sendmsg(fd_, &message, MSG_NOSIGNAL) < 0) return Errno{errno};
  return total_bytes(parts);
}

Outcome<std::size_t> DatagramSocket::send(Parts parts, int flags, const sockaddr* to,
                                          socklen_t to_bytes) {
  if (to != nullptr && is_foreign(*to, to_bytes)) return Errno{EAFNOSUPPORT};
  Lock lock(mutex_);
  std::optional<rsocket::Endpoint> endpoint = connected_;
  if (to != nullptr) {
    sockaddr_storage copy{};
    std::memcpy(&copy, to, bytes_of_address(*to));
    endpoint = endpoint_of(copy);
  }
  if (!endpoint) return Errno{EDESTADDRREQ};
  auto peer = peer_at(*endpoint);
  if (!peer) return peer.error();
  if (!(*peer)->address) {
    look_after();  // it may have introduced itself
    peer = peer_at(*endpoint);
    if (!peer) return peer.error();
  }
  const std::size_t bytes = total_bytes(parts);
  if (!(*peer)->address || bytes > (*peer)->port->bytes_at_most())
    return send_by_udp(parts, *endpoint, **peer, true);
  if (!(*peer)->port->can_send()) {
    const auto there = wait(lock, returns_at_once(flags), [&] {
      peer = peer_at(*endpoint);
      return !peer || (*peer)->port->can_send();
    });
    if (!there) return there.error();
    if (!peer) return peer.error();
    if (!(*peer)->address) return send_by_udp(parts, *endpoint, **peer, true);
  }
  const auto sent = (*peer)->port->send(parts, (*peer)->address.get(), (*peer)->qpn);
  if (!sent) return sent.error();
  return bytes;
}

Outcome<std::size_t> DatagramSocket::receive(Parts parts, int flags, sockaddr_storage* from) {
  Lock lock(mutex_);
  const auto there = wait(lock, returns_at_once(flags), [&] { return !arrived_.empty(); });
  if (!there) return there.error();
  Arrived& first = arrived_.front();
  const std::size_t whole = first.bytes.size();
  const std::size_t bytes = std::min(whole, total_bytes(parts));
  PartCursor(parts).copy_in(first.bytes.first(bytes));
  if (from != nullptr) *from = abi::address_of(first.from);
  if ((flags & MSG_PEEK) == 0) {
    if (first.port != nullptr) first.port->take(first.slot);
    arrived_.pop_front();
  }
  return (flags & MSG_TRUNC) != 0 ? whole : bytes;
}

bool DatagramSocket::look_after() {
  bool came = false;
  for (const auto& port : ports_) {
    while (auto datagram = port->poll()) {
      came = true;
      arrived_.push_back({.from = datagram->from,
                          .port = port.get(),
                          .slot = datagram->slot,
                          .bytes = datagram->bytes});
    }
  }
  while (arrived_.empty() && take_from_udp()) came = true;
  if (came) wake_sleepers();
  return came;
}

bool DatagramSocket::take_from_udp() {
  std::array<std::byte, kUdpBytesAtMost> buffer;
  sockaddr_storage address{};
  socklen_t address_bytes = sizeof address;
  const ssize_t got = ::recvfrom(fd_, buffer.data(), buffer.size(), 0,
                                 reinterpret_cast<sockaddr*>(&address), &address_bytes);
  if (got < 0) return errno == ECONNREFUSED;  // of what was sent before
  const auto all = std::span(buffer).first(static_cast<std::size_t>(got));
  const auto introduction = rsocket::parse_introduction(all);
  if (!introduction) return true;
  const rsocket::Endpoint from = endpoint_of(address);
  meet(*introduction, from);
  if (!introduction->has_bytes || arrived_.size() >= kArrivedAtMost) return true;
  Arrived datagram{.from = from};
  const auto bytes = all.subspan(introduction->bytes);
  datagram.own.assign(bytes.begin(), bytes.end());
  datagram.bytes = datagram.own;
  arrived_.push_back(std::move(datagram));
  return true;
}

void DatagramSocket::meet(const rsocket::Introduction& introduction,
                          const rsocket::Endpoint& from) {
  const auto found = peer_at(from);
  if (!found) return;
  Peer& peer = **found;
  if (introduction.has_bytes) (void)send_by_udp({}, from, peer, false);
  if (peer.address && peer.qpn == introduction.qpn) return;
  auto address = peer.port->address_of_peer(from);
  if (!address) return;
  peer.address = std::move(*address);
  peer.qpn = introduction.qpn;
}

template <class There>
Outcome<void> DatagramSocket::wait(Lock& lock, bool at_once, There&& there) {
  const os::Clock clock;
  do {
    look_after();
    if (there()) return {};
    if (is_closed_) return Errno{EBADF};
    if (at_once) return Errno{EAGAIN};
    lock.unlock();
    lock.lock();
  } while (clock.now() < Time{} + defaults().polls);
  for (;;) {
    lock.unlock();
    int slept = 0;
    {
      const Nap nap;
      std::vector<pollfd> sources{{nap.fd(), POLLIN, 0}};
      lock.lock();
      add_sources(sources);
      look_after();
      const bool is_there = there() || is_closed_;
      lock.unlock();
      if (!is_there) slept = ::poll(sources.data(), sources.size(), -1);
    }
    const int error = errno;
    lock.lock();
    for (const auto& port : ports_) port->completions().take_events();
    look_after();
    if (there()) return {};
    if (is_closed_) return Errno{EBADF};
    if (slept < 0) return Errno{error};
  }
}

void DatagramSocket::add_sources(std::vector<pollfd>& sources) {
  sources.push_back({fd_, POLLIN, 0});
  for (const auto& port : ports_) {
    port->completions().arm();
    sources.push_back({port->completions().fd(), POLLIN, 0});
  }
}

short DatagramSocket::look(short wanted) {
  const Lock lock(mutex_);
  look_after();
  int ready = arrived_.empty() ? 0 : POLLIN | POLLRDNORM;
  if (std::ranges::all_of(ports_, [](const auto& port) { return port->can_send(); }))
    ready |= POLLOUT | POLLWRNORM;
  return static_cast<short>(ready & wanted);
}

void DatagramSocket::arm(std::vector<pollfd>& sources) {
  const Lock lock(mutex_);
  add_sources(sources);
}

void DatagramSocket::on_awake() {
  const Lock lock(mutex_);
  for (const auto& port : ports_) port->completions().take_events();
  look_after();
}

Outcome<void> DatagramSocket::set_option(int level, int name, std::span<const std::byte> value) {
  if (level != SOL_RDMA) {
    if (::setsockopt(fd_, level, name, value.data(), static_cast<socklen_t>(value.size())) != 0)
      return Errno{errno};
    return {};
  }
  const Lock lock(mutex_);
  std::uint32_t number = 0;
  if (value.size() < sizeof number || !ports_.empty()) return Errno{EINVAL};
  std::memcpy(&number, value.data(), sizeof number);
  if (name == RDMA_SQSIZE)
    shape_.sends = number;
  else if (name == RDMA_RQSIZE)
    shape_.receives = number;
  else if (name == RDMA_INLINE)
    inline_bytes_ = number;
  else
    return Errno{ENOTSUP};
  return {};
}

Outcome<void> DatagramSocket::get_option(int level, int name, void* value, socklen_t& bytes) {
  if (level != SOL_RDMA) {
    if (::getsockopt(fd_, level, name, value, &bytes) != 0) return Errno{errno};
    return {};
  }
  const Lock lock(mutex_);
  const std::map<int, std::uint32_t> known{
      {RDMA_SQSIZE, shape_.sends}, {RDMA_RQSIZE, shape_.receives}, {RDMA_INLINE, inline_bytes_}};
  const auto found = known.find(name);
  if (found == known.end()) return Errno{ENOTSUP};
  std::memcpy(value, &found->second, std::min<std::size_t>(bytes, sizeof found->second));
  bytes = sizeof found->second;
  return {};
}

}  // namespace softhca::abi
