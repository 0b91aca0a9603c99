#include "abi/rsocket/poll.h"

#include <algorithm>
#include <cerrno>
#include <climits>

#include "abi/rsocket/defaults.h"
#include "abi/rsocket/sleepers.h"
#include "abi/rsocket/socket_table.h"
#include "os/clock.h"

namespace softhca::abi {
namespace {

class Poll {
 public:
  explicit Poll(std::span<pollfd> wanted) : wanted_(wanted) {
    sockets_.reserve(wanted.size());
    for (const pollfd& one : wanted) {
      sockets_.push_back(known_socket(one.fd));
      if (sockets_.back() && sockets_.back()->is_left_behind()) sockets_.back() = nullptr;
      (sockets_.back() ? has_sockets_ : has_others_) = true;
    }
  }

  bool has_sockets() const { return has_sockets_; }

  // What is so now. FAILS WITH what poll(2) says
  Outcome<int> look() {
    if (has_others_)
      if (const auto asked = ask_others(0); !asked) return asked;
    for (std::size_t i = 0; i < wanted_.size(); ++i)
      if (sockets_[i]) wanted_[i].revents = sockets_[i]->look(wanted_[i].events);
    return ready();
  }

  // Sleeps until something may have changed. FAILS WITH EINTR
  Outcome<int> sleep(Duration at_most) {
    const Nap nap;
    sources_.clear();
    sources_.push_back({nap.fd(), POLLIN, 0});
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (sockets_[i])
        sockets_[i]->arm(sources_);
      else if (wanted_[i].fd >= 0)
        sources_.push_back({wanted_[i].fd, wanted_[i].events, 0});
    }
    for (std::size_t i = 0; i < wanted_.size(); ++i)
      if (sockets_[i] && (wanted_[i].revents = sockets_[i]->look(wanted_[i].events)) != 0) return 0;
    const std::int64_t ms = (at_most.ps + milliseconds(1).ps - 1) / milliseconds(1).ps;
    if (::poll(sources_.data(), sources_.size(), static_cast<int>(ms)) < 0) return Errno{errno};
    return 0;
  }

  void on_awake() {
    for (const auto& socket : sockets_)
      if (socket) socket->on_awake();
  }

 private:
  Outcome<int> ask_others(int timeout_ms) {
    sources_.clear();
    for (std::size_t i = 0; i < wanted_.size(); ++i)
      sources_.push_back({sockets_[i] ? -1 : wanted_[i].fd, wanted_[i].events, 0});
    if (::poll(sources_.data(), sources_.size(), timeout_ms) < 0) return Errno{errno};
    for (std::size_t i = 0; i < wanted_.size(); ++i)
      if (!sockets_[i]) wanted_[i].revents = sources_[i].revents;
    return 0;
  }

  int ready() const {
    return static_cast<int>(
        std::ranges::count_if(wanted_, [](const pollfd& one) { return one.revents != 0; }));
  }

  std::span<pollfd> wanted_;
  std::vector<std::shared_ptr<Socket>> sockets_{};  // null: another descriptor
  std::vector<pollfd> sources_{};
  bool has_sockets_ = false;
  bool has_others_ = false;
};

}  // namespace

Outcome<int> poll_sockets(std::span<pollfd> wanted, int timeout_ms) {
  Poll poll(wanted);
  if (!poll.has_sockets()) {
    const int ready = ::poll(wanted.data(), wanted.size(), timeout_ms);
    return ready >= 0 ? Outcome<int>(ready) : Errno{errno};
  }
  const os::Clock clock;
  const Time end = timeout_ms < 0 ? Time::never() : Time{} + milliseconds(timeout_ms);
  const Time spun = earlier(end, Time{} + defaults().polls);
  for (;;) {
    const auto ready = poll.look();
    const Time now = clock.now();
    if (!ready || *ready > 0 || now >= end) return ready;
    if (now < spun) continue;
    const Duration left = end - now;
    if (const auto slept = poll.sleep(std::min(left, defaults().sleeps)); !slept) return slept;
    poll.on_awake();
  }
}

Outcome<int> select_sockets(int count, fd_set* readable, fd_set* writable, fd_set* exceptional,
                            const timeval* timeout) {
  if (count < 0 || count > FD_SETSIZE) return Errno{EINVAL};
  std::vector<pollfd> wanted;
  for (int fd = 0; fd < count; ++fd) {
    const bool reads = readable != nullptr && FD_ISSET(fd, readable);
    const bool writes = writable != nullptr && FD_ISSET(fd, writable);
    const bool excepts = exceptional != nullptr && FD_ISSET(fd, exceptional);
    const int events = (reads ? POLLIN : 0) | (writes ? POLLOUT : 0) | (excepts ? POLLPRI : 0);
    if (events != 0) wanted.push_back({fd, static_cast<short>(events), 0});
  }
  long long ms = -1;
  if (timeout != nullptr)
    ms = std::min<long long>(timeout->tv_sec * 1000LL + (timeout->tv_usec + 999) / 1000, INT_MAX);
  const auto polled = poll_sockets(wanted, static_cast<int>(ms));
  if (!polled) return polled;
  if (std::ranges::any_of(wanted, [](const pollfd& one) { return one.revents & POLLNVAL; }))
    return Errno{EBADF};
  for (fd_set* const set : {readable, writable, exceptional})
    if (set != nullptr) FD_ZERO(set);
  int ready = 0;
  const auto mark = [&](fd_set* set, const pollfd& one, int asked, int events) {
    if (set == nullptr || (one.events & asked) == 0 || (one.revents & events) == 0) return;
    FD_SET(one.fd, set);
    ++ready;
  };
  for (const pollfd& one : wanted) {
    mark(readable, one, POLLIN, POLLIN | POLLHUP | POLLERR);
    mark(writable, one, POLLOUT, POLLOUT | POLLERR);
    mark(exceptional, one, POLLPRI, POLLPRI);
  }
  return ready;
}

}  // namespace softhca::abi
