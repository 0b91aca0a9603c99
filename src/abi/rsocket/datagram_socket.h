// DatagramSocket: datagrams of rsockets: a socket of UDP, and a queue pair for each local address.
//
// The UDP socket has the address that programs know. Datagrams go by it until the peer's queue pair
// is known; what comes by it introduces one. It is looked after in calls of the program, as all
// else.
//
// Threads  any
// See also rsocket/datagram.h, docs/rsockets.md
#pragma once
#include <deque>
#include <map>
#include <mutex>

#include "abi/rsocket/datagram_port.h"
#include "abi/rsocket/defaults.h"

namespace softhca::abi {

class DatagramSocket final : public Socket {
 public:
  static Outcome<std::shared_ptr<Socket>> open(int domain);
  ~DatagramSocket() override;

  int fd() const override { return fd_; }
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

 private:
  struct Peer {
    DatagramPort* port{};
    PeerAddress address{nullptr, ::ibv_destroy_ah};  // null: its queue pair is not known
    std::uint32_t qpn{};
  };
  // It lies in a port's memory, or came by UDP.
  struct Arrived {
    rsocket::Endpoint from{};
    DatagramPort* port{};
    std::uint32_t slot{};
    std::span<const std::byte> bytes{};
    std::vector<std::byte> own{};
  };
  using Lock = std::unique_lock<std::mutex>;

  DatagramSocket(int domain, int fd) : domain_(domain), fd_(fd) {}
  Outcome<Peer*> peer_at(const rsocket::Endpoint& endpoint);
  Outcome<rsocket::Endpoint> source_towards(const rsocket::Endpoint& peer);
  Outcome<DatagramPort*> port_at(const rsocket::Endpoint& local);
  Outcome<std::size_t> send_by_udp(Parts parts, const rsocket::Endpoint& to, const Peer& peer,
                                   bool has_bytes);
  bool look_after();
  bool take_from_udp();
  void meet(const rsocket::Introduction& introduction, const rsocket::Endpoint& from);
  template <class There>
  Outcome<void> wait(Lock& lock, bool at_once, There&& there);
  void add_sources(std::vector<pollfd>& sources);

  const int domain_;
  const int fd_;
  std::mutex mutex_;
  rsocket::StreamShape shape_ = defaults().shape;
  std::uint32_t inline_bytes_ = defaults().inline_bytes;
  std::vector<std::unique_ptr<DatagramPort>> ports_{};
  std::map<rsocket::Endpoint, Peer> peers_{};
  std::optional<rsocket::Endpoint> connected_{};
  std::deque<Arrived> arrived_{};
  bool is_closed_ = false;
};

}  // namespace softhca::abi
