// StreamSocket: a connection of rsockets, or what listens for them.
//
// Glue: rdma_cm says what becomes of the connection, rsocket::Stream what to post, the completion
// queue what has happened. Nothing runs but in calls of the program: whoever is inside looks after
// the socket for all (look_after), and who waits sleeps on the completion channel and on rdma_cm's.
//
// Threads  any. One sends at a time, and one receives; `mutex_` holds all else together
// See also rsocket/stream.h, docs/rsockets.md
#pragma once
#include <rdma/rdma_cma.h>

#include <functional>
#include <list>
#include <mutex>
#include <optional>

#include "abi/rsocket/defaults.h"
#include "abi/rsocket/socket.h"
#include "abi/rsocket/verbs_objects.h"
#include "base/clock.h"
#include "rsocket/stream.h"

namespace softhca::abi {

class StreamSocket final : public Socket {
 public:
  // FAILS WITH as rdma_create_event_channel and rdma_create_id do
  static Outcome<std::shared_ptr<Socket>> open(int domain);
  ~StreamSocket() override;

  int fd() const override { return events_->fd; }
  Outcome<void> bind(const sockaddr& address, socklen_t bytes) override;
  Outcome<void> listen(int backlog) override;
  Outcome<std::shared_ptr<Socket>> accept() override;
  Outcome<void> connect(const sockaddr& address, socklen_t bytes) override;
  Outcome<void> shut_down(int how) override;
  void close() override;

  Outcome<std::size_t> send(Parts parts, int flags, const sockaddr* to,
                            socklen_t to_bytes) override;
  Outcome<std::size_t> receive(Parts parts, int flags, sockaddr_storage* from) override;

  short look(short wanted) override;
  void arm(std::vector<pollfd>& sources) override;
  void on_awake() override;

  Outcome<sockaddr_storage> local_address() override;
  Outcome<sockaddr_storage> peer_address() override;
  Outcome<void> set_option(int level, int name, std::span<const std::byte> value) override;
  Outcome<void> get_option(int level, int name, void* value, socklen_t& bytes) override;

  // riomap and its kin. FAILS WITH EINVAL, ENOMEM
  Outcome<off_t> map(void* memory, std::size_t bytes, int protection, off_t offset);
  Outcome<void> unmap(const void* memory, std::size_t bytes);
  Outcome<std::size_t> write_mapped(std::span<const std::byte> bytes, off_t offset, int flags);

  // Its turn to ask whether the peer is there has come.
  void keep_alive();

 private:
  enum class Stage : std::uint8_t {
    Fresh,
    Bound,
    Listening,
    Resolving,  // the address, then the way there
    Connecting,
    Accepting,  // the peer has not said yet that it knows
    Connected,
    Refused,
  };
  // What the program may set before there is a connection, and what listeners hand on.
  struct Wishes {
    rsocket::StreamShape shape = defaults().shape;
    std::uint32_t inline_bytes = defaults().inline_bytes;
    std::vector<std::byte> route{};
    std::uint32_t keepalive_seconds{};  // 0: the system's
    bool keeps_alive{}, reuses_address{}, only_ipv6{}, no_delay{}, oob_inline{};
    bool lingers = true;
  };
  static constexpr int kResolveMs = 8000;
  struct Mapped {
    ibv_mr* region{};
    std::optional<std::uint32_t> entry{};  // of the peer's list; none: only local
  };
  using Lock = std::unique_lock<std::mutex>;

  StreamSocket(int domain, rdma_event_channel* events) : domain_(domain), events_(events) {}
  static Outcome<std::shared_ptr<StreamSocket>> with_channel(int domain);

  bool is_opening() const {
    return stage_ == Stage::Resolving || stage_ == Stage::Connecting || stage_ == Stage::Accepting;
  }

  // Connections (stream_connect.cc).
  void take_news();  // what rdma_cm has to say
  void on_news(rdma_cm_event_type event, int status, std::span<const std::byte> greeting);
  Outcome<void> resolve_route();
  Outcome<void> open_queue_pair();
  Outcome<void> say_hello();
  void fail(int error);
  // FAILS WITH ECONNABORTED if it is no request, or not of an rsocket
  Outcome<std::shared_ptr<StreamSocket>> answer(rdma_cm_event* request);

  // Bytes (stream_transfer.cc).
  Outcome<void> post_receives(std::uint32_t count);
  void post(const rsocket::Request& request);
  bool look_after();  // whether something has come
  void on_lost(ibv_wc_status status);
  Outcome<void> wait(Lock& lock, bool at_once, const std::function<bool()>& there);
  bool sleep(Lock& lock, const std::function<bool()>& there, Duration at_most);
  void add_sources(std::vector<pollfd>& sources);
  void take_awake();
  Outcome<void> await_connection(Lock& lock, bool at_once);
  Outcome<void> await_turn(Lock& lock, bool at_once, bool to_place);
  Errno sending_error() const;
  void copy_to_ring(PartCursor& from, const rsocket::Slices& slices);
  std::size_t copy_from_ring(PartCursor& to, std::size_t bytes, std::uint32_t after);
  void shut(int how);
  short readiness(short wanted) const;

  // Options (stream_options.cc).
  Outcome<void> set_socket_option(int name, std::span<const std::byte> value);
  Outcome<void> set_tcp_option(int name, std::span<const std::byte> value);
  Outcome<void> set_rdma_option(int name, std::span<const std::byte> value);
  Outcome<void> set_cm_option(int name, int value);
  std::optional<int> socket_option(int name);
  std::optional<int> tcp_option(int name) const;
  std::optional<int> rdma_option(int name) const;
  void apply_keepalive();

  const int domain_;
  const OwnedEventChannel events_;
  OwnedId id_;
  std::mutex mutex_;
  std::mutex sending_;    // before mutex_
  std::mutex receiving_;  // before mutex_
  Stage stage_ = Stage::Fresh;
  Wishes wishes_{};
  sockaddr_storage destination_{};
  int error_ = 0;  // SO_ERROR
  bool is_closed_ = false;

  OwnedDomain memory_domain_;
  Completions completions_{};
  RegisteredMemory send_ring_{}, receive_ring_{}, list_{};
  std::optional<rsocket::Stream> stream_{};
  std::list<Mapped> mapped_{};
};

}  // namespace softhca::abi
