// DatagramPort: the queue pair by which a socket of datagrams sends from one local address.
//
// Threads  owned by its socket
#pragma once
#include <rdma/rdma_cma.h>

#include <memory>
#include <optional>
#include <vector>

#include "abi/rsocket/socket.h"
#include "abi/rsocket/verbs_objects.h"
#include "rsocket/datagram.h"

namespace softhca::abi {

// The address of a peer's queue pair.
using PeerAddress = std::unique_ptr<ibv_ah, int (*)(ibv_ah*)>;

// A datagram that lies in memory of the port until it is taken.
struct PortDatagram {
  std::uint32_t slot{};
  rsocket::Endpoint from{};
  std::span<const std::byte> bytes{};
};

class DatagramPort {
 public:
  // What a datagram takes of memory, with what is in front of it.
  static constexpr std::uint32_t kSlotBytes = 2048;

  struct Shape {
    std::uint32_t sends{};
    std::uint32_t receives{};
    std::uint32_t inline_bytes{};
  };
  static Outcome<std::unique_ptr<DatagramPort>> open(const rsocket::Endpoint& local, Shape shape);
  ~DatagramPort();

  const rsocket::Endpoint& local() const { return local_; }
  std::uint32_t qpn() const { return id_->qp->qp_num; }
  Completions& completions() { return completions_; }

  // How many bytes of a program one message carries.
  std::size_t bytes_at_most() const;
  Outcome<PeerAddress> address_of_peer(const rsocket::Endpoint& peer);

  // What has completed is looked at; the next datagram, if there is one.
  std::optional<PortDatagram> poll();
  // The program is done with it.
  void take(std::uint32_t slot) { (void)post_receive(slot); }

  bool can_send() const { return !free_sends_.empty(); }
  bool is_quiet() const { return free_sends_.size() == shape_.sends; }
  // REQUIRES can_send(), total_bytes(parts) <= bytes_at_most()
  Outcome<void> send(Parts parts, ibv_ah* to, std::uint32_t qpn);

 private:
  DatagramPort(const rsocket::Endpoint& local, Shape shape) : local_(local), shape_(shape) {}
  Outcome<void> open_id();
  Outcome<void> open_queue_pair();
  Outcome<void> post_receive(std::uint32_t slot);

  const rsocket::Endpoint local_;
  Shape shape_;
  OwnedEventChannel events_;
  OwnedId id_;
  OwnedDomain domain_;
  Completions completions_{};
  RegisteredMemory sends_{}, receives_{};
  std::vector<std::uint32_t> free_sends_{};
  std::uint32_t mtu_bytes_ = 0;
  std::uint8_t gid_index_ = 0;
};

}  // namespace softhca::abi
