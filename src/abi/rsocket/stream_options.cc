// Options: of sockets, of TCP and of rsockets.
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "abi/rsocket/keepalive.h"
#include "abi/rsocket/rdma_calls.h"
#include "abi/rsocket/stream_socket.h"
#include "os/proc_file.h"

namespace softhca::abi {
namespace {

constexpr std::uint32_t kKeepaliveSeconds = 7200;

std::optional<int> number_in(std::span<const std::byte> value) {
  int number = 0;
  if (value.size() < sizeof number) return {};
  std::memcpy(&number, value.data(), sizeof number);
  return number;
}

std::uint32_t system_keepalive() {
  std::uint32_t wished = kKeepaliveSeconds;
  const auto text = os::read_proc_file("/proc/sys/net/ipv4/tcp_keepalive_time");
  if (text) std::from_chars(text->data(), text->data() + text->size(), wished);
  return std::max(wished, 1u);
}

// What a program says of a buffer is half of what the kernel, and stock rsockets, make of it.
std::uint32_t doubled(int bytes) {
  return static_cast<std::uint32_t>(std::clamp(bytes, 0, 1 << 28)) * 2;
}

void give(void* to, socklen_t& bytes, const void* value, std::size_t of_value) {
  std::memcpy(to, value, std::min<std::size_t>(bytes, of_value));
  bytes = static_cast<socklen_t>(of_value);
}

}  // namespace

Outcome<void> StreamSocket::set_option(int level, int name, std::span<const std::byte> value) {
  const Lock lock(mutex_);
  if (level == SOL_RDMA) return set_rdma_option(name, value);
  if (level == SOL_SOCKET) return set_socket_option(name, value);
  if (level == IPPROTO_TCP) return set_tcp_option(name, value);
  if (level != IPPROTO_IPV6 || name != IPV6_V6ONLY) return Errno{ENOTSUP};
  const auto number = number_in(value);
  if (!number) return Errno{EINVAL};
  const auto done = set_cm_option(RDMA_OPTION_ID_AFONLY, *number);
  if (done) wishes_.only_ipv6 = *number != 0;
  return done;
}

Outcome<void> StreamSocket::set_cm_option(int name, int value) {
  if (entry_rdma_set_option(id_.get(), RDMA_OPTION_ID, name, &value, sizeof value) != 0)
    return Errno{errno};
  return {};
}

Outcome<void> StreamSocket::set_socket_option(int name, std::span<const std::byte> value) {
  const auto number = number_in(value);
  if (!number) return Errno{EINVAL};
  switch (name) {
    case SO_REUSEADDR:
      // A connection that was accepted has its address already, whatever is said of it.
      if (stage_ == Stage::Fresh) {
        if (const auto done = set_cm_option(RDMA_OPTION_ID_REUSEADDR, *number); !done) return done;
      }
      wishes_.reuses_address = *number != 0;
      return {};
    case SO_RCVBUF:
      if (!stream_) wishes_.shape.receive_bytes = doubled(*number);
      return {};
    case SO_SNDBUF:
      if (!stream_) wishes_.shape.send_bytes = doubled(*number);
      return {};
    case SO_LINGER:
      wishes_.lingers = *number != 0;
      return {};
    case SO_OOBINLINE:
      wishes_.oob_inline = *number != 0;
      return {};
    case SO_KEEPALIVE:
      wishes_.keeps_alive = *number != 0;
      apply_keepalive();
      return {};
    default:
      return Errno{ENOTSUP};
  }
}

Outcome<void> StreamSocket::set_tcp_option(int name, std::span<const std::byte> value) {
  const auto number = number_in(value);
  if (!number) return Errno{EINVAL};
  switch (name) {
    case TCP_NODELAY:
      wishes_.no_delay = *number != 0;
      return {};
    case TCP_KEEPIDLE:
      if (*number <= 0) return Errno{EINVAL};
      wishes_.keepalive_seconds = static_cast<std::uint32_t>(*number);
      apply_keepalive();
      return {};
    case TCP_KEEPCNT:
    case TCP_KEEPINTVL:
    case TCP_MAXSEG:
      return {};  // the queue pair's own retries and MTU stand
    default:
      return Errno{ENOTSUP};
  }
}

Outcome<void> StreamSocket::set_rdma_option(int name, std::span<const std::byte> value) {
  if (stage_ != Stage::Fresh && stage_ != Stage::Bound && stage_ != Stage::Listening)
    return Errno{EINVAL};
  if (name == RDMA_ROUTE) {
    wishes_.route.assign(value.begin(), value.end());
    return {};
  }
  const auto number = number_in(value);
  if (!number || *number < 0) return Errno{EINVAL};
  const auto wished = static_cast<std::uint32_t>(*number);
  switch (name) {
    case RDMA_SQSIZE:
      wishes_.shape.sends = wished;
      break;
    case RDMA_RQSIZE:
      wishes_.shape.receives = wished;
      break;
    case RDMA_INLINE:
      wishes_.inline_bytes = wished;
      return {};
    case RDMA_IOMAPSIZE:
      wishes_.shape.mappings = rsocket::tellable_mappings(wished);
      return {};
    default:
      return Errno{ENOTSUP};
  }
  wishes_.shape = rsocket::possible_shape(wishes_.shape);
  return {};
}

void StreamSocket::apply_keepalive() {
  if (!wishes_.keeps_alive) return stop_keepalive(*this);
  if (wishes_.keepalive_seconds == 0) wishes_.keepalive_seconds = system_keepalive();
  start_keepalive(std::static_pointer_cast<StreamSocket>(shared_from_this()),
                  seconds(wishes_.keepalive_seconds));
}

Outcome<void> StreamSocket::get_option(int level, int name, void* value, socklen_t& bytes) {
  const Lock lock(mutex_);
  if (level == SOL_SOCKET && name == SO_LINGER) {
    const linger lingers{wishes_.lingers ? 1 : 0, 0};
    give(value, bytes, &lingers, sizeof lingers);
    return {};
  }
  if (level == SOL_RDMA && name == RDMA_ROUTE) {
    give(value, bytes, wishes_.route.data(), wishes_.route.size());
    return {};
  }
  std::optional<int> number;
  if (level == SOL_SOCKET) number = socket_option(name);
  if (level == IPPROTO_TCP) number = tcp_option(name);
  if (level == SOL_RDMA) number = rdma_option(name);
  if (level == IPPROTO_IPV6 && name == IPV6_V6ONLY) number = wishes_.only_ipv6;
  if (!number) return Errno{ENOTSUP};
  give(value, bytes, &*number, sizeof *number);
  return {};
}

std::optional<int> StreamSocket::socket_option(int name) {
  switch (name) {
    case SO_ERROR:
      if (is_opening()) take_news();
      return std::exchange(error_, 0);
    case SO_REUSEADDR:
      return wishes_.reuses_address;
    case SO_KEEPALIVE:
      return wishes_.keeps_alive;
    case SO_OOBINLINE:
      return wishes_.oob_inline;
    case SO_RCVBUF:
      return static_cast<int>(wishes_.shape.receive_bytes);
    case SO_SNDBUF:
      return static_cast<int>(wishes_.shape.send_bytes);
    case SO_TYPE:
      return SOCK_STREAM;
    case SO_DOMAIN:
      return domain_;
    case SO_PROTOCOL:
      return IPPROTO_TCP;
    case SO_ACCEPTCONN:
      return stage_ == Stage::Listening;
    default:
      return {};
  }
}

std::optional<int> StreamSocket::tcp_option(int name) const {
  switch (name) {
    case TCP_NODELAY:
      return wishes_.no_delay;
    case TCP_KEEPIDLE:
      return static_cast<int>(wishes_.keepalive_seconds);
    case TCP_KEEPCNT:
    case TCP_KEEPINTVL:
      return 1;
    case TCP_MAXSEG:
      return id_->route.num_paths > 0 ? 1 << (7 + id_->route.path_rec->mtu) : 2048;
    default:
      return {};
  }
}

std::optional<int> StreamSocket::rdma_option(int name) const {
  switch (name) {
    case RDMA_SQSIZE:
      return static_cast<int>(wishes_.shape.sends);
    case RDMA_RQSIZE:
      return static_cast<int>(wishes_.shape.receives);
    case RDMA_INLINE:
      return static_cast<int>(wishes_.inline_bytes);
    case RDMA_IOMAPSIZE:
      return wishes_.shape.mappings;
    default:
      return {};
  }
}

}  // namespace softhca::abi
