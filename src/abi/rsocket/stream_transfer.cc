// How bytes go: what is posted, what has completed, and who waits for it.
#include <endian.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include "abi/rsocket/sleepers.h"
#include "abi/rsocket/stream_socket.h"
#include "os/clock.h"

namespace softhca::abi {
namespace {

constexpr std::uint64_t kReceiveTag = ~std::uint64_t{0};  // of a work request; sends have their tag
constexpr std::size_t kBatch = 16;

int milliseconds_up(Duration duration) {
  return static_cast<int>((duration.ps + milliseconds(1).ps - 1) / milliseconds(1).ps);
}

}  // namespace

Outcome<void> StreamSocket::post_receives(std::uint32_t count) {
  std::array<ibv_recv_wr, kBatch> requests{};
  while (count > 0) {
    const std::size_t now = std::min<std::size_t>(count, kBatch);
    for (std::size_t i = 0; i < now; ++i)
      requests[i] = {kReceiveTag, i + 1 < now ? &requests[i + 1] : nullptr, nullptr, 0};
    ibv_recv_wr* bad = nullptr;
    const int error = ::ibv_post_recv(id_->qp, requests.data(), &bad);
    if (error != 0) return Errno{error};
    count -= static_cast<std::uint32_t>(now);
  }
  return {};
}

void StreamSocket::post(const rsocket::Request& request) {
  std::array<ibv_sge, 2> parts{};
  int count = 0;
  if (request.text_bytes > 0) {
    parts[0] = {reinterpret_cast<std::uintptr_t>(request.text.data()),
                static_cast<std::uint32_t>(request.text_bytes), 0};
    count = 1;
  }
  for (const rsocket::Slice slice : request.slices)
    if (slice.length > 0)
      parts[static_cast<std::size_t>(count++)] = {.addr = send_ring_.address() + slice.offset,
                                                  .length = slice.length,
                                                  .lkey = send_ring_.lkey()};
  const std::size_t bytes = request.text_bytes + request.ring_bytes();
  ibv_send_wr wr{};
  wr.wr_id = request.tag;
  wr.sg_list = parts.data();
  wr.num_sge = count;
  wr.opcode = request.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  wr.send_flags = bytes > 0 && bytes <= wishes_.inline_bytes ? unsigned{IBV_SEND_INLINE} : 0;
  wr.imm_data = htobe32(request.immediate.value_or(0));
  wr.wr.rdma.remote_addr = request.address;
  wr.wr.rdma.rkey = request.key;
  ibv_send_wr* bad = nullptr;
  if (::ibv_post_send(id_->qp, &wr, &bad) == 0) return;
  error_ = ECONNRESET;
  stream_->on_failure();
}

void StreamSocket::on_lost(ibv_wc_status status) {
  if (!stream_->is_open()) return;
  error_ = status == IBV_WC_RETRY_EXC_ERR ? ETIMEDOUT : ECONNRESET;
  stream_->on_failure();
}

bool StreamSocket::look_after() {
  if (!stream_) return false;
  bool came = false;
  std::array<ibv_wc, kBatch> done;
  for (int count; (count = ::ibv_poll_cq(completions_.queue(), kBatch, done.data())) > 0;) {
    came = true;
    std::uint32_t receives = 0;
    for (const ibv_wc& wc : std::span(done).first(static_cast<std::size_t>(count))) {
      if (wc.wr_id == kReceiveTag) {
        if (wc.status != IBV_WC_SUCCESS) continue;  // flushed
        ++receives;
        stream_->on_message(be32toh(wc.imm_data));
      } else if (wc.status == IBV_WC_SUCCESS) {
        stream_->on_sent(static_cast<std::uint32_t>(wc.wr_id));
      } else {
        on_lost(wc.status);
      }
    }
    if (receives > 0 && stage_ == Stage::Accepting) stage_ = Stage::Connected;
    if (stream_->is_open() && !post_receives(receives)) stream_->on_failure();
  }
  while (const auto notice = stream_->poll_notice()) post(*notice);
  if (came) wake_sleepers();
  return came;
}

// Until `there`: polls for a while, then sleeps. FAILS WITH EAGAIN, EINTR
Outcome<void> StreamSocket::wait(Lock& lock, bool at_once, const std::function<bool()>& there) {
  look_after();
  if (there()) return {};
  if (at_once) return Errno{EAGAIN};
  const os::Clock clock;
  while (clock.now() < Time{} + defaults().polls) {
    lock.unlock();
    lock.lock();
    look_after();
    if (there()) return {};
  }
  while (!there())
    if (!sleep(lock, there, defaults().sleeps)) return Errno{EINTR};
  return {};
}

// Once, until something comes or time is up. False if a signal did.
bool StreamSocket::sleep(Lock& lock, const std::function<bool()>& there, Duration at_most) {
  lock.unlock();
  int slept = 0;
  {
    const Nap nap;
    std::vector<pollfd> sources{{nap.fd(), POLLIN, 0}};
    lock.lock();
    add_sources(sources);
    look_after();
    const bool is_there = there();
    lock.unlock();
    if (!is_there) slept = ::poll(sources.data(), sources.size(), milliseconds_up(at_most));
  }
  const bool by_signal = slept < 0;
  lock.lock();
  take_awake();
  return !by_signal;
}

Outcome<void> StreamSocket::await_connection(Lock& lock, bool at_once) {
  if (is_opening()) take_news();
  if (is_opening() && at_once) look_after();
  if (is_opening()) {
    const auto known = wait(lock, at_once, [&] { return !is_opening() || is_closed_; });
    if (!known) return known.error();
  }
  if (stage_ == Stage::Connected) return {};
  if (stage_ != Stage::Refused) return Errno{ENOTCONN};
  return Errno{error_ != 0 ? std::exchange(error_, 0) : ENOTCONN};
}

Errno StreamSocket::sending_error() const {
  if (error_ != 0) return Errno{error_};
  return Errno{stream_->is_open() ? EPIPE : ECONNRESET};
}

// Until bytes may be sent, and the peer knows what the program has mapped before.
Outcome<void> StreamSocket::await_turn(Lock& lock, bool at_once, bool to_place) {
  for (;;) {
    const bool maps = stream_->has_mapping();
    const auto may = [&] { return maps || !to_place ? stream_->can_send() : stream_->can_place(); };
    if (!may()) {
      const auto there =
          wait(lock, at_once, [&] { return may() || !stream_->may_send() || is_closed_; });
      if (!there) return there.error();
    }
    if (!stream_->may_send()) return sending_error();
    if (is_closed_) return Errno{EBADF};
    if (!maps) return {};
    if (stream_->has_mapping()) post(stream_->take_mapping());
  }
}

void StreamSocket::copy_to_ring(PartCursor& from, const rsocket::Slices& slices) {
  for (const rsocket::Slice slice : slices)
    from.copy_out(send_ring_.bytes().subspan(slice.offset, slice.length));
}

Outcome<std::size_t> StreamSocket::send(Parts parts, int flags, const sockaddr* to, socklen_t) {
  if (to != nullptr) return Errno{EISCONN};
  const std::lock_guard turn(sending_);
  Lock lock(mutex_);
  const bool at_once = returns_at_once(flags);
  if (const auto connected = await_connection(lock, at_once); !connected) return connected.error();
  const std::size_t total = total_bytes(parts);
  PartCursor from(parts);
  rsocket::Pace pace;
  std::size_t sent = 0;
  while (sent < total) {
    if (const auto turn_came = await_turn(lock, at_once, false); !turn_came) {
      if (sent > 0) break;
      return turn_came.error();
    }
    const rsocket::Request request = stream_->take_write(pace.next(total - sent));
    copy_to_ring(from, request.slices);
    post(request);
    sent += request.ring_bytes();
  }
  return sent;
}

Outcome<std::size_t> StreamSocket::write_mapped(std::span<const std::byte> bytes, off_t offset,
                                                int flags) {
  const std::lock_guard turn(sending_);
  Lock lock(mutex_);
  const bool at_once = returns_at_once(flags);
  if (const auto connected = await_connection(lock, at_once); !connected) return connected.error();
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  PartCursor from(Parts(&part, 1));
  rsocket::Pace pace;
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const auto turn_came = await_turn(lock, at_once, true);
    if (!turn_came && sent == 0) return turn_came.error();
    if (!turn_came) break;
    const auto request = stream_->take_placement(static_cast<std::uint64_t>(offset) + sent,
                                                 pace.next(bytes.size() - sent));
    if (!request) break;  // the peer has mapped nothing there
    copy_to_ring(from, request->slices);
    post(*request);
    sent += request->ring_bytes();
  }
  return sent;
}

std::size_t StreamSocket::copy_from_ring(PartCursor& to, std::size_t bytes, std::uint32_t after) {
  std::size_t copied = 0;
  for (const rsocket::Slice slice : stream_->readable(bytes, after)) {
    to.copy_in(receive_ring_.bytes().subspan(slice.offset, slice.length));
    copied += slice.length;
  }
  return copied;
}

Outcome<std::size_t> StreamSocket::receive(Parts parts, int flags, sockaddr_storage* from) {
  const std::lock_guard turn(receiving_);
  Lock lock(mutex_);
  const bool at_once = returns_at_once(flags);
  if (const auto connected = await_connection(lock, at_once); !connected) return connected.error();
  if (from != nullptr) from->ss_family = AF_UNSPEC;  // as TCP: nothing is told of a connection
  const std::size_t total = total_bytes(parts);
  const bool peeks = (flags & MSG_PEEK) != 0;
  PartCursor to(parts);
  std::size_t got = 0;
  while (got < total) {
    const auto there = wait(lock, at_once, [&] {
      return stream_->readable_bytes() > 0 || !stream_->may_receive() || is_closed_;
    });
    if (!there && got == 0) return there.error();
    const std::size_t copied = there ? copy_from_ring(to, total - got, 0) : 0;
    got += copied;
    if (copied == 0 || peeks) break;
    stream_->take_bytes(static_cast<std::uint32_t>(copied));
    while (const auto notice = stream_->poll_notice()) post(*notice);
    if ((flags & MSG_WAITALL) == 0) break;
  }
  if (got == 0 && total > 0 && stream_->has_failed())
    return Errno{error_ != 0 ? error_ : ECONNRESET};
  return got;
}

void StreamSocket::shut(int how) {
  if (how != SHUT_WR) stream_->shut_receiving();
  if (how != SHUT_RD) stream_->shut_sending();
}

void StreamSocket::keep_alive() {
  const Lock lock(mutex_);
  if (!stream_) return;
  stream_->keep_alive();
  look_after();
}

short StreamSocket::readiness(short wanted) const {
  int ready = 0;
  if (stage_ == Stage::Refused) {
    ready = POLLIN | POLLOUT | POLLHUP;
    if (error_ != 0) ready |= POLLERR;
  } else if (stage_ == Stage::Connected) {
    if (stream_->readable_bytes() > 0 || !stream_->may_receive()) ready |= POLLIN | POLLRDNORM;
    if (stream_->can_send() || !stream_->may_send()) ready |= POLLOUT | POLLWRNORM;
    if (!stream_->may_receive()) ready |= POLLRDHUP;
    // Programs that see POLLHUP do not read what is still there.
    if (!stream_->is_open() && stream_->readable_bytes() == 0) ready |= POLLHUP;
    if (stream_->has_failed()) ready |= POLLERR;
  }
  return static_cast<short>(ready & (wanted | POLLERR | POLLHUP));
}

short StreamSocket::look(short wanted) {
  const Lock lock(mutex_);
  if (stage_ == Stage::Listening) {
    pollfd listener{events_->fd, POLLIN, 0};
    const bool asked = ::poll(&listener, 1, 0) > 0;
    return static_cast<short>(asked ? wanted & (POLLIN | POLLRDNORM) : 0);
  }
  look_after();
  if (const short ready = readiness(wanted); ready != 0) return ready;
  take_news();
  return readiness(wanted);
}

void StreamSocket::arm(std::vector<pollfd>& sources) {
  const Lock lock(mutex_);
  add_sources(sources);
}

void StreamSocket::add_sources(std::vector<pollfd>& sources) {
  sources.push_back({events_->fd, POLLIN, 0});
  if (!stream_) return;
  completions_.arm();
  sources.push_back({completions_.fd(), POLLIN, 0});
}

void StreamSocket::take_awake() {
  if (stream_) completions_.take_events();
  take_news();
  look_after();
}

void StreamSocket::on_awake() {
  const Lock lock(mutex_);
  take_awake();
}

}  // namespace softhca::abi
