#include "abi/rsocket/socket_table.h"

#include <mutex>

#include "os/fork.h"

namespace softhca::abi {
namespace {

struct Table {
  os::ForkMutex mutex;
  std::vector<std::shared_ptr<Socket>> sockets;  // by descriptor
};

// Lives as long as the process.
Table& table() {
  static Table* const made = [] {
    auto* const fresh = new Table;
    os::on_fork({.before = [] { table().mutex.lock_for_fork(); },
                 .in_parent = [] { table().mutex.unlock_after_fork(); },
                 .in_child = [] { table().mutex.unlock_after_fork(); }});
    return fresh;
  }();
  return *made;
}

}  // namespace

void keep_socket(std::shared_ptr<Socket> socket) {
  const auto at = static_cast<std::size_t>(socket->fd());
  Table& known = table();
  const std::lock_guard lock(known.mutex);
  if (at >= known.sockets.size()) known.sockets.resize(at + 1);
  known.sockets[at] = std::move(socket);
}

std::shared_ptr<Socket> known_socket(int fd) {
  Table& known = table();
  const std::lock_guard lock(known.mutex);
  const auto at = static_cast<std::size_t>(fd);
  return fd >= 0 && at < known.sockets.size() ? known.sockets[at] : nullptr;
}

Outcome<std::shared_ptr<Socket>> socket_of(int fd) {
  auto socket = known_socket(fd);
  if (!socket) return Errno{EBADF};
  if (socket->is_left_behind()) return Errno{EPERM};
  return socket;
}

Outcome<std::shared_ptr<Socket>> forget_socket(int fd) {
  Table& known = table();
  const std::lock_guard lock(known.mutex);
  const auto at = static_cast<std::size_t>(fd);
  if (fd < 0 || at >= known.sockets.size() || !known.sockets[at]) return Errno{EBADF};
  return std::exchange(known.sockets[at], nullptr);
}

}  // namespace softhca::abi
