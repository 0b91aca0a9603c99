// Socket: what a descriptor of rsocket() is; a stream or a socket of datagrams.
//
// Threads  any. A call that blocks lets others in
#pragma once
#include <fcntl.h>
#include <rdma/rsocket.h>

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "abi/errno_of.h"
#include "os/self.h"

namespace softhca::abi {

using Parts = std::span<const iovec>;

class Socket : public std::enable_shared_from_this<Socket> {
 public:
  virtual ~Socket() = default;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // What the program has in its hands.
  virtual int fd() const = 0;

  virtual Outcome<void> bind(const sockaddr& address, socklen_t bytes) = 0;
  virtual Outcome<void> listen(int backlog) = 0;
  virtual Outcome<std::shared_ptr<Socket>> accept() = 0;
  virtual Outcome<void> connect(const sockaddr& address, socklen_t bytes) = 0;
  virtual Outcome<void> shut_down(int how) = 0;
  // The end: what was sent reaches the peer first. Memory goes with the last thread that is inside.
  virtual void close() = 0;

  virtual Outcome<std::size_t> send(Parts parts, int flags, const sockaddr* to,
                                    socklen_t to_bytes) = 0;
  // `from`: whom it is from, if somebody asks.
  virtual Outcome<std::size_t> receive(Parts parts, int flags, sockaddr_storage* from) = 0;

  // What poll(2) asks, at once; whatever has come is looked after first.
  virtual short look(short wanted) = 0;
  // Adds what to sleep on until look() may say something else. `wanted` as for look(), which is
  // asked once more behind this.
  virtual void arm(std::vector<pollfd>& sources) = 0;
  // One of them is readable.
  virtual void on_awake() = 0;

  virtual Outcome<sockaddr_storage> local_address() = 0;
  virtual Outcome<sockaddr_storage> peer_address() = 0;
  virtual Outcome<void> set_option(int level, int name, std::span<const std::byte> value) = 0;
  // What of the value fits is copied; `bytes` is how many it takes.
  virtual Outcome<void> get_option(int level, int name, void* value, socklen_t& bytes) = 0;

  bool is_non_blocking() const { return (flags_.load() & O_NONBLOCK) != 0; }
  int flags() const { return flags_.load(); }
  void set_flags(int flags) { flags_.store(flags); }
  // Of an ancestor of this process: it has no share in it.
  bool is_left_behind() const { return lineage_ != os::lineage(); }

 protected:
  Socket() = default;
  // A call of one of them may not wait.
  bool returns_at_once(int flags) const { return is_non_blocking() || (flags & MSG_DONTWAIT) != 0; }

 private:
  std::atomic<int> flags_{O_RDWR};  // as fcntl(F_GETFL) has them
  const std::uint64_t lineage_ = os::lineage();
};

// Whether there is no such address of a family that rsockets know.
bool is_foreign(const sockaddr& address, socklen_t bytes);
socklen_t bytes_of_address(const sockaddr& address);
std::size_t total_bytes(Parts parts);

// The bytes of parts, one stretch after the other.
class PartCursor {
 public:
  explicit PartCursor(Parts parts) : parts_(parts) {}
  void copy_out(std::span<std::byte> to);
  void copy_in(std::span<const std::byte> from);

 private:
  template <class Move>
  void advance(std::size_t bytes, Move&& move);

  Parts parts_;
  std::size_t part_ = 0;
  std::size_t offset_ = 0;
};

}  // namespace softhca::abi
