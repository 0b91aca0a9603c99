// PortGroup: how the processes of one user share one UDP port on one address.
//
// All bind it (SO_REUSEPORT), and a small program in the kernel picks the socket by the block of
// the destination QPN. The program needs the order of the sockets; the members keep it in a table
// that each can reach without the help of the others, even of a stopped one. Joiners and leavers
// exclude each other by binding a name. Where any of that is not available (other pid namespace,
// no procfs) nothing is steered, the kernel picks by hash, and the process that gets a packet
// forwards it (local/mailbox.h): steering is speed, forwarding is correctness.
//
// Threads  owned by the device's owner
// See also ARCHITECTURE.md, "One port, many processes"
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"
#include "local/port_table.h"
#include "local/qpn_block.h"
#include "os/host_name.h"
#include "os/peer_table.h"
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

  static Result<PortGroup, PortFailure> join(const Seat& seat);
  PortGroup(PortGroup&&) = default;
  PortGroup& operator=(PortGroup&&) = delete;
  ~PortGroup();  // leaves

  // Closes the socket. The answer: whose packets are steered to nobody now (the kernel has moved a
  // socket), or kNoBlock. They get there by forwarding until that one, or any other, repairs.
  std::uint32_t leave();

  // Finds out who has died and steers anew. Worth a try when packets of others arrive here.
  void repair();
  // Closes everything without leaving: in the child of a fork, the parent is still a member.
  void abandon();

  os::UdpSocket& socket() { return socket_; }
  const Seat& seat() const { return seat_; }
  // True iff packets for this block are steered to this socket, as far as this member knows.
  bool is_steered() const { return steered_; }

 private:
  explicit PortGroup(const Seat& seat) : seat_(seat) {}
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
  os::HostName beacon_;  // its name tells others where the table is
  bool steered_ = false;
  std::uint32_t steerings_ = 0;  // each guesses differently where a place is not known
};

}  // namespace softhca::local
