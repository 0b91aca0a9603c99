// PortGroup: how the processes of this host share one UDP port on one address.
//
// Those of one user all bind it (SO_REUSEPORT), and a small program in the kernel picks the socket
// by the block of the destination QPN. The program needs the order of the sockets; the members keep
// it in a table that each can reach without the help of the others, even of a stopped one. Joiners
// and leavers exclude each other by binding a name. Where any of that is not available (other pid
// namespace, no procfs) nothing is steered, the kernel picks by hash, and the process that gets a
// packet forwards it (local/mailbox.h): steering is speed, forwarding is correctness.
//
// Those of other users lodge (local/lodging.h): they have no socket here until the port is free.
//
// Threads  owned by the device's owner
// See also ARCHITECTURE.md, "One port, many processes" and "One port, many users"
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "local/lodging.h"
#include "local/port_table.h"
#include "local/qpn_block.h"
#include "os/host_name.h"
#include "os/peer_memory.h"
#include "os/udp_socket.h"
#include "trace/reason.h"

namespace softhca::local {

// Why a port or an address could not be had: UdpPortTaken, NoInterface or PortDown.
struct PortFailure {
  trace::ReasonId reason{};
  int error{};       // errno
  std::string text;  // "UDP 4791 on 192.0.2.2 is taken by a socket of uid 1001"
};

class PortGroup {
 public:
  struct Seat {
    os::IpAddress address;
    Domain domain;
    std::uint32_t block{};
    bool steering = true;  // false: leave it to the kernel's hash
  };

  // A member, or a lodger if SoftHCA of another user has the port.
  static Result<PortGroup, PortFailure> join(const Seat& seat);
  PortGroup(PortGroup&&) = default;
  PortGroup& operator=(PortGroup&&) = delete;
  ~PortGroup();  // leaves

  // Closes the socket, after a last call of `drain`: what lies in it may be for others. The answer:
  // whose packets are steered to nobody now (the kernel has moved a socket), or kNoBlock. They get
  // there by forwarding until that one, or any other, repairs.
  std::uint32_t leave(const std::function<void()>& drain);

  // Finds out who has died and steers anew. Worth a try when packets of others arrive here.
  void repair();
  // Closes everything without leaving: in the child of a fork, the parent is still a member.
  void abandon();

  // A lodger has no socket. It takes the port as soon as it is free, if called often enough.
  bool is_lodging() const { return lodging_.has_value(); }
  // Tries to take the port, if it is time; `look`: also looks whether the holder has ended. True
  // if fd() is another one now.
  bool take_if_free(Time now, bool look);
  // When to call take_if_free() although nothing happens; never() for a member.
  Time next_try() const { return lodging_ ? lodging_->next_try() : Time::never(); }
  // Whether mail of this user, not our own one, is believed for this address.
  bool believes(std::uint32_t uid, Time now);

  // What is readable when there is something to do: the socket, a lodger's watch, or -1.
  int fd() const { return lodging_ ? lodging_->fd() : socket_.fd(); }

  os::UdpSocket& socket() { return socket_; }
  const Seat& seat() const { return seat_; }
  // True iff packets for this block are steered to this socket, as far as this member knows.
  bool is_steered() const { return steered_; }

 private:
  // His last words may lie here, unread, when he has left already.
  static constexpr Duration kLastWords = seconds(1);
  struct FormerHolder {
    std::uint32_t uid{};
    Time believed_until{};
  };
  bool try_to_take(Time now, bool look);
  explicit PortGroup(const Seat& seat) : seat_(seat) {}
  Result<void, PortFailure> bind();
  bool take_port();
  Result<void, PortFailure> bind_socket();
  Result<void, PortFailure> bind_in_order();
  bool find_table();
  std::vector<PortMember> read_members() const;
  void write_members(std::span<const PortMember> members);
  void steer(std::span<const PortMember> members);
  std::string table_name() const;

  Seat seat_;
  os::UdpSocket socket_;
  os::PeerTable table_;  // not open: nothing is steered by this member
  os::HostName beacon_;  // its name tells others where the table is, and that we are SoftHCA
  bool steered_ = false;
  std::optional<Lodging> lodging_;
  std::optional<FormerHolder> former_;
  int locked_out_ = 0;           // tries to take the port while a neighbour kept the lock
  int repairs_locked_out_ = 0;   // in a row
  std::uint32_t steerings_ = 0;  // each guesses differently where a place is not known
};

}  // namespace softhca::local
